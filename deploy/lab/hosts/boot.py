"""Boot an installed system on a machine's disk: homes and keys, host key, and the tools on its PATH.

Keys are written at the first boot of a deployment only, as cloud-init does, so that what was changed on the
machine later outlasts a reboot. The host key is made when there is none and lives until the disk is erased.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncssh

from deploy.lab.bmc.gpus import gpus_of
from deploy.lab.fleet import DeviceType, Machine
from deploy.lab.hosts import nvidia_smi
from deploy.lab.hosts.installed_system import InstalledSystem

KIB_PER_GIB = 1024 * 1024
VISIBLE_MEMORY_SHARE = 0.985  # Kernel and firmware keep the rest; a DGX H100 shows about 2,015 of its 2,048 GiB.


@dataclass(frozen=True)
class HostFolder:
    """The folders of one machine: `disk` is erased by cleaning, `tools` belongs to the running system only."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The machine's drives."""
        return self.folder / "disk"

    @property
    def installed_system(self) -> Path:
        """What the last deploy wrote."""
        return self.folder / "active.json"

    @property
    def host_key(self) -> Path:
        """The SSH server's private key."""
        return self.folder / "host_key"

    @property
    def tools(self) -> Path:
        """Programs that come before this computer's own on the host's PATH."""
        return self.folder / "tools"

    def home(self, user: str) -> Path:
        """The home folder of `user`."""
        return self.disk / "home" / user


def boot(folder: HostFolder, system: InstalledSystem, machine: Machine, kind: DeviceType, fault_file: Path) -> None:
    """Bring everything onto the disk that the running system needs. Raises OSError when it cannot be written."""
    _first_boot(folder, system)
    if not folder.host_key.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment=system.hostname)
        partial = folder.host_key.with_name(".host_key.partial")
        partial.touch(mode=0o600)
        partial.write_bytes(key.export_private_key())
        partial.replace(folder.host_key)
    _write_tools(folder, system, machine, kind, fault_file)


def _first_boot(folder: HostFolder, system: InstalledSystem) -> None:
    seen = folder.disk / "var" / "lib" / "cloud" / "instance-id"
    for user in system.keys:
        (folder.home(user) / ".ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder.home(user) / "tmp").mkdir(exist_ok=True)
    if seen.exists() and seen.read_text() == system.deployment_id:
        return
    for home in (folder.disk / "home").iterdir():
        # A former deployment's users must not get in, whether or not the disk was erased in between.
        keys = system.keys.get(home.name, ())
        (home / ".ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / ".ssh" / "authorized_keys").write_text("".join(f"{line}\n" for line in keys))
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.write_text(system.deployment_id)


def _write_tools(
    folder: HostFolder, system: InstalledSystem, machine: Machine, kind: DeviceType, fault_file: Path
) -> None:
    folder.tools.mkdir(parents=True, exist_ok=True)
    _write_program(folder.tools / "hostname", f"echo {shlex.quote(system.hostname)}")
    # What the machine of this type would say, not the computer that the lab runs on.
    _write_program(folder.tools / "nproc", f"echo {kind.cpu_threads}")
    total_kib = int(kind.memory_gib * KIB_PER_GIB * VISIBLE_MEMORY_SHARE)
    table = f"echo '        total  used  free'; echo 'Mem: {total_kib} 0 {total_kib}'"
    _write_program(folder.tools / "free", table)
    gpus = gpus_of(machine, kind)
    program = folder.tools / "nvidia-smi"
    if not gpus:
        program.unlink(missing_ok=True)
        return
    facts = folder.folder / "gpus.json"
    facts.write_text(json.dumps([asdict(gpu) for gpu in gpus]))
    # Without the environment's site packages the program starts in a tenth of the time.
    script = [sys.executable, "-I", "-S", nvidia_smi.__file__, str(facts), str(fault_file)]
    _write_program(program, f'exec {shlex.join(script)} "$@"')


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
