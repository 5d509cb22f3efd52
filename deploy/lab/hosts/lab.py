"""Start and stop the hosts' one process, and say at which address each machine answers.

The process needs nothing from Ironic or the BMCs but their files (what is installed, whether power is on), so
that it can be started before, after or without them: machines simply stay down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deploy.lab.fleet import load_fleet
from deploy.lab.interpreters import quiet
from deploy.lab.ironic.whole_file import write_whole
from libs.runtime.processes import Process

REPOSITORY = Path(__file__).resolve().parents[3]


class HostAddress(NamedTuple):
    """Where a machine's SSH server listens while the machine runs."""

    host: str
    port: int


@dataclass(frozen=True)
class HostsLab:
    """The hosts of one lab: state below `var`/lab/hosts, SSH on 127.0.0.1 from `base_port` on, a port per machine."""

    var: Path
    base_port: int

    @property
    def folder(self) -> Path:
        """One folder per machine, named by its system UUID: `disk`, `active.json`, `host_key`."""
        return self.var / "lab" / "hosts"

    @property
    def addresses_file(self) -> Path:
        """{machine name: {host, port}}: what a site's configuration would hold."""
        return self.folder / "addresses.json"

    def addresses(self) -> dict[str, HostAddress]:
        """Machine name → address, whether the machine runs or not."""
        return {
            machine.name: HostAddress("127.0.0.1", self.base_port + machine.ssh_port_offset)
            for machine in load_fleet().machines
        }

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Nothing to install beyond the project's own environment; writes the addresses."""
        self._write_addresses()

    def start(self) -> None:
        """Start, and wait until the machines that should run have been started. Harmless when it runs."""
        self._write_addresses()
        for process in self.processes():
            process.start()

    def stop(self) -> None:
        """Stop all hosts, as a power cut would; their disks stay."""
        for process in self.processes():
            process.stop()

    def processes(self) -> tuple[Process, ...]:
        """The one process that plays every host."""
        argv = [sys.executable, "-m", "deploy.lab.hosts", "--lab", str(self.var.resolve() / "lab")]
        process = Process(
            name="lab-hosts",
            argv=[*argv, "--base-port", str(self.base_port)],
            var=self.var,
            ready=lambda: self._first_look_done(process),
            cwd=REPOSITORY,
        )
        return (process,)

    def _first_look_done(self, process: Process) -> bool:
        try:
            return int((self.folder / "ready").read_text()) == process.pid()
        except (FileNotFoundError, ValueError):
            return False

    def _write_addresses(self) -> None:
        addresses = {name: address._asdict() for name, address in self.addresses().items()}
        write_whole(self.addresses_file, json.dumps(addresses, indent=1))
