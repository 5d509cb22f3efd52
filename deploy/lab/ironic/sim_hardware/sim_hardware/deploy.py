"""The `sim` deploy interface: installs, uninstalls and erases a lab machine's folder as a ramdisk would its drives.

The names, order and meaning of the steps are those of Ironic's own agent deploy (`deploy`, `write_image`,
`boot_instance`; clean step `erase_devices`), so that a client can't tell them apart. Undeploying leaves
the drives' contents alone: only `erase_devices` removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ironic.common import exception, states
from ironic.conductor import utils as manager_utils
from ironic.drivers import base

from sim_hardware.machine import InjectedFault, Machine, NotALabMachine, machine_of


def _guarded(error: Callable[[str], Exception], task: Any, step: str) -> Machine:
    """The task's machine after `step`'s time has passed; what goes wrong is raised as `error(reason)`."""
    try:
        machine = machine_of(task.node)
        machine.pass_through(step)
    except (InjectedFault, NotALabMachine) as reason:
        raise error(str(reason)) from reason
    return machine


def _deploy_failure(reason: str) -> Exception:
    return exception.InstanceDeployFailure(reason)


def _installed_system(node: Any) -> dict[str, Any]:
    """What a boot finds on the drive: image and config drive as handed over, never interpreted here."""
    configdrive = node.instance_info.get("configdrive") or {}
    if not isinstance(configdrive, dict):
        raise exception.InstanceDeployFailure(
            "the lab reads config drives given as JSON ({meta_data, user_data, network_data}), not as an ISO image"
        )
    return {
        "deployment_id": str(uuid.uuid4()),
        "node_uuid": node.uuid,
        "node_name": node.name,
        "instance_uuid": node.instance_uuid,
        "image_source": node.instance_info.get("image_source"),
        "image_checksum": node.instance_info.get("image_checksum") or node.instance_info.get("image_os_hash_value"),
        "meta_data": configdrive.get("meta_data") or {},
        "user_data": configdrive.get("user_data"),
        "network_data": configdrive.get("network_data"),
        "deployed_at": datetime.now(UTC).isoformat(),
    }


class SimDeploy(base.DeployInterface):
    """Deploy, undeploy and erase on a machine's folder; power goes through the node's real power interface."""

    def get_properties(self) -> dict[str, str]:
        """No properties beyond the power interface's."""
        return {}

    def validate(self, task: Any) -> None:
        """Raise InvalidParameterValue for a node that is no lab machine, MissingParameterValue without an image."""
        try:
            machine_of(task.node)
        except NotALabMachine as error:
            raise exception.InvalidParameterValue(str(error)) from error
        if not task.node.instance_info.get("image_source"):
            raise exception.MissingParameterValue(
                f"Cannot deploy node {task.node.uuid}: instance_info['image_source'] is missing"
            )

    def prepare(self, task: Any) -> None:
        """Nothing to prepare: there is no ramdisk."""

    def clean_up(self, task: Any) -> None:
        """Nothing to clean up: there is no ramdisk."""

    def take_over(self, task: Any) -> None:
        """A conductor that starts again has nothing to rebuild."""

    @base.deploy_step(priority=100)
    def deploy(self, task: Any) -> None:
        """Switch the machine off and make it forget what it booted before."""
        machine = _guarded(_deploy_failure, task, "deploy")
        manager_utils.node_power_action(task, states.POWER_OFF)
        machine.uninstall()

    @base.deploy_step(priority=80)
    def write_image(self, task: Any) -> None:
        """Write the image and the config drive."""
        machine = _guarded(_deploy_failure, task, "write_image")
        machine.record_deploy(task.node.instance_uuid)
        machine.install(_installed_system(task.node))

    @base.deploy_step(priority=20)
    def boot_instance(self, task: Any) -> None:
        """Switch the machine on, to its local disk."""
        _guarded(_deploy_failure, task, "boot_instance")
        manager_utils.node_power_action(task, states.POWER_ON)

    def tear_down(self, task: Any) -> str:
        """Switch the machine off and take away what boots; the drives' contents stay."""
        machine = _guarded(_deploy_failure, task, "tear_down")
        manager_utils.node_power_action(task, states.POWER_OFF)
        machine.uninstall()
        return str(states.DELETED)

    def prepare_cleaning(self, task: Any) -> None:
        """No ramdisk to boot: the machine's power stays as it is."""

    def tear_down_cleaning(self, task: Any) -> None:
        """Nothing was started for the cleaning."""

    @base.clean_step(priority=10)
    def erase_devices(self, task: Any) -> None:
        """Empty the machine's drives, look whether they are empty, and keep the evidence on the node.

        The evidence is driver_internal_info['last_erase'] = {finished_at (UTC, ISO 8601), files_removed,
        bytes_removed, verified_empty}. Raises NodeCleaningFailure when anything is left.
        """
        node = task.node

        def failure(reason: str) -> Exception:
            return exception.NodeCleaningFailure(node=node.uuid, reason=reason)

        machine = _guarded(failure, task, "erase_devices")
        try:
            erased = machine.erase()
        except OSError as error:
            raise failure(str(error)) from error
        node.set_driver_internal_info(
            "last_erase",
            {
                "finished_at": datetime.now(UTC).isoformat(),
                "files_removed": erased.files_removed,
                "bytes_removed": erased.bytes_removed,
                "verified_empty": True,
            },
        )
        node.save()
