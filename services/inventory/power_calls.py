"""The gateway's call to switch a machine on or off. A machine that a process works on is left to that process."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.inventory import MachineState as S
from libs.runtime.calls import CallHandlers
from libs.runtime.params import parse
from services.inventory import repairs, store
from services.inventory.queries import ambiguous

# A process or a deploy decides its power now.
_DECIDED_BY_A_PROCESS = (
    S.ENROLLING,
    S.SANITIZING,
    S.VALIDATING,
    S.PROVISIONING,
    S.RELEASING,
    S.DECOMMISSIONING,
    S.RETIRED,
)


class _Power(BaseModel):
    machine_id: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    power: Literal["on", "off"]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500)]


async def set_power(ctx: Context, call: Call) -> Answer:
    """Switch on what is deployed for a claim, or switch off what no process works on; each seen by the BMC's word."""
    wanted = parse(_Power, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(ctx.conn, wanted.machine_id)
    if len(found) > 1:
        return ambiguous(wanted.machine_id, found)
    machine = await store.lock(ctx.conn, found[0].id) if found else None
    if machine is None:
        return not_found("machine", wanted.machine_id)
    if call.if_match not in (None, "*") and str(call.if_match).strip('"') != str(machine.version):
        words = f"{machine.name} is at version {machine.version}, not {call.if_match}."
        return problem(412, "request.precondition_failed", words, "Look at it again, then decide anew.")
    if machine.state in _DECIDED_BY_A_PROCESS or (wanted.power == "on" and machine.state is not S.ASSIGNED):
        return problem(
            409,
            "machine.power_not_free",
            f"{machine.name} is {machine.state}; it can't be switched {wanted.power} by hand.",
            "Only an ASSIGNED machine is switched on, for nothing else may boot from its disks; and none is switched "
            "while a process works on it.",
        )
    operation = await repairs.power(ctx, machine, wanted.power, wanted.reason)
    body = {"operation_id": operation, "machine_id": machine.id}
    return Answer(status=202, body=body, location=f"/operations/{operation}")


CALLS: CallHandlers = {"set_power": set_power}
