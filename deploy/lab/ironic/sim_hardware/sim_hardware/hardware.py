"""The hardware type `sim-redfish`: Ironic's Redfish hardware with the lab's deploy and BIOS interfaces."""

from __future__ import annotations

from typing import Any

from ironic.conf import CONF
from ironic.drivers import redfish
from ironic.drivers.modules import fake
from ironic.drivers.modules.redfish import utils as redfish_utils
from oslo_config import cfg

from sim_hardware.bios import SimRedfishBIOS
from sim_hardware.deploy import SimDeploy
from sim_hardware.session_keys import remember

# Ironic looks for `verify_ca` in a configuration group named after the hardware type, and fails where
# there is no such group (ironic.drivers.utils.get_verify_ca, Ironic 39).
CONF.register_opt(cfg.BoolOpt("verify_ca", default=True), group="sim-redfish")
remember(redfish_utils)


class SimRedfishHardware(redfish.RedfishHardware):
    """Real Redfish power, management, inspection, BIOS and firmware; simulated deploy and boot media."""

    @property
    def supported_deploy_interfaces(self) -> list[Any]:
        """The lab's own deploy interface only: every other one needs a ramdisk."""
        return [SimDeploy]

    @property
    def supported_boot_interfaces(self) -> list[Any]:
        """No boot media are needed, since nothing is booted but the local disk."""
        return [fake.FakeBoot]

    @property
    def supported_bios_interfaces(self) -> list[Any]:
        """The lab's BIOS interface first, so that it is the default."""
        return [SimRedfishBIOS, *super().supported_bios_interfaces]
