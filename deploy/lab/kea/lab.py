"""Start and stop the lab's Kea: a DHCPv4 server without interfaces, and its control agent.

It listens on no network, so it needs no root and disturbs nobody; everything but handing out leases to clients is real.
Its configuration file and its leases outlive a restart, as in production.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deploy.lab.interpreters import quiet
from deploy.lab.ironic.whole_file import write_whole
from deploy.lab.kea.packages import KeaPrograms, install
from libs.runtime.processes import Process, StartError

READY_WITHIN_SECONDS = 60.0  # 1 s on an idle machine with two cores.
_LONGEST_SOCKET = 100  # sun_path holds 108 bytes.


@dataclass(frozen=True)
class KeaLab:
    """One Kea: state below `var`/lab/kea, control agent on 127.0.0.1:`port`, `subnets` as CIDR → reservations.

    `interfaces` are what the server listens on ("eth1"); they need root. `software` is the `var` folder that the
    programs are installed below, when it is another one.
    """

    var: Path
    port: int
    subnets: Sequence[dict[str, Any]]
    interfaces: tuple[str, ...] = ()
    software: Path | None = None
    lease_commands: bool = True

    @property
    def folder(self) -> Path:
        return self.var / "lab" / "kea"

    @property
    def url(self) -> str:
        """The control agent's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def configuration(self) -> Path:
        """The file that Kea starts from, and writes at config-write."""
        return self.folder / "dhcp4.json"

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Get the programs and write the first configuration; raises StartError when they can't be had."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if len(str(self._socket)) > _LONGEST_SOCKET:
            raise StartError(f"{self._socket}: the path is too long for a socket; choose a shorter folder")
        programs = install(self.software or self.var, on_progress)
        if not self.configuration.exists():
            write_whole(self.configuration, json.dumps(self._first(programs), indent=1), mode=0o600)
        write_whole(self.folder / "agent.json", json.dumps(self._agent(), indent=1))

    def start(self) -> None:
        """Start, and wait until the agent answers for the server. Harmless when they run."""
        for process in self.processes():
            process.start()

    def stop(self) -> None:
        for process in reversed(self.processes()):
            process.stop()

    def processes(self) -> tuple[Process, ...]:
        """Server and agent, in starting order."""
        programs = install(self.software or self.var, quiet)
        env = {"KEA_PIDFILE_DIR": str(self.folder), "KEA_LOCKFILE_DIR": str(self.folder)}
        if programs.libraries:
            env["LD_LIBRARY_PATH"] = programs.libraries
        server = Process(
            name="lab-kea-dhcp4",
            argv=[str(programs.dhcp4), "-c", str(self.configuration)],
            var=self.var,
            ready=self._socket.exists,
            env=env,
            ready_within_seconds=READY_WITHIN_SECONDS,
        )
        agent = Process(
            name="lab-kea-agent",
            argv=[str(programs.agent), "-c", str(self.folder / "agent.json")],
            var=self.var,
            ready=self._answers,
            env=env,
            ports=(self.port,),
            ready_within_seconds=READY_WITHIN_SECONDS,
        )
        return server, agent

    @property
    def _socket(self) -> Path:
        return self.folder / "kea4.sock"

    def _answers(self) -> bool:
        try:
            answer = httpx.post(self.url, json={"command": "status-get", "service": ["dhcp4"]}, trust_env=False)
            return bool(answer.json()[0]["result"] == 0)
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return False

    def _first(self, programs: KeaPrograms) -> dict[str, Any]:
        hooks = [{"library": str(programs.lease_hook)}] if self.lease_commands else []
        return {
            "Dhcp4": {
                "interfaces-config": {"interfaces": list(self.interfaces)},
                "control-socket": {"socket-type": "unix", "socket-name": str(self._socket)},
                "lease-database": {"type": "memfile", "name": str(self.folder / "leases4.csv"), "lfc-interval": 0},
                "hooks-libraries": hooks,
                "valid-lifetime": 600,
                "subnet4": list(self.subnets),
                "loggers": [_logger("kea-dhcp4")],
            }
        }

    def _agent(self) -> dict[str, Any]:
        socket = {"socket-type": "unix", "socket-name": str(self._socket)}
        return {
            "Control-agent": {
                "http-host": "127.0.0.1",
                "http-port": self.port,
                "control-sockets": {"dhcp4": socket},
                "loggers": [_logger("kea-ctrl-agent")],
            }
        }


def _logger(name: str) -> dict[str, Any]:
    return {"name": name, "output_options": [{"output": "stdout"}], "severity": "INFO"}
