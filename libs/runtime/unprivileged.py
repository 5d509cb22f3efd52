"""Run a program that refuses to be root (PostgreSQL) when we are root: as the owner of its data folder."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from libs.runtime.processes import StartError

UNPRIVILEGED_USER = "nobody"  # initdb wants a user that exists; this one does everywhere.
_CAP_DAC_OVERRIDE = 1  # Bit number in Linux's capability sets.


def unprivileged_prefix(folder: Path) -> list[str]:
    """The words before a command that must run as the owner of `folder` and not as root; empty when we are not root.

    The owner is `nobody` for a folder made by root, and whoever made it otherwise. The right to pass
    through closed folders is kept where the machine grants it, since `var` may lie below one that only
    root may enter. Raises StartError when the tool for it is missing.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StartError("PostgreSQL refuses to run as root and `setpriv` (util-linux) is missing; run as another user")
    nobody = pwd.getpwnam(UNPRIVILEGED_USER)
    owned = folder.exists() and folder.stat().st_uid != 0  # Before the first start it is made for `nobody`.
    uid, gid = (folder.stat().st_uid, folder.stat().st_gid) if owned else (nobody.pw_uid, nobody.pw_gid)
    prefix = [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if _may_keep(_CAP_DAC_OVERRIDE):
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return [*prefix, "--"]


def _may_keep(capability: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False
