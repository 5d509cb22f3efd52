"""Kea from the distribution: what is installed, else its packages unpacked below `var`, which needs no root.

`apt-get download` checks the packages' signatures as an installation would; nothing is installed and no script of a
package is run.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from libs.runtime.processes import StartError

PACKAGES = ("kea-dhcp4-server", "kea-ctrl-agent")
# Kea's own libraries, and what a small system lacks; the rest (libstdc++, OpenSSL, Boost) comes with the distribution.
_NEEDED = ("kea", "liblog4cplus", "libmariadb", "libpq", "libboost", "libgssapi", "libkrb5", "libldap", "libsasl")
_DOWNLOAD_SECONDS = 180.0
_HOOK = "libdhcp_lease_cmds.so"


@dataclass(frozen=True)
class KeaPrograms:
    """`libraries` is for LD_LIBRARY_PATH, blank when Kea is installed."""

    dhcp4: Path
    agent: Path
    lease_hook: Path
    libraries: str


def installed(software: Path) -> KeaPrograms | None:
    """Kea as the distribution installed it, or as it was unpacked below `software`; None when neither is there."""
    found = (
        shutil.which("kea-dhcp4", path="/usr/sbin:/usr/local/sbin"),
        shutil.which("kea-ctrl-agent", path="/usr/sbin:/usr/local/sbin"),
    )
    hook = next(Path("/usr/lib").glob(f"*/kea/hooks/{_HOOK}"), None)
    if all(found) and hook is not None:
        return KeaPrograms(Path(str(found[0])), Path(str(found[1])), hook, "")
    root = software / "lab" / "kea-software"
    hook = next(root.glob(f"usr/lib/*/kea/hooks/{_HOOK}"), None)
    if hook is None or not (root / "complete").exists():
        return None
    sbin = root / "usr" / "sbin"
    return KeaPrograms(sbin / "kea-dhcp4", sbin / "kea-ctrl-agent", hook, str(hook.parents[2]))


def install(software: Path, on_progress: Callable[[str], None]) -> KeaPrograms:
    """The programs, unpacked when they are not there. Raises StartError saying what is missing."""
    there = installed(software)
    if there is not None:
        return there
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise StartError("Kea is not installed, and there is no apt-get to fetch it with: install Kea 2.2 or newer")
    on_progress("Fetching Kea from the distribution")
    root = software / "lab" / "kea-software"
    downloads = root / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-q", *_wanted()], downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(root)], downloads)
    (root / "complete").touch()
    shutil.rmtree(downloads)
    there = installed(software)
    if there is None:
        raise StartError(f"{root}: the distribution's Kea packages hold no {_HOOK}; install Kea 2.2 or newer")
    return there


def _wanted() -> list[str]:
    """The packages and those of their dependencies that a small system may lack."""
    options = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    listed = _run(["apt-cache", "depends", "--recurse", *options, *PACKAGES], Path("/"))
    names = {line.strip() for line in listed.splitlines() if line and not line.startswith((" ", "<"))}
    return sorted(name for name in names if name.startswith(_NEEDED) and "dev" not in name)


def _run(argv: list[str], cwd: Path) -> str:
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise StartError(
            f"{argv[0]} did not end within {_DOWNLOAD_SECONDS:g} s; look at the package sources"
        ) from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise StartError(f"{' '.join(argv[:2])} failed: {' '.join(last)}; look at the package sources (apt-get update)")
    return done.stdout
