"""Start and stop the emulated BMCs, and say where each one is and how to sign in.

Invariant: passwords and power states outlive every restart; a changed `fleet.yaml` is picked up at the next
start. The emulator shares Ironic's environment, so that one installation serves both.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.bmc.facts import fleet_facts
from deploy.lab.fleet import Fleet, load_fleet
from deploy.lab.interpreters import quiet
from deploy.lab.ironic.venv import IronicVenv
from deploy.lab.ironic.whole_file import write_whole
from libs.runtime.processes import Process, http_ready

SERVE = Path(__file__).with_name("emulator") / "serve.py"
# The user that vendors' machines leave the factory with differs; one name keeps the lab's secrets uniform.
BMC_USER = "slipway"
READY_WITHIN_SECONDS = 120.0  # 1 s on an idle machine with two cores.


@dataclass(frozen=True)
class BmcLab:
    """The BMCs of one lab: state below `var`/lab/bmc, Redfish on 127.0.0.1:`port`.

    `software` is the `var` folder that the programs are installed below, when it is another one.
    """

    var: Path
    port: int
    software: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the BMCs keep everything."""
        return self.var / "lab" / "bmc"

    @property
    def url(self) -> str:
        """The Redfish service that stands for all BMCs."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials_file(self) -> Path:
        """{system uuid: {machine, bmc_ip, username, password}}, readable by its owner only."""
        return self.folder / "credentials.json"

    @property
    def endpoints_file(self) -> Path:
        """{bmc_ip: address of the system's Redfish resource}: what a site's configuration would hold."""
        return self.folder / "endpoints.json"

    @property
    def credentials(self) -> dict[str, dict[str, str]]:
        """Machine name → {username, password}. Raises FileNotFoundError before the first `install`."""
        kept: dict[str, dict[str, str]] = json.loads(self.credentials_file.read_text())
        return {
            entry["machine"]: {"username": entry["username"], "password": entry["password"]} for entry in kept.values()
        }

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Install the emulator and write the fleet's facts; raises StartError when it cannot be installed."""
        self._venv.install(on_progress)
        self._write_facts(load_fleet())

    def start(self) -> None:
        """Start, and wait until the service answers. Harmless when it runs."""
        self._write_facts(load_fleet())
        for process in self.processes():
            process.start()

    def stop(self) -> None:
        """Stop; power states are kept."""
        for process in self.processes():
            process.stop()

    def processes(self) -> tuple[Process, ...]:
        """The one process of the emulator."""
        return (
            Process(
                name="lab-bmc",
                argv=[
                    str(self._venv.python),
                    str(SERVE),
                    "--lab",
                    str(self.var / "lab"),
                    "--port",
                    str(self.port),
                ],
                var=self.var,
                ready=http_ready(f"{self.url}/redfish/v1/"),
                ports=(self.port,),
                ready_within_seconds=READY_WITHIN_SECONDS,
            ),
        )

    @property
    def _venv(self) -> IronicVenv:
        return IronicVenv(self.software or self.var)

    def _write_facts(self, fleet: Fleet) -> None:
        systems = fleet_facts(fleet)
        write_whole(self.folder / "systems.json", json.dumps(systems, indent=1))
        write_whole(
            self.folder / "machines.json", json.dumps({facts["uuid"]: facts["name"] for facts in systems}, indent=1)
        )
        addresses = {facts["bmc_ip"]: f"{self.url}/redfish/v1/Systems/{facts['uuid']}" for facts in systems}
        write_whole(self.endpoints_file, json.dumps(addresses, indent=1))
        try:
            kept: dict[str, dict[str, str]] = json.loads(self.credentials_file.read_text())
        except FileNotFoundError:
            kept = {}
        credentials = {
            facts["uuid"]: {
                "machine": facts["name"],
                "bmc_ip": facts["bmc_ip"],
                "username": BMC_USER,
                "password": kept.get(facts["uuid"], {}).get("password") or secrets.token_urlsafe(18),
            }
            for facts in systems
        }
        write_whole(self.credentials_file, json.dumps(credentials, indent=1), mode=0o600)
