"""What only the hardware's side knows: faults are put in and deploys are counted there, behind Slipway's back."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path

from deploy.lab.fleet import load_fleet
from deploy.lab.ironic.faults import clear_fault, inject_fault
from deploy.local.site_parts import RealSite, SimulatedSite, write_private
from deploy.local.stack import Stack

BROKEN_DISK = "write to /dev/nvme0n1 failed: Input/output error"


def break_disk(stack: Stack, machine_name: str) -> None:
    """From now on a deploy of this machine fails."""
    parts = stack.parts
    if isinstance(parts, SimulatedSite):
        write_private(parts.faults_file, {machine_name: {"fail": {"deploy": BROKEN_DISK}}})
    else:
        inject_fault(stack.var, machine_name, {"fail": {"write_image": BROKEN_DISK}})


def mend_disk(stack: Stack, machine_name: str) -> None:
    """The machine is as good as before."""
    parts = stack.parts
    if isinstance(parts, SimulatedSite):
        write_private(parts.faults_file, {})
    else:
        clear_fault(stack.var, machine_name)


def slow_deploys(stack: Stack, seconds: float) -> None:
    """Make every deploy take its time, so that there is a middle to be killed in."""
    delays = {m.name: {"delay": {"deploy": seconds}} for m in load_fleet().machines}
    parts = stack.parts
    if isinstance(parts, SimulatedSite):
        write_private(parts.faults_file, delays)
    else:
        for name in delays:
            inject_fault(stack.var, name, {"delay": {"deploy": seconds}})


def deploys_by_claim(stack: Stack) -> Counter[str]:
    """How often an image was written for each claim, as the hardware's side counted it."""
    if isinstance(stack.parts, RealSite):
        return _real(stack.var / "lab" / "hosts")
    return _simulated(stack.var / "satellite" / "simulated-site.sqlite")


def _real(hosts: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    for record in hosts.glob("*/deploys.jsonl"):
        counted.update(str(json.loads(line)["instance_uuid"]) for line in record.read_text().splitlines())
    return counted


def _simulated(store: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        for (body,) in connection.execute("SELECT body FROM machine"):
            counted.update(str(claim) for claim in json.loads(body).get("deployments", []))
    finally:
        connection.close()
    return counted
