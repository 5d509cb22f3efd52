"""A fleet of any size in inventory's own table, written as fast as PostgreSQL takes it, for lists and their plans.

The machines differ in what lists filter and sort by: 5 sites, racks of 20, 3 profiles, states as in a fleet at work,
2 % held. One has as many values in its row as a machine that was enrolled, inspected and validated.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from libs.contracts.inventory import Health, Hold, MachineState
from libs.contracts.site import InspectedGpu, Inspection
from services.inventory.model.machine import Machine
from services.inventory.store import written_row

SITES, RACK_SIZE, GPUS = 5, 20, 8
RACK_IDS = 1 << 32  # Above every machine's number.
START = datetime(2026, 1, 1, tzinfo=UTC)
CLAIM = "0c1a0000-0000-7000-8000-{:012}"
# Of 100 machines.
STATES = (
    *(["ASSIGNED"] * 70),
    *(["AVAILABLE"] * 20),
    *(["QUARANTINED"] * 4),
    *(["MAINTENANCE"] * 3),
    *(["EXPECTED"] * 3),
)
PROFILES = ("h100-sxm-8", "h200-sxm-8", "cpu-large")


def _pattern() -> Machine:
    """The machine that all others are copies of."""
    gpus = tuple(
        InspectedGpu(slot=f"GPU {n}", model="NVIDIA H100 80GB HBM3", serial=f"16520{n}", state="Enabled", health="OK")
        for n in range(GPUS)
    )
    return Machine(
        id="-",
        name="-",
        site="-",
        rack="-",
        device_type="dgx-h100",
        role="gpu-node",
        gpu_model="NVIDIA H100 80GB HBM3",
        gpu_count=GPUS,
        state=MachineState.EXPECTED,
        state_since=START,
        version=1,
        proof_after=START - timedelta(days=2),
        sanitised_at=START - timedelta(days=1),
        validated_at=START - timedelta(hours=20),
        inspected_at=START - timedelta(days=2),
        health=Health.HEALTHY,
        inspection=Inspection(manufacturer="NVIDIA", model="DGX H100", serial="-", gpus=gpus, cpu_count=2, drives=8),
    )


def machines(count: int, first: int = 0) -> list[Machine]:
    """`count` machines of a fleet, from number `first` on."""
    pattern = _pattern()
    return [_numbered(pattern, number) for number in range(first, first + count)]


def _numbered(pattern: Machine, number: int) -> Machine:
    rack, site = number // RACK_SIZE, f"fra{number // RACK_SIZE % SITES + 1}"
    state = MachineState(STATES[(number * 37) % 100])
    held = (number * 53) % 100 < 2
    profile = PROFILES[number % len(PROFILES)]
    claim = CLAIM.format(number) if state is MachineState.ASSIGNED else None
    return pattern.model_copy(
        update={
            "id": str(UUID(int=number + 1)),
            "name": f"{site}-r{rack:04}-gpu-{number % RACK_SIZE:02}",
            "site": site,
            "rack": f"r{rack:04}",
            "rack_id": str(UUID(int=RACK_IDS + rack)),
            "profile": profile,
            "serial": f"SN{number:08}",
            "asset_tag": f"A{number:06}",
            "bmc_address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "bmc_mac": f"02:00:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
            "nic_macs": (f"06:00:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",),
            "state": state,
            "claim_id": claim,
            "cluster_id": f"clu-{number // 8}" if claim else None,
            "tenant": f"tenant-{number // 64 % 50}" if claim else "-",
            "holds": (Hold(id=f"hold-{number}", owner="user:eva", reason="cabling", since=START),) if held else (),
            "eligible": state is MachineState.AVAILABLE and not held,
            "state_since": START + timedelta(seconds=(number * 7919) % 2_000_000),
        }
    )


async def seed(url: str, count: int, batch: int = 5_000) -> None:
    """Write a fleet into the migrated schema at `url` and let the planner count it."""
    conn = await asyncpg.connect(url)
    try:
        for first in range(0, count, batch):
            rows = [written_row(machine) for machine in machines(min(batch, count - first), first)]
            names = list(rows[0])
            records = [tuple(_sent(row[name]) for name in names) for row in rows]
            await conn.copy_records_to_table("machine", schema_name="inventory", columns=names, records=records)
        await conn.execute("ANALYZE inventory.machine")
    finally:
        await conn.close()


def _sent(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, dict) else value
