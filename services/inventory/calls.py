"""Writes of the gateway: enrol, retry, quarantine and release, holds, profiles, read the source now."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.ids import new_id
from libs.contracts.inventory import BillOfMaterials, Hold, MachineState, ProfileFacts, ProfileUpdated
from libs.contracts.message import json_data
from libs.contracts.replies import Problem
from libs.runtime.calls import CallHandlers
from libs.runtime.params import invalid, parse
from services.inventory import processes, store
from services.inventory.model import holds
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.model.source import profile_fields, profile_for
from services.inventory.queries import ambiguous, machine_body

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500)]


class _Machine(BaseModel):
    machine_id: Name


class _Reasoned(_Machine):
    reason: Reason


class _HoldOf(_Machine):
    hold_id: Name


class Enrolment(BaseModel):
    racks: Annotated[list[Name], Field(max_length=200)] = []
    machines: Annotated[list[Name], Field(max_length=2000)] = []
    site: Name | None = None


class _Profile(BaseModel):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
    description: Annotated[str, StringConstraints(max_length=500)] = ""
    device_types: Annotated[list[Name], Field(min_length=1, max_length=100)]
    gpu_model: Annotated[str, StringConstraints(max_length=100)] = ""
    gpu_count: Annotated[int, Field(ge=0, le=64)] = 0
    cpu_sockets: Annotated[int, Field(ge=1, le=64)] | None = None
    memory_gib: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    bom: BillOfMaterials | None = None


async def one_machine(ctx: Context, wanted: str, if_match: str | None = None) -> Machine | Answer:
    """The machine with this id or name, locked, at the version that was named if one was; or why not."""
    found = await store.find(ctx.conn, wanted)
    if len(found) > 1:
        return ambiguous(wanted, found)
    machine = await store.lock(ctx.conn, found[0].id) if found else None
    if machine is not None and if_match not in (None, "*") and str(if_match).strip('"') != str(machine.version):
        words = f"{machine.name} is at version {machine.version}, not {if_match}."
        return problem(412, "request.precondition_failed", words, "Look at it again, then decide anew.")
    return machine or not_found("machine", wanted)


def _refused(decision: Decision) -> Answer:
    reply = decision.reply
    cause = reply.problem if reply else None
    if cause is None:
        return problem(409, "machine.refused", "It can't be done now.")
    return problem(409, cause.code, cause.message, cause.next_step, details=cause.details)


async def _settled(ctx: Context, machine: Machine, decision: Decision) -> Answer:
    """Save, and show the machine as it is now."""
    if not isinstance(decision, Change):
        return _refused(decision)
    await store.save(ctx, machine, decision)
    after = decision.machine
    return Answer(body=machine_body(after), etag=f'"{after.version}"')


def started(decision: Decision) -> Answer:
    """A process was started on the machine: 202 with its operation."""
    if not isinstance(decision, Change):
        return _refused(decision)
    operation = decision.machine.operation_id
    body = {"operation_id": operation, "machine_id": decision.machine.id, "state": decision.machine.state.value}
    return Answer(status=202, body=body, location=f"/operations/{operation}")


# -- enrolment --------------------------------------------------------------------------------------


async def enrol_machines(ctx: Context, call: Call) -> Answer:
    """Start the enrolment of every EXPECTED or FAILED(enrol) machine that is named, by rack, name, id or site."""
    wanted = parse(Enrolment, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if not wanted.racks and not wanted.machines and wanted.site is None:
        return invalid([{"field": "machines", "message": "name at least one rack, machine or site to enrol"}])
    named, errors = await named_machines(ctx, wanted)
    if errors:
        return invalid(errors)
    ready = [machine for machine in named if _may_enrol(machine)]
    skipped = [_brief(machine, f"it is {machine.state}") for machine in named if not _may_enrol(machine)]
    if not ready:
        return problem(
            409,
            "enrolment.nothing_to_do",
            f"None of the {len(named)} machines can be enrolled: only EXPECTED and FAILED(enrol) ones can.",
            "Look at their states: GET /machines.",
            skipped=skipped,
        )
    machines = [_brief(machine) for machine in ready]
    data = {
        "machines": machines,
        "names": {machine.id: machine.name for machine in ready},
        "skipped": skipped,
    }
    site = ready[0].site if len({machine.site for machine in ready}) == 1 else "-"
    operation = await ctx.start_saga(
        "enrol_machines", data, target_kind="enrolment", target_id=new_id("enr"), site=site
    )
    body = {"operation_id": operation, "machines": machines, "skipped": skipped}
    return Answer(status=202, body=body, location=f"/operations/{operation}")


def _may_enrol(machine: Machine) -> bool:
    return machine.state is MachineState.EXPECTED or (
        machine.state is MachineState.FAILED and machine.failed_step == "enrol"
    )


def _brief(machine: Machine, reason: str | None = None) -> dict[str, Any]:
    more = {} if reason is None else {"reason": reason}
    return {"id": machine.id, "name": machine.name, **more}


async def named_machines(ctx: Context, wanted: Enrolment) -> tuple[list[Machine], list[dict[str, str]]]:
    """The machines that are meant, by name; and every name that means none or several."""
    errors: list[dict[str, str]] = []
    sites = set((await ctx.conn.execute(select(store.site_table.c.slug))).scalars())
    if wanted.site is not None and wanted.site not in sites:
        return [], [{"field": "site", "message": f"there is no site {wanted.site!r}"}]
    columns = store.machine_table.c
    at_site = [] if wanted.site is None else [columns.site == wanted.site]
    found: dict[str, Machine] = {}
    racks = await _racks(ctx, wanted, errors)
    if racks:
        found |= {m.id: m for m in await store.machines_where(ctx.conn, columns.rack_id.in_(racks))}
    for index, name in enumerate(wanted.machines):
        same = [m for m in await store.find(ctx.conn, name) if wanted.site in (None, m.site)]
        if len(same) != 1:
            words = (
                f"there is no machine {name!r}" if not same else f"{len(same)} machines are called {name!r}; use an id"
            )
            errors.append({"field": f"machines.{index}", "message": words})
        found |= {m.id: m for m in same}
    if not wanted.racks and not wanted.machines:
        found = {m.id: m for m in await store.machines_where(ctx.conn, *at_site)}
    return sorted(found.values(), key=lambda machine: machine.name), errors


async def _racks(ctx: Context, wanted: Enrolment, errors: list[dict[str, str]]) -> list[str]:
    """Ids of the racks that are named (by id or name)."""
    table = store.rack_table
    rows = (await ctx.conn.execute(select(table))).all()
    ids: list[str] = []
    for index, name in enumerate(wanted.racks):
        same = [row.id for row in rows if name in (row.id, row.name) and wanted.site in (None, row.site)]
        if len(same) != 1:
            words = (
                f"there is no rack {name!r}" if not same else f"{len(same)} racks are called {name!r}; give the site"
            )
            errors.append({"field": f"racks.{index}", "message": words})
        ids += same
    return ids


# -- one machine ------------------------------------------------------------------------------------


async def retry_machine(ctx: Context, call: Call) -> Answer:
    wanted = parse(_Machine, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    if machine.state is not MachineState.FAILED:
        return problem(
            409,
            "machine.not_failed",
            f"{machine.name} is {machine.state}; only a FAILED machine can be retried.",
            "A quarantined machine is released: POST /machines/{machine_id}/release-quarantine.",
        )
    if machine.failed_step == "decommission":
        return problem(
            409,
            "machine.leaving",
            f"{machine.name} failed while it was being decommissioned; a retry would bring it back into the pool.",
            "Decommission it again: POST /machines/{machine_id}/decommission. To keep it, quarantine and release it.",
        )
    return started(await processes.retry(ctx, machine))


async def release_quarantine(ctx: Context, call: Call) -> Answer:
    """QUARANTINED → wiped and validated again (inspected first when its hardware changed) → AVAILABLE."""
    wanted = parse(_Reasoned, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    if machine.state is not MachineState.QUARANTINED:
        return problem(
            409,
            "machine.not_quarantined",
            f"{machine.name} is {machine.state}, not QUARANTINED.",
            "Nothing to release.",
        )
    return started(await processes.renew(ctx, machine))


async def quarantine_machine(ctx: Context, call: Call) -> Answer:
    wanted = parse(_Reasoned, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    reason = Problem(
        code="machine.quarantined",
        message=wanted.reason,
        next_step="When it is repaired, release the quarantine: it is wiped and validated again.",
        details={"owner": call.actor},
    )
    return await _settled(ctx, machine, holds.quarantine(machine, reason, ctx.now))


async def add_hold(ctx: Context, call: Call) -> Answer:
    wanted = parse(_Reasoned, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    hold = Hold(id=new_id("hold"), owner=call.actor, reason=wanted.reason, since=ctx.now)
    answer = await _settled(ctx, machine, holds.add_hold(machine, hold))
    return answer if answer.status >= 400 else answer.model_copy(update={"status": 201})


async def remove_hold(ctx: Context, call: Call) -> Answer:
    wanted = parse(_HoldOf, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    if machine.hold(wanted.hold_id) is None:
        return not_found("hold", wanted.hold_id)
    return await _settled(ctx, machine, holds.remove_hold(machine, wanted.hold_id, call.actor, ctx.now))


# -- profiles and the source ------------------------------------------------------------------------


async def put_profile(ctx: Context, call: Call) -> Answer:
    """Make or change a profile; the machines of its device types follow in the same transaction."""
    wanted = parse(_Profile, call.params)
    if isinstance(wanted, Answer):
        return wanted
    before = await store.profile(ctx.conn, wanted.name, for_update=True)
    clash = _precondition(call, before)
    if clash is not None:
        return clash
    facts = ProfileFacts.model_validate({**wanted.model_dump(), "version": before.version + 1 if before else 1})
    others = [profile for profile in await store.profiles(ctx.conn) if profile.name != facts.name]
    taken = [(k, p.name) for p in others for k in facts.device_types if k in p.device_types]
    if taken:
        words = "; ".join(f"{kind} is in profile {name}" for kind, name in taken)
        return invalid([{"field": "device_types", "message": f"a device type belongs to one profile only: {words}"}])
    await save_profile(ctx, facts)
    kinds = {*facts.device_types, *(before.device_types if before else ())}
    for machine in await store.machines_where(ctx.conn, store.machine_table.c.device_type.in_(kinds)):
        locked = await store.lock(ctx.conn, machine.id)
        if locked is not None:
            found = profile_fields(profile_for(locked.device_type, [*others, facts]))
            await store.save(ctx, locked, Change(locked).noted(**found))
    return Answer(status=200 if before else 201, body=json_data(facts), etag=f'"{facts.version}"')


def _precondition(call: Call, before: ProfileFacts | None) -> Answer | None:
    if before is None or call.if_match == "*":
        return None
    if call.if_match is None:
        return problem(
            428,
            "request.precondition_required",
            f"The profile {before.name!r} exists; say which version you change.",
            f'Send If-Match: "{before.version}" (the ETag of GET /profiles/{before.name}).',
        )
    if call.if_match.strip('"') != str(before.version):
        return problem(
            412,
            "request.precondition_failed",
            f"The profile {before.name!r} is at version {before.version}, not {call.if_match}.",
            "Read it again, apply your change to it and send it again.",
        )
    return None


async def save_profile(ctx: Context, facts: ProfileFacts) -> None:
    await store.save_profile(ctx.conn, facts)
    ctx.emit(ProfileUpdated(profile=facts), entity_id=facts.name, entity_version=facts.version)


async def read_source(ctx: Context, call: Call) -> Answer:
    """Ask for a full walk now; GET /sources shows when it has been."""
    name = str(call.params.get("name") or store.NETBOX_SOURCE)
    if name != store.NETBOX_SOURCE:
        return not_found("source", name)
    await store.source_state(ctx.conn)
    await store.set_source_state(ctx.conn, read_wanted=True)
    return Answer(status=202, body={"source": name, "read_wanted": True}, location="/sources")


CALLS: CallHandlers = {
    "enrol_machines": enrol_machines,
    "retry_machine": retry_machine,
    "release_quarantine": release_quarantine,
    "quarantine_machine": quarantine_machine,
    "add_hold": add_hold,
    "remove_hold": remove_hold,
    "put_profile": put_profile,
    "read_source": read_source,
}
