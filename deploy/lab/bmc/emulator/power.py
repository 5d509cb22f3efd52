"""Power, boot and BIOS state of the emulated systems: sushy-tools' fake driver with real systems' manners.

State is kept in the emulator's state folder and survives a kill. Beside it, `power/<system uuid>` holds
"On" or "Off": it is the machine's power rail, which the host on the machine feels whether or not its BMC
is up. The stock driver waits 1 to 11 s at random; here a change takes `POWER_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from sushy_tools import error
from sushy_tools.emulator.resources.systems import fakedriver

# A real BMC answers 204 before the power has changed; long enough to catch a client that believes the answer.
POWER_SECONDS = 0.2
BIOS_DEFAULTS = {
    "BootMode": "Uefi",
    "SriovGlobalEnable": "Enabled",
    "LogicalProc": "Enabled",
    "NumaNodesPerSocket": "1",
}

_OFF = {"ForceOff", "GracefulShutdown"}
_ON = {"On", "ForceOn"}
_RESTART = {"ForceRestart", "GracefulRestart"}


class LabSystems(fakedriver.FakeDriver):
    """The systems by UUID; `lab` is set once by the server before sushy-tools makes the instance."""

    lab: Any

    def __init__(self) -> None:
        # The stock driver reads, changes and writes a system's record in steps; requests run in threads.
        self._lock = threading.RLock()
        super().__init__()
        for identity in self.systems:
            self._settle(identity)

    def _get(self, identity: str) -> dict[str, Any]:
        with self._lock:
            return dict(super()._get(identity))

    def _update(self, system: str | dict[str, Any], **changes: Any) -> None:
        with self._lock:
            super()._update(system, **changes)

    def _settle(self, identity: str) -> None:
        """Apply a change of power that is due, and put the rail in step with the state."""
        with self._lock:
            rail: Path = self.lab.folder / "power" / identity
            state = self._get(identity)["power_state"]
            if not rail.exists() or rail.read_text() != state:
                partial = rail.with_name(f".{identity}.partial")
                partial.write_text(state)
                partial.replace(rail)

    def get_power_state(self, identity: str) -> str:
        """ "On" or "Off"."""
        self._settle(self.uuid(identity))
        return str(self._get(identity)["power_state"])

    def set_power_state(self, identity: str, state: str) -> None:
        """Start a change of power; it is done `POWER_SECONDS` later. Raises NotSupportedError for an unknown one."""
        if state == "Nmi":
            return
        if state not in _ON | _OFF | _RESTART:
            raise error.NotSupportedError(f"Power state {state} is not supported")
        if self.lab.faults(identity).get("bmc", {}).get("power_stuck"):
            return
        uuid = self.uuid(identity)
        target = "Off" if state in _OFF else "On"
        if state in _RESTART:
            self._update(uuid, power_state="Off")
            self._settle(uuid)
        pending = {"power_state": target, "apply_time": time.time() + POWER_SECONDS}
        self._update(uuid, pending_power=pending)
        threading.Timer(POWER_SECONDS + 0.01, self._settle, (uuid,)).start()

    def get_bios(self, identity: str) -> dict[str, str]:
        """The BIOS attributes now in force."""
        return dict(self._get(identity).get("bios") or BIOS_DEFAULTS)

    def set_bios(self, identity: str, attributes: dict[str, str]) -> None:
        """Change BIOS attributes, at once."""
        self._update(identity, bios={**self.get_bios(identity), **attributes})

    def reset_bios(self, identity: str) -> None:
        """Back to the defaults, at once."""
        self._update(identity, bios=None)

    def get_versions(self, identity: str) -> dict[str, str]:
        """The BIOS version."""
        return {"BiosVersion": self.lab.facts[self.uuid(identity)]["firmware"]["bios"]}

    def get_processors(self, identity: str) -> list[dict[str, str]]:
        """Only says that there are processors; the server answers for each itself."""
        return [{"id": "CPU.Socket.1"}]

    def get_total_cpus(self, identity: str) -> int:
        """Sockets, as ProcessorSummary.Count means."""
        return int(self.lab.facts[self.uuid(identity)]["cpu_sockets"])

    def get_total_memory(self, identity: str) -> int:
        """GiB."""
        return int(self.lab.facts[self.uuid(identity)]["memory_gib"])

    def find_or_create_storage_volume(self, data: dict[str, str]) -> str:
        """Volumes exist by name only."""
        return data["Id"]
