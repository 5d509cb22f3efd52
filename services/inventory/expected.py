"""Expected machines that a person tells of: a manifest imported, a candidate approved.

Both end in the same EXPECTED machine that NetBox would make, one transaction at a time for each site, so that two
operators who bring in the same rack at once make it once. When NetBox gets the machine later, it is that machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.discovery import CandidateState
from libs.contracts.hardware_ids import serial_number
from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import ProfileFacts, RackFacts, RackUpdated
from libs.runtime.calls import CallHandlers
from libs.runtime.params import invalid, parse
from services.inventory import discovery_store, store
from services.inventory.adapters.manifest_text import BadManifest, read_manifest
from services.inventory.discovery import candidate_body, closed
from services.inventory.model.candidates import decided
from services.inventory.model.expected import (
    DEFAULT_ROLE,
    MANIFEST,
    ExpectedMachine,
    Known,
    Outcome,
    Placed,
    RowProblem,
    clashes,
    place,
    read_row,
)
from services.inventory.model.machine import Change, Machine
from services.inventory.model.source import profile_for, register, update
from services.inventory.settings import InventorySettings

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
SETTINGS = InventorySettings()
# The report goes back in one message.
MOST_PROBLEMS = 300


class _Import(BaseModel):
    format: Literal["csv", "yaml"]
    text: Annotated[str, Field(max_length=250_000)]
    dry_run: bool = False
    first_row: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class _Approved(BaseModel):
    candidate_id: Name
    name: Name
    rack: Name
    device_type: Name
    serial: Name
    position: Annotated[float, Field(gt=0, le=100)] | None = None
    role: Name = DEFAULT_ROLE
    asset_tag: Annotated[str, StringConstraints(max_length=100)] = ""
    nic_macs: Annotated[list[Name], Field(max_length=32)] = []


async def import_machines(ctx: Context, call: Call) -> Answer:
    """Take in every row that is right; report every one that is not. `dry_run` reports and changes nothing."""
    wanted = parse(_Import, call.params)
    if isinstance(wanted, Answer):
        return wanted
    try:
        raw = read_manifest(wanted.text, wanted.format)
    except BadManifest as error:
        return invalid([{"field": "text", "message": str(error)}])
    shift = wanted.first_row - 1
    rows, problems = _read(((number + shift, values) for number, values in raw), await _known(ctx))
    placed, more = await _place(ctx, rows)
    problems += more
    if not wanted.dry_run:
        await _take_in(ctx, placed)
    return Answer(body=_report(len(raw), placed, problems, wanted.dry_run))


async def approve_candidate(ctx: Context, call: Call) -> Answer:
    """Make the machine that a candidate is: EXPECTED, at the address where it was seen."""
    wanted = parse(_Approved, call.params)
    if isinstance(wanted, Answer):
        return wanted
    before = await discovery_store.candidate(ctx.conn, wanted.candidate_id, lock=True)
    if before is None:
        return not_found("candidate", wanted.candidate_id)
    if before.state in (CandidateState.APPROVED, CandidateState.KNOWN):
        return closed(before)
    fields = wanted.model_dump(exclude={"candidate_id"})
    raw = {**fields, "site": before.site, "bmc_mac": before.bmc_mac, "bmc_address": before.address}
    rows, problems = _read([(1, raw)], await _known(ctx))
    placed, more = await _place(ctx, rows)
    if problems or more:
        return invalid([{"field": p.column, "message": f"{p.why}; {p.remedy}"} for p in (*problems, *more)])
    (machine,) = await _take_in(ctx, placed)
    after = decided(before, CandidateState.APPROVED, by=call.actor, machine_id=machine.id)
    await discovery_store.save_candidate(ctx, before, after)
    body = {**candidate_body(after), "machine_name": machine.name}
    return Answer(status=201, body=body, location=f"/machines/{machine.id}")


def _read(raw: Iterable[tuple[int, Mapping[str, Any]]], known: Known) -> tuple[list[ExpectedMachine], list[RowProblem]]:
    """The rows that are right by themselves and beside one another, and what is wrong with the others."""
    rows: list[ExpectedMachine] = []
    problems: list[RowProblem] = []
    for number, values in raw:
        read = read_row(number, values, known)
        if isinstance(read, ExpectedMachine):
            rows.append(read)
        else:
            problems += read
    clashing = clashes(rows)
    bad = {found.row for found in clashing}
    return [row for row in rows if row.row not in bad], [*problems, *clashing]


async def _known(ctx: Context) -> Known:
    profiles = await store.profiles(ctx.conn)
    kinds = set((await ctx.conn.execute(select(store.device_type_table.c.slug))).scalars())
    kinds |= {kind for profile in profiles for kind in profile.device_types}
    sites = set((await ctx.conn.execute(select(store.site_table.c.slug))).scalars())
    return Known(frozenset(sites), frozenset(kinds), frozenset(SETTINGS.netbox_roles))


async def _place(ctx: Context, rows: Sequence[ExpectedMachine]) -> tuple[list[Placed], list[RowProblem]]:
    """What becomes of each row, decided under its site's lock; and the rows that clash with a machine."""
    for site in sorted({row.site for row in rows}):
        await discovery_store.lock_site(ctx.conn, site)
    near = _Near(await discovery_store.machines_like(ctx.conn, rows))
    found = [place(row, near.to(row)) for row in rows]
    return [one for one in found if not one.problems], [problem for one in found for problem in one.problems]


class _Near:
    """Machines by every key that a row may share with them."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._by_key: dict[tuple[str, str], dict[str, Machine]] = defaultdict(dict)
        for machine in machines:
            for key in _keys(machine):
                self._by_key[key][machine.id] = machine

    def to(self, row: ExpectedMachine) -> list[Machine]:
        return list({id_: machine for key in _keys(row) for id_, machine in self._by_key.get(key, {}).items()}.values())


def _keys(one: Machine | ExpectedMachine) -> Iterable[tuple[str, str]]:
    yield "name", f"{one.site}/{one.name}"
    yield "address", f"{one.site}/{one.bmc_address}"
    yield "serial", serial_number(one.serial)
    yield from (("port", mac) for mac in {*one.nic_macs, one.bmc_mac} - {""})


async def _take_in(ctx: Context, placed: Sequence[Placed]) -> list[Machine]:
    """Write what is new or changed; the machines of all rows, in their order."""
    profiles = await store.profiles(ctx.conn)
    racks = await _racks(ctx, [one.row for one in placed if one.outcome in (Outcome.NEW, Outcome.CHANGED)])
    new: list[Change] = []
    machines: list[Machine] = []
    for one in placed:
        if one.outcome is Outcome.NEW:
            change = _registered(ctx, one.row, racks, profiles)
            new.append(change)
            machines.append(change.machine)
        elif one.outcome is Outcome.CHANGED and one.machine is not None:
            machines.append(await _corrected(ctx, one.machine, one.row, racks, profiles))
        elif one.machine is not None:
            machines.append(one.machine)
    await store.add_machines(ctx, new)
    return machines


Racks = Mapping[tuple[str, str], str]


def _registered(ctx: Context, row: ExpectedMachine, racks: Racks, profiles: Sequence[ProfileFacts]) -> Change:
    device = row.device(racks[row.site, row.rack])
    change = register(derived_uuid(*device.key.split(":", 1)), device, profile_for(row.device_type, profiles), ctx.now)
    return change.quietly(origin=MANIFEST)


async def _corrected(
    ctx: Context, machine: Machine, row: ExpectedMachine, racks: Racks, profiles: Sequence[ProfileFacts]
) -> Machine:
    locked = await store.lock(ctx.conn, machine.id)
    assert locked is not None, f"machine {machine.id} was just read"
    device, profile = row.device(racks[row.site, row.rack]), profile_for(row.device_type, profiles)
    change = update(locked, device, profile, ctx.now).quietly(origin=MANIFEST)
    await store.save(ctx, locked, change)
    return change.machine


async def _racks(ctx: Context, rows: Iterable[ExpectedMachine]) -> Racks:
    """(site, rack) → id; a rack that nobody told of is made."""
    table = store.rack_table
    known = (await ctx.conn.execute(select(table.c.site, table.c.name, table.c.id))).all()
    ids = {(row.site, row.name): row.id for row in known}
    for site, name in sorted({(row.site, row.rack) for row in rows} - ids.keys()):
        rack_id = derived_uuid("manifest", "rack", site, name)
        facts = RackFacts(id=rack_id, name=name, site=site, version=1)
        await store.put_row(ctx.conn, table, "id", facts.model_dump())
        ctx.emit(RackUpdated(rack=facts), entity_id=rack_id, entity_version=1, site=site)
        ids[site, name] = rack_id
    return ids


def _report(rows: int, placed: Sequence[Placed], problems: Sequence[RowProblem], dry_run: bool) -> dict[str, Any]:
    """What was done, or would be: counts, and every problem with its row."""
    counts = Counter(one.outcome.value for one in placed)
    wrong = sorted(problems, key=lambda found: (found.row, found.column))
    return {
        "dry_run": dry_run,
        "rows": rows,
        **{outcome.value: counts[outcome.value] for outcome in Outcome},
        "bad": len({found.row for found in wrong}),
        "problems": [found.as_dict() for found in wrong[:MOST_PROBLEMS]],
        "problems_left_out": max(0, len(wrong) - MOST_PROBLEMS),
    }


CALLS: CallHandlers = {"import_machines": import_machines, "approve_candidate": approve_candidate}
