"""Sanitising by Ironic's manual clean with named steps, under our own run id.

A clean is ours when the node's `extra` says so. It has ended well when we saw it under way and then saw the node
resting in manageable, or when the driver left its own proof; after a crash without either it is simply done
again. `clean failed` is never a success, whatever way a node left it, and "available" alone says nothing about
the disks: the evidence is written down before the node is made available.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from libs.contracts.envelope import now_utc
from libs.contracts.site import SanitizeNode
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_loop import (
    IN_USE,
    TO_MANAGEABLE,
    IronicSite,
    converge,
    refuse_foreign_maintenance,
    refuse_held,
    see_off,
)
from services.satellite.errors import Failure, Refusal
from services.satellite.ports import Sanitised

SANITIZE_SECONDS = 8 * 3600.0  # The life cycle's own limit for the state.
# In `extra`: {run_id, steps, started_at, moved_at (when the node had last moved before the order), finished_at}.
RUN = "slipway_sanitise_run"


async def sanitize(site: IronicSite, order: SanitizeNode, *, resumed: bool) -> Sanitised:
    """Clean under order.run_id, see the power off, make the node available."""
    clean = _Clean(site, order, resumed)
    return await converge(site, order.machine_id, order.machine_name, clean.step, limit_seconds=SANITIZE_SECONDS)


class _Clean:
    """One order under work. `_under_way`: its clean was accepted by Ironic, or seen running."""

    def __init__(self, site: IronicSite, order: SanitizeNode, resumed: bool) -> None:
        self._site = site
        self._order = order
        self._resumed = resumed
        self._under_way = False

    async def step(self, node: Node) -> Sanitised | None:
        if node.instance_uuid is not None or node.provision_state in IN_USE:
            raise Refusal(
                "node_in_use",
                f"{node.name} is {node.provision_state!r} with instance {node.instance_uuid}; it is not cleaned.",
                "Release the machine first.",
            )
        run = self._run(node)
        if run is not None and run.get("finished_at"):
            return await self._make_available(node, run)
        match node.provision_state:
            case "cleaning" | "clean wait" if run is not None:
                self._under_way = True
            case "clean failed" if run is not None and (self._under_way or self._resumed):
                raise Failure(
                    "clean_failed",
                    f"{node.name}: cleaning under run {self._order.run_id} failed: {node.last_error}",
                    "The machine is not sanitised. Look at its drives, then sanitise it again.",
                )
            case "manageable" if run is not None and self._ended_well(node, run):
                finished = {**run, "finished_at": now_utc().isoformat()}
                await self._site.client.patch(node.id, {f"/extra/{RUN}": finished})
            case "manageable":
                await self._order_clean(node)
            case state if state in TO_MANAGEABLE:
                await self._leave(node)
            case _:
                refuse_held(node)
        return None

    def _ended_well(self, node: Node, run: Mapping[str, Any]) -> bool:
        # A failed clean that a person moved to manageable keeps Ironic's maintenance.
        if node.maintenance or node.moved_at == run.get("moved_at"):
            return False
        return self._under_way or _proved_by_driver(node, run)

    def _run(self, node: Node) -> Mapping[str, Any] | None:
        """What the node says about this order's run; None when its last run is another."""
        run = node.extra.get(RUN)
        return run if isinstance(run, dict) and run.get("run_id") == self._order.run_id else None

    async def _leave(self, node: Node) -> None:
        """Back to manageable, from where a clean can be ordered."""
        refuse_foreign_maintenance(node)
        if node.maintenance:
            await self._leave_maintenance(node)
        await self._site.client.provision(node.id, "manage")

    async def _leave_maintenance(self, node: Node) -> None:
        """End the maintenance that Ironic set for a failed clean of ours; anybody else's is theirs to end."""
        if not isinstance(node.extra.get(RUN), dict):
            raise Refusal(
                "node_in_maintenance",
                f"{node.name} is in maintenance after a clean that was not ours; it is left alone.",
                "Ask who cleaned it; only they end it.",
            )
        await self._site.client.end_maintenance(node.id)

    async def _order_clean(self, node: Node) -> None:
        refuse_foreign_maintenance(node)
        if node.maintenance:
            await self._leave_maintenance(node)
        run = {
            "run_id": self._order.run_id,
            "steps": list(self._site.clean_steps),
            "started_at": now_utc().isoformat(),
            "moved_at": node.moved_at,
        }
        await self._site.client.patch(node.id, {f"/extra/{RUN}": run})
        await self._site.client.provision(node.id, "clean", clean_steps=_steps(self._site.clean_steps))
        self._under_way = True

    async def _make_available(self, node: Node, run: Mapping[str, Any]) -> Sanitised | None:
        if node.provision_state == "clean failed":
            raise Failure(
                "clean_failed",
                f"{node.name}: Ironic's own clean failed on the way to available: {node.last_error}",
                "The machine is not sanitised. Look at its drives, then sanitise it again.",
            )
        if node.provision_state == "manageable":
            await see_off(self._site, node)
            await self._site.client.provision(node.id, "provide")
            return None
        if node.provision_state != "available":
            return None
        await see_off(self._site, node)
        return Sanitised(
            run_id=self._order.run_id,
            steps=tuple(map(str, run["steps"])),
            started_at=datetime.fromisoformat(run["started_at"]),
            finished_at=datetime.fromisoformat(run["finished_at"]),
            power_state="off",
        )


def _proved_by_driver(node: Node, run: Mapping[str, Any]) -> bool:
    """Whether the driver says that it erased and looked, after this run had begun (drivers that keep proof)."""
    proof = node.driver_internal_info.get("last_erase")
    if not isinstance(proof, dict) or proof.get("verified_empty") is not True:
        return False
    try:
        return datetime.fromisoformat(proof["finished_at"]) >= datetime.fromisoformat(run["started_at"])
    except (KeyError, TypeError, ValueError):
        return False


def _steps(names: tuple[str, ...]) -> list[dict[str, str]]:
    """ "deploy.erase_devices" → {"interface": "deploy", "step": "erase_devices"}."""
    split = (name.partition(".") for name in names)
    return [{"interface": interface, "step": step} for interface, _, step in split]
