"""The main job, scene by scene. Every scene asserts nothing: it measures, and `summary.py` judges."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipway.doors import Door
from slipway.errors import ApiError
from slipway.models import Cluster, Operation
from slipway.verification import Held, verify_online

from deploy.demo import site_truth
from deploy.demo.narrator import Narrator
from deploy.demo.people import People
from deploy.demo.summary import Summary
from deploy.local.layout import REPOSITORY, SERVICES, SITE
from deploy.local.stack import Stack

PROFILE = "h100-sxm-8"
CURRENCY = "EUR"
OPERATION_LIMIT_SECONDS = 900.0  # A busy machine is slow; what never ends is still noticed.
SETTLE_LIMIT_SECONDS = 300.0
SLOW_DEPLOY_SECONDS = 4.0


class Story:
    """The demo's state from scene to scene."""

    def __init__(self, stack: Stack, people: People, tell: Narrator, summary: Summary, key: Path) -> None:
        self.stack, self.people, self.tell, self.summary, self.key = stack, people, tell, summary, key
        self.public_key = key.with_suffix(".pub").read_text().strip()
        self.first: Cluster | None = None
        self.second: Cluster | None = None
        self.swapped_machine = ""

    async def follow(self, operation_id: str, door: Door) -> Operation:
        """Watch an operation to its end, telling its steps."""
        client = self.people.operator if door is Door.OPERATOR else self.people.alice
        told: dict[str, str] = {}
        operation = await client.operations.get(operation_id, door=door)
        async with asyncio.timeout(OPERATION_LIMIT_SECONDS):
            async for operation in client.operations.watch(operation_id, door=door, every_seconds=0.3):
                self.tell.step_changes(operation, told)
                if operation.final:
                    break
        for note in operation.notes:
            self.tell.say(f"    note: {note[:200]}")
        self.tell.say(f"operation {operation.kind} {operation.status}")
        return operation

    async def machines(self) -> list[Any]:
        return [machine async for machine in self.people.operator.machines.list()]

    # -- scenes ---------------------------------------------------------------------------------

    async def read_inventory(self) -> None:
        """Machines appear as EXPECTED."""
        expected = load_count()

        async def all_there() -> bool:
            return len(await self.machines()) == expected

        await until(all_there, SETTLE_LIMIT_SECONDS, "the machines of the inventory source")
        machines = await self.machines()
        self.summary.machines["expected"] = sum(1 for m in machines if m.state == "EXPECTED")
        racks = sorted({m.rack for m in machines})
        self.tell.say(f"{len(machines)} machines EXPECTED in racks {', '.join(racks)} of site {SITE}")

    async def enrol(self) -> None:
        """All three racks; the machine with a GPU missing is refused with a reason."""
        self.tell.command("slipway machines enrol --rack r1 --rack r2 --rack r3 --wait")
        started = await self.people.operator.machines.enrol(racks=["r1", "r2", "r3"])
        await self.follow(started.operation_id, Door.OPERATOR)
        machines = await self.machines()
        available = [m for m in machines if m.state == "AVAILABLE"]
        refused = [m for m in machines if m.state == "FAILED"]
        self.summary.machines |= {"enrolled": len(available), "refused": len(refused)}
        for machine in refused:
            reason = machine.raw.get("reason") or {}
            self.summary.machines["refused_reason"] = reason.get("message", "")
            self.tell.say(f"{machine.name} FAILED({machine.raw.get('failed_step')}): {reason.get('message')}")
            self.tell.say(f"    what to do: {reason.get('next_step')}")
        self.tell.say(f"{len(available)} machines AVAILABLE: sanitized and validated")

    async def create_cluster(self) -> None:
        """4 nodes, one of which breaks while it is deployed."""
        self.tell.command("slipway clusters create train --profile h100-sxm-8 --nodes 4 --key key.pub --wait")
        began = datetime.now(UTC)
        started = await self.people.alice.clusters.create(
            name="train", profile=PROFILE, node_count=4, keys=[self.public_key]
        )
        self.tell.say(f"202 at once: operation {started.operation_id}")
        self.swapped_machine = await self._break_one_held(started.operation_id)
        operation = await self.follow(started.operation_id, Door.TENANT)
        self.first = await self.people.alice.clusters.get(str(started.raw["cluster_id"]))
        ready = ((self.first.ready_at or datetime.now(UTC)) - began).total_seconds()
        self.summary.cluster |= {
            "status": operation.status,
            "nodes": len(self.first.nodes) if self.first.state == "READY" else 0,
            "ready_seconds": round(ready, 1),
            "swapped": self.first.raw.get("swapped"),
        }
        await self._log_in()
        self.summary.cluster["hidden_from_others"] = await self._hidden_from_bob()

    async def _break_one_held(self, operation_id: str) -> str:
        """Wait until machines are held, then let one of them have a broken disk."""

        async def held() -> bool:
            operation = await self.people.alice.operations.get(operation_id)
            return any(s.name == "hold_machines" and s.status == "SUCCEEDED" for s in operation.steps)

        await until(held, SETTLE_LIMIT_SECONDS, "the hold")
        reservations = [r async for r in self.people.operator.reservations.list(door=Door.OPERATOR)]
        newest = max(reservations, key=lambda r: str(r.raw["created_at"]))
        victim = str(newest.raw["claims"][0]["machine_name"])
        site_truth.break_disk(self.stack, victim)
        self.tell.say(f"behind its back: the disk of {victim} breaks now")
        return victim

    async def _log_in(self) -> None:
        assert self.first is not None
        config, known_hosts = await self.people.alice.clusters.ssh_config(self.first.id)
        self.tell.command("slipway clusters ssh train-1")
        names = [node.name for node in self.first.nodes]
        if self.stack.site == "sim":
            # The simulated site has no hosts: that keys were read back from the node is what it can show.
            self.summary.cluster["logged_in"] = len(names)
            self.tell.say("simulated site: the keys were read back from every node by the satellite")
            return
        good = [name for name in names if await asyncio.to_thread(ssh_hostname, self.key, config, known_hosts, name)]
        self.summary.cluster["logged_in"] = len(good)
        self.tell.say(f"ssh works on {', '.join(good) or 'no node'}")

    async def _hidden_from_bob(self) -> bool:
        assert self.first is not None
        try:
            await self.people.bob.clusters.get(self.first.id)
        except ApiError as error:
            self.tell.say(f"bob of another tenant asks for it: {error.code}")
            return error.code == "cluster.not_found"
        return False

    async def look_at_quarantine(self) -> None:
        """The machine that failed ends in quarantine with its reason."""

        async def quarantined() -> bool:
            machine = await self.people.operator.machines.get(self.swapped_machine)
            return machine.state == "QUARANTINED"

        await until(quarantined, SETTLE_LIMIT_SECONDS, f"{self.swapped_machine} in quarantine")
        machine = await self.people.operator.machines.get(self.swapped_machine)
        reason = (machine.raw.get("reason") or {}).get("message", "")
        self.summary.cluster["quarantined_reason"] = reason
        self.tell.say(f"{machine.name} QUARANTINED: {reason[:160]}")

    async def crash(self) -> None:
        """A second cluster, and kill -9 of the satellite and of provisioning in the middle of its deploys."""
        site_truth.slow_deploys(self.stack, SLOW_DEPLOY_SECONDS)
        started = await self.people.alice.clusters.create(
            name="eval", profile=PROFILE, node_count=2, keys=[self.public_key]
        )
        deploying: Callable[[], Awaitable[bool]] = lambda: self._running(started.operation_id, "deploy_image")  # noqa: E731
        await until(deploying, SETTLE_LIMIT_SECONDS, "deploys under way")
        await asyncio.sleep(1.0)  # Into the middle of the deploys: the fault is the point, not a condition.
        for process in (self.stack.satellite(), self.stack.service("provisioning")):
            self.tell.say(f"kill -9 {process.name} (pid {process.pid()})")
            process.kill()
        for process in (self.stack.satellite(), self.stack.service("provisioning")):
            await asyncio.to_thread(process.start)
            self.tell.say(f"{process.name} started again (pid {process.pid()})")
        operation = await self.follow(started.operation_id, Door.TENANT)
        self.second = await self.people.alice.clusters.get(str(started.raw["cluster_id"]))
        counted = site_truth.deploys_by_claim(self.stack)
        double = sum(times - 1 for times in counted.values() if times > 1)
        self.summary.crash = {
            "resumed": operation.status == "SUCCEEDED" and self.second.state == "READY",
            "deploys_counted_by_the_site": sum(counted.values()),
            "double_deploys": double,
        }
        site_truth.mend_disk(self.stack, self.swapped_machine)
        for machine in await self.machines():
            site_truth.mend_disk(self.stack, machine.name)
        self.tell.say(f"the site counted {sum(counted.values())} deploys, {double} of them twice for one claim")

    async def _running(self, operation_id: str, step: str) -> bool:
        operation = await self.people.alice.operations.get(operation_id)
        return any(s.name == step and s.status == "RUNNING" for s in operation.steps)

    async def give_back(self) -> None:
        """Delete both; every machine is wiped, validated again, and only then AVAILABLE."""
        assert self.first is not None and self.second is not None
        since = datetime.now(UTC)
        returned = {node.machine_id for cluster in (self.first, self.second) for node in cluster.nodes}
        self.tell.command("slipway clusters delete train --yes --wait; slipway clusters delete eval --yes --wait")
        started = [await self.people.alice.clusters.delete(c.id) for c in (self.first, self.second)]
        for each in started:
            await self.follow(each.operation_id, Door.TENANT)

        async def all_back() -> bool:
            return all(m.state == "AVAILABLE" for m in await self.machines() if m.id in returned)

        await until(all_back, SETTLE_LIMIT_SECONDS, "all machines AVAILABLE again")
        machines = [m for m in await self.machines() if m.id in returned]
        self.summary.release = {
            "returned": len(returned),
            "sanitized": sum(1 for m in machines if _after(m.raw.get("sanitised_at"), since)),
            "revalidated": sum(1 for m in machines if _after(m.raw.get("validated_at"), since)),
        }
        available = sum(1 for m in await self.machines() if m.state == "AVAILABLE")
        self.summary.machines["available_at_end"] = available
        self.tell.say(f"{len(returned)} machines returned: wiped, validated, AVAILABLE ({available} in all)")

    async def bill(self, log: Path) -> None:
        """Node-seconds and price, and the same recomputed by a separate program from the exported log alone."""

        async def settled() -> bool:
            lines = [u async for u in self.people.operator.usage.list(door=Door.OPERATOR)]
            return len(lines) >= 6 and all(u.raw.get("stopped_at") for u in lines)

        await until(settled, SETTLE_LIMIT_SECONDS, "every interval metered")
        metered = await self.people.operator.costs("cluster", door=Door.OPERATOR)
        events = await export(self.people, log)
        self.tell.command(f"python3 tools/recompute_cost.py {log.name}      # {events} events, standard library only")
        argv = [sys.executable, str(REPOSITORY / "tools" / "recompute_cost.py"), str(log)]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=True)
        recomputed = json.loads(done.stdout)
        self.summary.cost = comparable(metered, recomputed)
        self.tell.say(f"metered    {json.dumps(self.summary.cost['metered'])}")
        self.tell.say(f"recomputed {json.dumps(self.summary.cost['recomputed'])}")

    async def look_back(self) -> None:
        """The life of one machine; all projections rebuilt; no gap in any sequence."""
        operator = self.people.operator
        machine = await operator.machines.get(self.swapped_machine)
        self.tell.command(f"slipway timeline {machine.name}")
        pages = operator.events.timeline(machine.id)
        entries = [entry.raw async for page in pages for entry in page.items]
        self.summary.audit["timeline_entries"] = len(entries)
        for entry in entries[-8:]:
            self.tell.say(f"    {str(entry.get('time'))[11:19]}  {str(entry.get('summary'))[:140]}")
        found = await operator.audit.gaps()
        self.summary.audit |= {
            "events": found["events"],
            "gaps": len(found["items"]) + len(found["entities"]),
        }
        await self._verify()
        await self._rebuild_all()

    async def _verify(self) -> None:
        """Sign what has happened, then look for anything that was altered, removed or put in."""
        operator = self.people.operator
        await operator.audit.make_checkpoint()
        self.tell.command("slipway events verify")
        report = await verify_online(operator, Held(), (), lambda *_: None)
        checked, signed = (sum(line[name] for line in report.services) for name in ("checked", "signed_up_to"))
        self.summary.audit |= {"verified": checked, "altered": report.count}
        self.tell.say(f"    {checked} events checked, {signed} of them signed, {report.count} problems")

    async def _rebuild_all(self) -> None:
        operator = self.people.operator
        rebuilt, equal = 0, True
        for service in SERVICES:
            names = {str(p.raw["projection"]) for p in (await operator.services.projections(service)).items}
            for name in sorted(names):
                outcome = (await operator.services.rebuild(service, name)).raw
                rebuilt += 1
                equal = equal and outcome["equal"] is True
                word = "equal" if outcome["equal"] else "DIFFERENT"
                self.tell.say(f"    {service}.{name}: {outcome['events']} events, digests {word}")
        self.summary.audit |= {"projections_rebuilt": rebuilt, "digests_equal": equal}


async def export(people: People, log: Path) -> int:
    """Every event as JSON Lines, in order. Returns how many there are."""
    count, cursor = 0, None
    with log.open("w") as file:
        while True:
            query: dict[str, Any] = {"limit": "1000", **({"cursor": cursor} if cursor else {})}
            response = await people.operator.transport.request(Door.OPERATOR, "GET", "/audit/export", query=query)
            page: Any = response.document
            for item in page["items"]:
                file.write(json.dumps(item) + "\n")
                count += 1
            cursor = page.get("next_cursor")
            if not cursor:
                return count


def comparable(metered: Any, recomputed: Any) -> dict[str, Any]:
    """The same figures of both, side by side: node-seconds and exact price-seconds a cluster, and the rounded total."""
    ours = {str(row["cluster_id"]): [row["seconds"], str(row["price_seconds"])] for row in metered["items"]}
    theirs = {
        cluster: [row["seconds"], row["price_seconds"][CURRENCY]] for cluster, row in recomputed["clusters"].items()
    }
    total = next(row["amount"] for row in metered["totals"] if row["currency"] == CURRENCY)
    return {
        "metered": {**ours, "total": total},
        "recomputed": {**theirs, "total": recomputed["total"]["amounts"][CURRENCY]},
        "currency": CURRENCY,
        "total": total,
    }


def ssh_hostname(key: Path, config: str, known_hosts: str, name: str) -> bool:
    """Whether plain OpenSSH with the cluster's own configuration reaches the node and the node says its name."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "known_hosts"
        hosts.write_text(known_hosts)
        file = Path(folder) / "config"
        file.write_text(config)
        argv = ["ssh", "-F", str(file), "-o", f"UserKnownHostsFile={hosts}", "-o", "BatchMode=yes"]
        argv += ["-o", "ConnectTimeout=5", "-i", str(key), name, "hostname"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        return done.returncode == 0 and done.stdout.strip() == name


def load_count() -> int:
    from deploy.lab.fleet import load_fleet

    return len(load_fleet().machines)


def _after(moment: Any, since: datetime) -> bool:
    return moment is not None and datetime.fromisoformat(str(moment).replace("Z", "+00:00")) > since


async def until(check: Callable[[], Awaitable[bool]], within_seconds: float, what: str) -> None:
    """Wait for a condition; TimeoutError names it."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    while not await check():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"waited {within_seconds:.0f} s for {what}")
        await asyncio.sleep(0.3)
