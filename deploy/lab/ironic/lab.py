"""Install, start and stop the lab's Ironic, and say where it is and how to sign in.

Invariant: the API user's password is made once and kept; the database schema is complete before the first start
and is looked at, not assumed, before every later one. The database itself is somebody else's: its URL is given.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx

from deploy.lab.interpreters import quiet, run_tool
from deploy.lab.ironic.configuration import ironic_conf
from deploy.lab.ironic.venv import REQUIREMENTS, IronicVenv
from deploy.lab.ironic.whole_file import write_whole
from deploy.lab.netbox.leftovers import end_leftovers
from libs.runtime.processes import Process

API_USER = "slipway-satellite"
HARDWARE_TYPE = "sim-redfish"
MIGRATE_LIMIT_SECONDS = 180.0  # 7 s on an idle machine with two cores.
READY_WITHIN_SECONDS = 300.0  # 3 s on an idle machine with two cores, half a minute while everything else starts.
# The password has 144 random bits, so the slow hash that protects weak passwords would only slow down
# every request; 4 is the least that bcrypt allows.
_BCRYPT_ROUNDS = 4


@dataclass(frozen=True)
class IronicLab:
    """One Ironic: state below `var`/lab/ironic, API on 127.0.0.1:`port`, tables in `database_url`.

    `database_url` is postgresql://user:password@host:port/name of an existing database. `software` is the `var`
    folder that the programs are installed below, when it is another one.
    """

    var: Path
    port: int
    database_url: str
    software: Path | None = None

    @property
    def folder(self) -> Path:
        """Where Ironic keeps everything but its tables."""
        return self.var / "lab" / "ironic"

    @property
    def url(self) -> str:
        """The API's address; also the endpoint override for openstacksdk."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials_file(self) -> Path:
        """{username, password}, readable by its owner only."""
        return self.folder / "credentials.json"

    @property
    def credentials(self) -> dict[str, str]:
        """{username, password} of the API. Raises FileNotFoundError before the first `install`."""
        kept: dict[str, str] = json.loads(self.credentials_file.read_text())
        return kept

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Install Ironic, make its password and bring its schema up to date; raises StartError naming what failed."""
        self._venv.install(on_progress)
        self._write_files()
        if not self._schema_complete():
            on_progress("Creating Ironic's tables")
            self._migrate()

    def start(self) -> None:
        """Start, and wait until the API answers and the conductor has its drivers. Harmless when it runs."""
        self._write_files()
        if not self._schema_complete():
            self._migrate()
        for process in self.processes():
            # After a kill, Ironic's worker holds the port until it has noticed that its parent is gone.
            end_leftovers(process, title=b"ironic: ")
            process.start()

    def stop(self) -> None:
        """Stop Ironic; steps that run are finished first, for at most a few seconds."""
        for process in self.processes():
            process.stop()

    def processes(self) -> tuple[Process, ...]:
        """Ironic's one process: API and conductor."""
        return (
            Process(
                name="lab-ironic",
                argv=[str(self._venv.folder / "bin" / "ironic"), "--config-file", str(self._configuration)],
                var=self.var,
                ready=self._ready,
                env={"SLIPWAY_LAB_FOLDER": str(self.var / "lab")},
                ports=(self.port,),
                ready_within_seconds=READY_WITHIN_SECONDS,
            ),
        )

    @property
    def _venv(self) -> IronicVenv:
        return IronicVenv(self.software or self.var)

    @property
    def _configuration(self) -> Path:
        return self.folder / "ironic.conf"

    @property
    def _schema_marker(self) -> Path:
        return self.folder / ".schema"

    def _ready(self) -> bool:
        signed_in = (self.credentials["username"], self.credentials["password"])
        try:
            answer = httpx.get(f"{self.url}/v1/drivers", auth=signed_in, timeout=2.0)
            return answer.status_code == 200 and any(
                driver["name"] == HARDWARE_TYPE and driver["hosts"] for driver in answer.json()["drivers"]
            )
        except (httpx.HTTPError, ValueError, KeyError):
            return False

    def _write_files(self) -> None:
        for name in ("state", "state/http", "state/images", "faults"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = ironic_conf(self.folder, self.port, self._ironic_database_url())
        write_whole(self._configuration, text, mode=0o600)
        password_file = self.folder / "htpasswd"
        if not self.credentials_file.exists() or not password_file.exists():
            password = secrets.token_urlsafe(18)
            write_whole(password_file, f"{API_USER}:{self._bcrypt(password)}\n", mode=0o600)
            write_whole(self.credentials_file, json.dumps({"username": API_USER, "password": password}), mode=0o600)

    def _bcrypt(self, password: str) -> str:
        # bcrypt is a dependency of Ironic, not of ours. The password goes in by stdin: arguments can be seen by all.
        hashed = f"bcrypt.hashpw(sys.stdin.buffer.read(), bcrypt.gensalt({_BCRYPT_ROUNDS}))"
        program = f"import bcrypt, sys; print({hashed}.decode())"
        done = subprocess.run(
            [str(self._venv.python), "-c", program],
            input=password,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _ironic_database_url(self) -> str:
        # `$` starts a substitution in Ironic's configuration files.
        return "postgresql+psycopg2://" + self.database_url.partition("://")[2].replace("$", "$$")

    def _schema_identity(self) -> str:
        return hashlib.sha256(REQUIREMENTS.read_bytes() + self.database_url.encode()).hexdigest()

    def _schema_complete(self) -> bool:
        """True when this version's tables were made by us and the database still has them."""
        if not self._schema_marker.exists() or self._schema_marker.read_text() != self._schema_identity():
            return False
        return asyncio.run(_has_tables(self.database_url))

    def _migrate(self) -> None:
        run_tool(
            [str(self._venv.folder / "bin" / "ironic-dbsync"), "--config-file", str(self._configuration), "upgrade"],
            "creating Ironic's tables (is the database of the given URL there and writable?)",
            MIGRATE_LIMIT_SECONDS,
            env={"SLIPWAY_LAB_FOLDER": str(self.var / "lab")},
        )
        self._schema_marker.write_text(self._schema_identity())


async def _has_tables(database_url: str) -> bool:
    connection = await asyncpg.connect("postgresql://" + database_url.partition("://")[2], timeout=10)
    try:
        return await connection.fetchval("SELECT to_regclass('public.nodes')") is not None
    finally:
        await connection.close()
