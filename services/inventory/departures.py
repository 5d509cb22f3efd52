"""Start the process by which a machine leaves for good; shared by the call and by what NetBox asks for."""

from __future__ import annotations

from libs.bus.context import Context
from libs.contracts.ids import new_operation_id
from services.inventory import store
from services.inventory.model import leaving
from services.inventory.model.leaving import Wish
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.sagas import machine_data
from services.inventory.sagas_leaving import leaving_data


async def start(ctx: Context, machine: Machine, wish: Wish) -> Decision:
    """→ DECOMMISSIONING and the process that ends in RETIRED, in one transaction."""
    operation_id = new_operation_id(ctx.service)
    base = machine_data(machine, operation_id, credentials_ref="", expected={})
    decision = leaving.begin(machine, wish, operation_id=operation_id, run_id=base["sanitise_run_id"], now=ctx.now)
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
        after = decision.machine
        node = leaving.has_node(machine)
        data = leaving_data({**base, "version": after.version}, wipe=after.wanted_sanitise_run is not None, node=node)
        await ctx.start_saga(
            "decommission_machine",
            data,
            target_kind="machine",
            target_id=machine.id,
            site=machine.site,
            operation_id=operation_id,
        )
    return decision
