"""Start and stop each machine's host as its power and its installed system say.

A host runs while the machine's power rail says On and its boot drive holds a system; it is looked at every
`LOOK_EVERY_SECONDS`. Losing power ends every process on the machine and every connection to it at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from deploy.lab.fleet import Fleet, Machine
from deploy.lab.hosts.boot import HostFolder, boot
from deploy.lab.hosts.installed_system import InstalledSystem, UnreadableSystem, read_installed_system
from deploy.lab.hosts.residents import end_residents
from deploy.lab.hosts.ssh_server import Host, Listener
from deploy.lab.ironic.whole_file import write_whole

LOOK_EVERY_SECONDS = 0.2
LOG = logging.getLogger(__name__)


@dataclass
class Supervised:
    """One machine: what runs on it now, if anything."""

    machine: Machine
    folder: HostFolder
    rail: Path
    port: int
    running: InstalledSystem | None = None
    listener: Listener = field(default_factory=Listener)
    complained: str = field(default="")

    def wanted(self) -> InstalledSystem | None:
        """The system that should run now; None when power is off, unknown, or nothing bootable is installed."""
        try:
            if self.rail.read_text() != "On":
                return None
            return read_installed_system(self.folder.installed_system)
        except (OSError, UnreadableSystem) as error:
            if not isinstance(error, FileNotFoundError):
                self.complain(error)
            return None

    def complain(self, error: Exception) -> None:
        """Log a problem once, not five times a second."""
        if self.complained != str(error):
            LOG.warning("%s: %s", self.machine.name, error)
            self.complained = str(error)


class Supervisor:
    """All machines of a fleet. `lab` is the lab's folder; ports are counted from `base_port`."""

    def __init__(self, fleet: Fleet, lab: Path, base_port: int) -> None:
        self._fleet = fleet
        self._lab = lab
        self._machines = [
            Supervised(
                machine,
                HostFolder(lab / "hosts" / str(machine.bmc_system_uuid)),
                lab / "bmc" / "power" / str(machine.bmc_system_uuid),
                base_port + machine.ssh_port_offset,
            )
            for machine in fleet.machines
        ]

    async def run(self, ready_file: Path, pid: int) -> None:
        """Look until cancelled; `ready_file` gets our pid after the first look."""
        for supervised in self._machines:
            end_residents(str(supervised.machine.bmc_system_uuid), self._lab)
        try:
            await self._look()
            write_whole(ready_file, str(pid))
            while True:
                await asyncio.sleep(LOOK_EVERY_SECONDS)
                await self._look()
        finally:
            for supervised in self._machines:
                self._power_off(supervised)

    async def _look(self) -> None:
        for supervised in self._machines:
            wanted = supervised.wanted()
            running = supervised.running
            if running is not None and (wanted is None or wanted.deployment_id != running.deployment_id):
                self._power_off(supervised)
            if wanted is not None and supervised.running is None:
                await self._power_on(supervised, wanted)

    async def _power_on(self, supervised: Supervised, system: InstalledSystem) -> None:
        machine = supervised.machine
        fault_file = self._lab / "ironic" / "faults" / f"{machine.name}.json"
        try:
            boot(supervised.folder, system, machine, self._fleet.device_type(machine.device_type), fault_file)
            host = Host(supervised.folder, system, str(machine.bmc_system_uuid), self._lab)
            await supervised.listener.open(host, supervised.port)
        except OSError as error:
            supervised.complain(error)
            return
        supervised.running, supervised.complained = system, ""
        LOG.info("%s: up as %s on port %d", machine.name, system.hostname, supervised.port)

    def _power_off(self, supervised: Supervised) -> None:
        supervised.listener.close()
        if supervised.running is not None:
            LOG.info("%s: down", supervised.machine.name)
        supervised.running = None
        end_residents(str(supervised.machine.bmc_system_uuid), self._lab)
