"""Logging in to deployed nodes with the satellite's management key (asyncssh).

The host key must be the one that the deploy reported: an unknown key is never accepted, and a blank one means
that nobody logs in. Keys are written to a new file that replaces the old one whole, then read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import asyncssh

from services.satellite.adapters.keys import fingerprint, public_line
from services.satellite.errors import Failure, SiteError
from services.satellite.ports import CommandOutput, Host

_CONNECT_SECONDS = 20.0
_DELIVER_SECONDS = 60.0
# What a node writes is evidence, not a data channel; the bus takes 256 KiB for all of a suite.
MAX_OUTPUT_CHARACTERS = 32_768
_DELIVER = (
    "set -e; umask 077; mkdir -p ~/.ssh; new=~/.ssh/.authorized_keys.slipway; "
    'cat > "$new"; chmod 600 "$new"; sync "$new" 2>/dev/null || true; '
    'mv "$new" ~/.ssh/authorized_keys; cat ~/.ssh/authorized_keys'
)


class SshAccess:
    """See `services.satellite.ports.NodeAccess`. `user` is the image's default user."""

    def __init__(self, key_file: Path, user: str) -> None:
        self._key_file = key_file
        self._user = user
        self._public_key = public_line(key_file)

    def public_key(self) -> str:
        return self._public_key

    async def deliver_keys(self, host: Host, keys: Sequence[str]) -> tuple[str, ...]:
        prints = tuple(fingerprint(key) for key in keys)
        wanted = list(dict.fromkeys([*(key.strip() for key in keys), self._public_key]))
        text = "".join(f"{key}\n" for key in wanted)
        try:
            answer = await self._run(host, _DELIVER, text, limit_seconds=_DELIVER_SECONDS)
        except TimeoutError as error:
            raise Failure("ssh_too_slow", f"{_at(host)}: the keys were not written in time.", "Retry.") from error
        there = [line for line in answer.stdout.splitlines() if line.strip()]
        if answer.exit_code != 0 or there != wanted:
            raise Failure(
                "keys_not_confirmed",
                f"{_at(host)}: the keys that were read back are not those that were written. {answer.stderr[:200]}",
                "Look at the node's ~/.ssh.",
            )
        return prints

    async def run(self, host: Host, command: str, *, limit_seconds: float) -> CommandOutput:
        return await self._run(host, command, "", limit_seconds=limit_seconds)

    async def _run(self, host: Host, command: str, text: str, *, limit_seconds: float) -> CommandOutput:
        async with asyncio.timeout(limit_seconds), await self._connect(host) as connection:
            answer = await connection.run(command, input=text, encoding="utf-8", errors="replace", check=False)
        return CommandOutput(
            exit_code=answer.exit_status,
            stdout=str(answer.stdout or "")[:MAX_OUTPUT_CHARACTERS],
            stderr=str(answer.stderr or "")[:MAX_OUTPUT_CHARACTERS],
        )

    async def _connect(self, host: Host) -> asyncssh.SSHClientConnection:
        if not host.ssh_host_key.strip():
            raise Failure("host_key_unknown", f"{_at(host)}: its host key is not known; nobody logs in.", "Deploy it.")
        try:
            return await asyncssh.connect(
                host.address,
                host.ssh_port,
                username=self._user,
                client_keys=[str(self._key_file)],
                known_hosts=([asyncssh.import_public_key(host.ssh_host_key)], [], []),
                server_host_key_algs=[host.ssh_host_key.split()[0]],
                connect_timeout=_CONNECT_SECONDS,
                login_timeout=_CONNECT_SECONDS,
                agent_path=None,
                config=None,
            )
        except Exception as error:
            raise _failure(host, error) from error


def _failure(host: Host, error: Exception) -> SiteError | Exception:
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return Failure(
                "host_key_differs",
                f"{_at(host)}: the host shows another key than the deployed one.",
                "Do not log in; find out which host answers there.",
            )
        case asyncssh.PermissionDenied():
            return Failure("ssh_denied", f"{_at(host)}: the host does not admit the management key.", "Deploy it anew.")
        case asyncssh.KeyImportError():
            return Failure("host_key_unknown", f"{_at(host)}: {host.ssh_host_key[:40]!r} is not a host key.")
        case OSError() | asyncssh.Error():
            return Failure("ssh_unreachable", f"{_at(host)}: {error}", "Look whether the node is on and has booted.")
        case _:
            return error


def _at(host: Host) -> str:
    return f"{host.address}:{host.ssh_port}"
