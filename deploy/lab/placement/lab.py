"""Install, start and stop Placement. It makes its tables by itself at its start.

Its sign-in is the one that it has for tests and stand-alone use (`noauth2`): the token is the user's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from deploy.lab.interpreters import make_venv, one_at_a_time, quiet, venv_is_complete
from deploy.lab.ironic.whole_file import write_whole
from deploy.lab.netbox.leftovers import end_leftovers
from libs.runtime.processes import Process, require_free_disk

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TOKEN = "admin"  # What noauth2 takes for a user with every right.
NEEDED_BYTES = 300_000_000  # Its environment takes 120 MB.
_CONFIGURATION = """\
# Written by deploy/lab/placement/lab.py at every start; changes made here are lost.
[DEFAULT]
debug = False
[api]
auth_strategy = noauth2
[placement_database]
connection = {connection}
max_pool_size = 20
sync_on_startup = True
[oslo_policy]
enforce_scope = False
"""


@dataclass(frozen=True)
class PlacementLab:
    """API on 127.0.0.1:`port`, tables in `database_url` (postgresql://user:password@host:port/name, existing).

    `software` is the `var` folder that the programs are installed below, when it is another one.
    """

    var: Path
    port: int
    database_url: str
    software: Path | None = None

    @property
    def folder(self) -> Path:
        return self.var / "lab" / "placement"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Install Placement. Raises StartError with the installer's words when it fails."""
        with one_at_a_time(self._venv.with_name("placement-venv.lock")):
            if not venv_is_complete(self._venv, REQUIREMENTS):
                require_free_disk(self._venv.parent, NEEDED_BYTES)
                make_venv(self._venv, Path(sys.executable), REQUIREMENTS, on_progress)

    def start(self) -> None:
        """Start and wait until it answers. Harmless when it runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # `$` starts a substitution in OpenStack's configuration files.
        connection = "postgresql+psycopg2://" + self.database_url.partition("://")[2].replace("$", "$$")
        write_whole(self.folder / "placement.conf", _CONFIGURATION.format(connection=connection), mode=0o600)
        end_leftovers(self.process)
        self.process.start()

    def stop(self) -> None:
        self.process.stop()

    @property
    def process(self) -> Process:
        return Process(
            name="lab-placement",
            argv=[
                str(self._venv / "bin" / "gunicorn"),
                *("--bind", f"127.0.0.1:{self.port}", "--workers", "1", "--threads", "4", "--no-control-socket"),
                "placement.wsgi:init_application()",
            ],
            var=self.var,
            ready=self._answers,
            env={"OS_PLACEMENT_CONFIG_DIR": str(self.folder), "PYTHONWARNINGS": "ignore"},
            ports=(self.port,),
            ready_within_seconds=180.0,  # 4 s on an idle machine with two cores.
        )

    @property
    def _venv(self) -> Path:
        return (self.software or self.var) / "lab" / "placement-venv"

    def _answers(self) -> bool:
        try:
            answer = httpx.get(f"{self.url}/resource_providers", headers={"X-Auth-Token": TOKEN}, timeout=2.0)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200
