"""The scene of drift, told apart from the main story: what a person changes in NetBox is seen, explained and repaired.

Then a rack leaves for good because NetBox says so. Everything is done as people would do it: in NetBox, or through the
public API. It measures; `DriftSummary` judges.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pynetbox
from slipway.doors import Door
from slipway.models import Machine

from deploy.demo.narrator import Narrator
from deploy.demo.people import People
from deploy.demo.story import OPERATION_LIMIT_SECONDS, SETTLE_LIMIT_SECONDS, load_count, until
from deploy.local.site_parts import RealSite
from deploy.local.stack import Stack

DRIFTING, LEAVING_RACK = "fra1-r1-gpu-01", "r3"
WRONG_SERIAL = "TYPED-BY-MISTAKE"
SEEN_WITHIN_SECONDS = 60.0


@dataclass
class DriftSummary:
    """What the scene found; `ok` is computed from it."""

    site: str
    drift: dict[str, Any] = field(default_factory=dict)
    leaving: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    topics = ("drift", "leaving")
    file = "summary-drift.json"

    def wrong(self) -> list[str]:
        """What is not as it must be; a figure that is missing is wrong."""
        d, k = self.drift, self.leaving
        checks = {
            "a wrong serial number is seen within a minute": 0 < (d.get("seen_seconds") or 0) < SEEN_WITHIN_SECONDS,
            "both values and the owner are named": d.get("named") is True,
            "the machine keeps what was inspected and is not handed out": d.get("kept") is True,
            "corrected in NetBox, it may be handed out again": d.get("repaired") is True,
            "a field of Slipway's is written again": d.get("written_again") is True,
            "the whole rack is RETIRED": (k.get("asked") or 0) > 0 and k.get("retired") == k.get("asked"),
            "and offline in NetBox": (k.get("asked") or 0) > 0 and k.get("offline") == k.get("asked"),
            "every machine of it that was in use was wiped": (k.get("wiped") or 0) >= (k.get("available") or 1),
        }
        found = [name for name, good in checks.items() if not good]
        return [f"stopped: {self.error}", *found] if self.error else found

    def document(self) -> dict[str, Any]:
        wrong = self.wrong()
        return {"ok": not wrong, "wrong": wrong, **asdict(self)}


class DriftScene:
    """The state of the scene from step to step."""

    def __init__(self, stack: Stack, people: People, tell: Narrator, summary: DriftSummary) -> None:
        if not isinstance(stack.parts, RealSite):
            raise RuntimeError("drift by hand needs a NetBox to edit: play it on the real site (SITE=real)")
        self.people, self.tell, self.summary = people, tell, summary
        netbox = stack.parts.netbox
        self.netbox: Any = pynetbox.api(netbox.url, token=netbox.token)

    async def enrol(self) -> None:
        """Two racks come into service."""

        async def all_there() -> bool:
            return len([m async for m in self.people.operator.machines.list()]) == load_count()

        await until(all_there, SETTLE_LIMIT_SECONDS, "the machines of NetBox")
        self.tell.command(f"slipway machines enrol --rack r1 --rack {LEAVING_RACK} --wait")
        started = await self.people.operator.machines.enrol(racks=["r1", LEAVING_RACK])
        async with asyncio.timeout(OPERATION_LIMIT_SECONDS):
            async for operation in self.people.operator.operations.watch(
                started.operation_id, door=Door.OPERATOR, every_seconds=0.5
            ):
                if operation.final:
                    break
        machine = await self._machine()
        self.tell.say(f"{machine.name} is {machine.state}, serial number {machine.serial}")

    async def mistype(self) -> None:
        """A person types a wrong serial number over an enrolled machine's, and puts it right when told."""
        right = (await self._machine()).serial
        self.tell.say(f"in NetBox somebody types {WRONG_SERIAL} over {right}")
        await self._edit(serial=WRONG_SERIAL)
        seen = await self._until("the drift", lambda m: any(d.field == "serial" for d in m.drifts))
        machine = await self._machine()
        drift = next(d for d in machine.drifts if d.field == "serial")
        self.tell.command(f"slipway machines show {DRIFTING}")
        self.tell.say(f"    {drift.field}: {drift.ours} here, {drift.theirs} in NetBox; decided by {drift.owner}")
        self.tell.say(f"    what to do: {drift.repair}")
        self.summary.drift |= {
            "seen_seconds": round(seen, 1),
            "named": (drift.ours, drift.theirs, drift.owner) == (right, WRONG_SERIAL, "slipway"),
            "kept": machine.serial == right and machine.raw["eligible"] is False,
        }
        self.tell.say("in NetBox it is put right")
        await self._edit(serial=right)
        taken = await self._until("the repair", lambda m: not m.drifts and m.raw["eligible"] is True)
        self.summary.drift |= {"repaired": True, "repaired_seconds": round(taken, 1)}
        self.tell.say(f"nothing differs any more; it may be handed out ({taken:.1f} s)")

    async def overwrite(self) -> None:
        """A person changes a field that is Slipway's."""
        self.tell.say("in NetBox somebody writes BROKEN into slipway_state")
        await self._edit(custom_fields={"slipway_state": "BROKEN"})

        async def back() -> bool:
            shown = await asyncio.to_thread(self.netbox.dcim.devices.get, name=DRIFTING)
            return bool(shown.custom_fields["slipway_state"] == "AVAILABLE")

        await until(back, SETTLE_LIMIT_SECONDS, "Slipway's own value")
        self.summary.drift["written_again"] = True
        self.tell.say("it says AVAILABLE again, and the event of it names both values")

    async def leave(self) -> None:
        """A rack is set to decommissioning in NetBox: wiped, removed, RETIRED, offline."""
        rack = [m async for m in self.people.operator.machines.list(rack=[LEAVING_RACK])]
        self.summary.leaving |= {"asked": len(rack), "available": sum(m.state == "AVAILABLE" for m in rack)}
        self.tell.command(f"slipway machines decommission {rack[0].name} --reason 'end of lease' --dry-run")
        plan = await self.people.operator.machines.decommission(rack[0].name, "end of lease", dry_run=True)
        for step in plan.raw["steps"]:
            self.tell.say(f"    {'would' if step['done'] else 'would not'} {step['step']}")
        self.tell.say(f"in NetBox the {len(rack)} machines of rack {LEAVING_RACK} are set to decommissioning")
        devices = await asyncio.to_thread(lambda: list(self.netbox.dcim.devices.filter(name=[m.name for m in rack])))
        changes = [{"id": device.id, "status": "decommissioning"} for device in devices]
        await asyncio.to_thread(self.netbox.dcim.devices.update, changes)

        async def gone() -> bool:
            now = [m async for m in self.people.operator.machines.list(rack=[LEAVING_RACK])]
            shown = await asyncio.to_thread(lambda: list(self.netbox.dcim.devices.filter(id=[d.id for d in devices])))
            self.summary.leaving |= {
                "retired": sum(m.state == "RETIRED" for m in now),
                "offline": sum(device.status.value == "offline" for device in shown),
                "wiped": sum(bool((m.raw.get("reason") or {}).get("details", {}).get("wipe")) for m in now),
            }
            return {self.summary.leaving["offline"], self.summary.leaving["retired"]} == {len(rack)}

        await until(gone, OPERATION_LIMIT_SECONDS, "the rack to be gone")
        self.tell.say(f"{len(rack)} machines RETIRED with evidence of their wipe, offline in NetBox")

    async def _machine(self) -> Machine:
        return await self.people.operator.machines.get(DRIFTING)

    async def _edit(self, **changes: Any) -> None:
        device = await asyncio.to_thread(self.netbox.dcim.devices.get, name=DRIFTING)
        await asyncio.to_thread(device.update, changes)

    async def _until(self, what: str, holds: Callable[[Machine], bool]) -> float:
        """Wait until it holds of the machine; how long that took."""
        began = time.monotonic()

        async def look() -> bool:
            return holds(await self._machine())

        check: Callable[[], Awaitable[bool]] = look
        await until(check, SETTLE_LIMIT_SECONDS, what)
        return time.monotonic() - began
