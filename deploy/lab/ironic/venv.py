"""The environment that Ironic and the Redfish emulator run in: made once, from exact pins.

Invariant: a marker written last names what was installed, so a half-finished or outdated installation is done
again and a finished one costs nothing. The lab's own hardware type is a package inside it with a marker of its own.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.interpreters import (
    make_venv,
    one_at_a_time,
    quiet,
    run_tool,
    uv_executable,
    venv_is_complete,
    write_marker,
)
from libs.runtime.processes import require_free_disk

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
SIM_HARDWARE = HERE / "sim_hardware"
# Ironic's environment takes 210 MB; the rest is room for its wheels while they are unpacked.
NEEDED_BYTES = 600_000_000


def _hardware_digest() -> str:
    total = hashlib.sha256(REQUIREMENTS.read_bytes())
    for path in (SIM_HARDWARE / "pyproject.toml", *sorted((SIM_HARDWARE / "sim_hardware").glob("*.py"))):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@dataclass(frozen=True)
class IronicVenv:
    """The environment below `software`/lab/ironic-venv; several labs may share it."""

    software: Path

    @property
    def folder(self) -> Path:
        """The environment itself."""
        return self.software / "lab" / "ironic-venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def install(self, on_progress: Callable[[str], None] = quiet) -> None:
        """Install what is missing or outdated. Raises StartError with the installer's words when it fails.

        One installer at a time: Ironic and the BMCs share the environment and may be set up side by side.
        """
        with one_at_a_time(self.software / "lab" / "ironic-venv.lock"):
            if not venv_is_complete(self.folder, REQUIREMENTS):
                require_free_disk(self.software, NEEDED_BYTES)
                make_venv(self.folder, Path(sys.executable), REQUIREMENTS, on_progress)
            marker = self.folder / ".sim-hardware-complete"
            if not marker.exists() or marker.read_text() != _hardware_digest():
                self._install_hardware()
                write_marker(marker, _hardware_digest())

    def _install_hardware(self) -> None:
        # Built from a copy, because setuptools leaves build products beside the sources.
        copy = self.software / "lab" / "sim-hardware-build"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(SIM_HARDWARE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        install = [str(uv_executable()), "pip", "install", "--python", str(self.python), "--no-deps", "--reinstall"]
        run_tool([*install, "--no-build-isolation", str(copy)], "installing the lab's Ironic hardware type")
        shutil.rmtree(copy)
