"""The `sim-redfish` BIOS interface: Ironic's Redfish BIOS code without the reboot into a ramdisk.

Stock `redfish` reboots the machine after a BIOS change and waits for a ramdisk's heartbeat, which the lab
has not got. The emulated BMC applies BIOS changes at once, so the step can end when the BMC has answered.
"""

from __future__ import annotations

from typing import Any

from ironic.common import exception
from ironic.drivers.modules.redfish import bios

from sim_hardware.machine import InjectedFault, machine_of


class SimRedfishBIOS(bios.RedfishBIOS):
    """Clean steps `factory_reset` and `apply_configuration`, sent to the BMC by real Redfish."""

    def post_reset(self, task: Any) -> None:
        """End the factory reset without a reboot."""
        self._finish(task, "factory_reset")

    def post_configuration(self, task: Any, settings: Any) -> None:
        """End the change of settings without a reboot."""
        self._finish(task, "apply_configuration")

    def _finish(self, task: Any, step: str) -> None:
        self._clear_reboot_requested(task)
        try:
            machine_of(task.node).pass_through(step)
        except InjectedFault as error:
            raise exception.RedfishError(error=str(error)) from error
