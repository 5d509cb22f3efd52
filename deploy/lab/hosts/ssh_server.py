"""The SSH server of one running lab machine: key sign-in, commands, terminals, SFTP.

A command runs as this computer's own user in the machine's home folder with a bare environment: the lab keeps
tenants' files apart and empties them, but is no wall between them; it listens on loopback only. SFTP refuses
paths outside the machine's disk.
"""

from __future__ import annotations

import os
import posixpath
import sys
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from deploy.lab.hosts.boot import HostFolder
from deploy.lab.hosts.installed_system import InstalledSystem
from deploy.lab.hosts.residents import MARK
from deploy.lab.hosts.session import run_session

# Where programs are looked for behind the host's own tools; the project's interpreter comes first, so that
# Ansible's modules find a Python that has ssl.
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
LOGIN_WITHIN_SECONDS = 20


@dataclass(frozen=True)
class Host:
    """A machine that has booted `system` from `folder`; `lab` and `system_uuid` mark its processes."""

    folder: HostFolder
    system: InstalledSystem
    system_uuid: str
    lab: Path

    def environment(self, user: str) -> dict[str, str]:
        """All of a process's environment."""
        home = str(self.folder.home(user))
        return {
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "HOSTNAME": self.system.hostname,
            "TMPDIR": f"{home}/tmp",
            "PATH": os.pathsep.join((str(self.folder.tools), str(Path(sys.executable).parent), *_SYSTEM_PATH)),
            MARK: f"{self.lab}:{self.system_uuid}",
        }


class _Doorkeeper(asyncssh.SSHServer):
    """Lets users of the image in by the keys in their home, read anew at each sign-in."""

    def __init__(self, host: Host, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._host = host
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if username not in self._host.system.keys:
            return False
        try:
            text = (self._host.folder.home(username) / ".ssh" / "authorized_keys").read_text()
        except OSError:
            return False
        return any(_is_key(line, key) for line in text.splitlines())


def _is_key(line: str, key: asyncssh.SSHKey) -> bool:
    try:
        return bool(asyncssh.import_public_key(line.strip()) == key)
    except (asyncssh.KeyImportError, ValueError):
        return False  # A comment, a blank line, or a key that no client can hold.


class _DiskSFTP(asyncssh.SFTPServer):
    """SFTP on the machine's disk with real paths, as Ansible wants them: what a command prints, SFTP finds."""

    def __init__(self, chan: asyncssh.SSHServerChannel[bytes], host: Host) -> None:
        super().__init__(chan)
        self._disk = os.fsencode(host.folder.disk)
        self._home = os.fsencode(host.folder.home(chan.get_extra_info("username")))

    def map_path(self, path: bytes) -> bytes:
        """The path meant, from the home folder on. Raises SFTPPermissionDenied outside the disk."""
        wanted = posixpath.normpath(posixpath.join(self._home, path))
        real = os.path.realpath(wanted)
        disk = os.path.realpath(self._disk)
        if real != disk and not real.startswith(disk + b"/"):
            raise asyncssh.SFTPPermissionDenied(f"{os.fsdecode(path)}: outside this machine's disk")
        return wanted

    def realpath(self, path: bytes) -> bytes:
        """The canonical form of a path, as a client asks for at the start."""
        return os.path.realpath(self.map_path(path))


class Listener:
    """A machine's SSH server that is up; `close` ends its connections with it, as a loss of power does."""

    def __init__(self) -> None:
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def open(self, host: Host, port: int) -> None:
        """Serve the machine on 127.0.0.1:`port`. Raises OSError when the port is taken."""

        async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
            user = str(process.get_extra_info("username"))
            await run_session(process, host.folder.home(user), host.environment(user))

        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=lambda: _Doorkeeper(host, self._connections),
            server_host_keys=[str(host.folder.host_key)],
            process_factory=handle,
            sftp_factory=lambda chan: _DiskSFTP(chan, host),
            allow_scp=True,
            encoding=None,
            line_editor=False,
            reuse_address=True,
            login_timeout=LOGIN_WITHIN_SECONDS,
        )

    def close(self) -> None:
        """Stop listening and cut every connection. Harmless when it is closed."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for connection in list(self._connections):
            connection.abort()
