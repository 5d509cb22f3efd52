"""The physical machine behind an Ironic node: its folder on this computer and its injected faults.

A machine is known by its BMC's system UUID, as hardware is, so that deleting an Ironic node and making
another one does not make the disks forget what is on them. The lab tells where things are by two
environment variables; faults are read anew at every step so that they can be injected while Ironic runs.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

# A step with no delay at all would hide races between a client and Ironic; a third of a second is long
# enough to be seen by a poller and short enough for a test.
DEFAULT_STEP_SECONDS = 0.3
_POLL_SECONDS = 0.05


class NotALabMachine(ValueError):
    """The node's Redfish address names no machine of this lab; the message says which node and what it has."""


class InjectedFault(RuntimeError):
    """A fault file asked this step to fail; the message is the one the file gives."""


@dataclass(frozen=True)
class Erased:
    """What an erasure removed: counts are of regular files before it."""

    files_removed: int
    bytes_removed: int


@dataclass(frozen=True)
class Machine:
    """One machine: `folder` holds `disk/` (its drives), `active.json` (the installed system), `host_key`."""

    name: str
    system_uuid: str
    folder: Path
    fault_file: Path

    @property
    def disk(self) -> Path:
        """The machine's drives: a folder of files."""
        return self.folder / "disk"

    def record_deploy(self, instance_uuid: str | None) -> None:
        """Note outside of the drives that an image is being written: the count that no controller can talk about."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "deploys.jsonl").open("a") as record:
            record.write(json.dumps({"instance_uuid": instance_uuid, "at": time.time()}) + "\n")

    @property
    def installed_system(self) -> Path:
        """What the last deploy wrote to the boot drive; absent when there is nothing to boot."""
        return self.folder / "active.json"

    @property
    def host_key(self) -> Path:
        """The SSH host key that the installed system made for itself."""
        return self.folder / "host_key"

    def faults(self) -> dict[str, Any]:
        """The injected faults, {} when there are none."""
        try:
            return dict(json.loads(self.fault_file.read_text()))
        except FileNotFoundError:
            return {}

    def pass_through(self, step: str) -> None:
        """Take the step's time, then raise InjectedFault when its fault file says so.

        Clearing the fault file ends a long delay early, so that a test need not wait it out.
        """
        started = time.monotonic()
        while time.monotonic() - started < float(
            self.faults().get("delay", {}).get(step, os.environ.get("SLIPWAY_LAB_STEP_SECONDS", DEFAULT_STEP_SECONDS))
        ):
            time.sleep(_POLL_SECONDS)
        message = self.faults().get("fail", {}).get(step)
        if message:
            raise InjectedFault(str(message))

    def install(self, system: dict[str, Any]) -> None:
        """Write the installed system; it is there whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.installed_system.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(system, indent=2))
        partial.replace(self.installed_system)

    def uninstall(self) -> None:
        """Take away what boots; the drives' contents stay, as they do on a real machine."""
        self.installed_system.unlink(missing_ok=True)

    def erase(self) -> Erased:
        """Empty the drives and everything the installed system kept; raise OSError when something is left."""
        self.uninstall()
        files = [path for path in self.disk.rglob("*") if path.is_file() and not path.is_symlink()]
        erased = Erased(len(files), sum(path.stat().st_size for path in files))
        if self.disk.exists():
            # Renamed first: a login session that still writes into the old folder can't refill the new one.
            doomed = self.folder / f"erasing-{time.time_ns()}"
            self.disk.rename(doomed)
        for doomed in self.folder.glob("erasing-*"):
            shutil.rmtree(doomed)
        self.host_key.unlink(missing_ok=True)
        expected_gone = (self.disk, self.installed_system, self.host_key, *self.folder.glob("erasing-*"))
        left = [path.name for path in expected_gone if path.exists()]
        if left:
            raise OSError(f"{self.folder}: still there after the erasure: {', '.join(left)}")
        return erased


def machine_of(node: Any) -> Machine:
    """The lab's machine that `node` (an ironic.objects.Node) drives by Redfish; raises NotALabMachine."""
    lab = Path(os.environ["SLIPWAY_LAB_FOLDER"])
    address = str(node.driver_info.get("redfish_system_id") or "")
    try:
        system_uuid = str(UUID(address.rstrip("/").rpartition("/")[2]))
        names: dict[str, str] = json.loads((lab / "bmc" / "machines.json").read_text())
        name = names[system_uuid]
    except (ValueError, KeyError) as error:
        raise NotALabMachine(
            f"node {node.uuid}: driver_info redfish_system_id {address!r} is no machine of this lab"
        ) from error
    return Machine(name, system_uuid, lab / "hosts" / system_uuid, lab / "ironic" / "faults" / f"{name}.json")
