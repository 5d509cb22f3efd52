"""Take a walk over the source into the books: sites, racks, types, then machines in small transactions.

Every step is level-based and may be repeated; the position moves on only at the end. What a walk did not see is
concluded from a full walk alone, and then only holds a machine, never removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Table

from libs.bus.context import Context
from libs.contracts.ids import derived_uuid, is_uuid
from libs.contracts.inventory import (
    DeviceTypeFacts,
    DeviceTypeUpdated,
    ProfileFacts,
    RackFacts,
    RackUpdated,
    SiteFacts,
    SiteUpdated,
)
from libs.contracts.message import Message
from services.inventory import source_store, store
from services.inventory.adapters.source import Walk
from services.inventory.discovery_store import told_of
from services.inventory.model.drift import edited, same_fields
from services.inventory.model.expected import adoptions
from services.inventory.model.machine import Change, Machine
from services.inventory.model.places import Names, settle
from services.inventory.model.source import (
    DeviceProblem,
    SourceDevice,
    bad_record,
    duplicates,
    missing,
    profile_for,
    register,
    set_duplicates,
    update,
    written_fields,
)

# A transaction of this many new machines lasts tens of milliseconds.
BATCH = 100

Transactions = Callable[[], AbstractAsyncContextManager[Context]]


@dataclass
class Intake:
    """What came of a walk."""

    changed: int = 0
    problems: list[DeviceProblem] = field(default_factory=list)


def machine_id_of(device: SourceDevice, by_netbox_id: dict[int, str], known: set[str]) -> str | DeviceProblem:
    """Our id of a device: the one we gave it, else the one it carries, else one made from its key.

    A device that carries the id of another device's machine (a copied record) is a problem, not that machine.
    """
    if device.netbox_id is not None and device.netbox_id in by_netbox_id:
        return by_netbox_id[device.netbox_id]
    if device.machine_id and is_uuid(device.machine_id):
        if device.machine_id in known and device.machine_id in by_netbox_id.values():
            words = f"its slipway_machine_id {device.machine_id} belongs to another device; clear the field"
            return DeviceProblem(device.key, device.netbox_id, device.name, words)
        return device.machine_id
    return derived_uuid(*device.key.split(":", 1))


Superseded = Callable[[int], bool]


async def take_in(
    walk: Walk, transaction: Transactions, began: datetime, superseded: Superseded = lambda _: False
) -> Intake:
    """Apply the walk that `began` then. Raises Transient when a machine was changed meanwhile: the next brings it.

    `superseded`: whether a device was read again since the walk began, so that what the walk saw of it is old.
    """
    async with transaction() as ctx:
        walk = await _under_our_names(ctx, walk)
        await _places(ctx, walk)
        by_netbox_id, known = await store.machine_keys(ctx.conn)
        by_netbox_id |= adoptions(walk.devices, by_netbox_id, await told_of(ctx.conn))
        profiles = await store.profiles(ctx.conn)
    result = Intake(problems=list(walk.problems))
    wanted: dict[str, SourceDevice] = {}
    for device in walk.devices:
        found = machine_id_of(device, by_netbox_id, known)
        if isinstance(found, DeviceProblem):
            result.problems.append(found)
        else:
            wanted[found] = device
    result.changed += await _register(transaction, {k: d for k, d in wanted.items() if k not in known}, profiles)
    there = {key: device for key, device in wanted.items() if key in known}
    result.changed += await _update(transaction, there, profiles, began, superseded)
    words = {by_netbox_id[p.netbox_id]: p.problem for p in result.problems if p.netbox_id in by_netbox_id}
    await _each(transaction, words, lambda machine, now: bad_record(machine, words[machine.id]))
    unseen = {by_netbox_id[number] for number in walk.absent if number in by_netbox_id}
    if walk.full:
        unseen |= known - set(wanted) - set(words)
    result.changed += await _each(transaction, unseen, lambda machine, now: _missing(machine, now, superseded))
    if result.changed or walk.full:
        result.changed += await _duplicates(transaction)
    return result


def _missing(machine: Machine, now: datetime, superseded: Superseded) -> Change:
    old = machine.netbox_id is not None and superseded(machine.netbox_id)
    return Change(machine) if old else missing(machine, now)


Decide = Callable[[Machine, datetime], Change]


async def _each(transaction: Transactions, machine_ids: Iterable[str], decide: Decide) -> int:
    """Change the machines that `decide` changes, each locked alone in a transaction of its own; how many.

    Most do not change, and those are not locked at all. Two locks in one transaction could meet those of a batch of
    commands in the other order.
    """
    ids = sorted(machine_ids)
    changed = 0
    for first in range(0, len(ids), BATCH):
        async with transaction() as ctx:
            found = await store.load_all(ctx.conn, ids[first : first + BATCH])
            differing = [machine.id for machine in found if decide(machine, ctx.now).machine != machine]
        for machine_id in differing:
            changed += await _change(transaction, machine_id, decide)
    return changed


async def _change(transaction: Transactions, machine_id: str, decide: Decide) -> bool:
    async with transaction() as ctx:
        machine = await store.lock(ctx.conn, machine_id)
        if machine is None:
            return False
        change = decide(machine, ctx.now)
        await store.save(ctx, machine, change)
        return bool(change.events)


async def _register(
    transaction: Transactions, wanted: dict[str, SourceDevice], profiles: Sequence[ProfileFacts]
) -> int:
    ids = sorted(wanted)
    for first in range(0, len(ids), BATCH):
        async with transaction() as ctx:
            new = [
                register(key, wanted[key], profile_for(wanted[key].device_type, profiles), ctx.now)
                for key in ids[first : first + BATCH]
            ]
            await store.add_machines(ctx, new)
    return len(ids)


async def _update(
    transaction: Transactions,
    wanted: dict[str, SourceDevice],
    profiles: Sequence[ProfileFacts],
    began: datetime,
    superseded: Superseded,
) -> int:
    """Take what changed; where NetBox does not show our fields as they are, have them written again."""

    def decide(machine: Machine, now: datetime) -> Change:
        device = wanted[machine.id]
        if device.netbox_id is not None and superseded(device.netbox_id):
            return Change(machine)
        return update(machine, device, profile_for(device.device_type, profiles), now)

    changed = 0
    ids = sorted(wanted)
    for first in range(0, len(ids), BATCH):
        async with transaction() as ctx:
            found = await store.load_all(ctx.conn, ids[first : first + BATCH])
            differing = [machine.id for machine in found if decide(machine, ctx.now).machine != machine]
        for machine_id in differing:
            changed += await _change(transaction, machine_id, decide)
        for machine in found:
            if not _shows(wanted[machine.id], machine):
                async with transaction() as ctx:
                    changed += await _write_again(ctx, machine.id, wanted[machine.id], began, superseded)
    return changed


def _shows(device: SourceDevice, machine: Machine) -> bool:
    return device.owned is None or same_fields(device.owned, written_fields(machine))


async def _write_again(
    ctx: Context, machine_id: str, device: SourceDevice, began: datetime, superseded: Superseded
) -> bool:
    machine = await store.lock(ctx.conn, machine_id)
    if machine is None or device.netbox_id is None or device.owned is None:
        return False
    known = (await source_store.shown(ctx.conn, [device.netbox_id])).get(device.netbox_id)
    if (known is not None and known["sent_at"] >= began) or superseded(device.netbox_id):
        return False  # It was written while the walk was under way: what the walk saw may be older.
    written = [one for one in (known["shows"], known["sent"]) if one is not None] if known else []
    change = edited(machine, device.owned, written, ctx.now)
    if change.events:
        await source_store.shows(ctx.conn, device.netbox_id, device.owned)
        await store.save(ctx, machine, change)
    await store.want_written(ctx, change.machine)
    return bool(change.events)


async def _duplicates(transaction: Transactions) -> int:
    """Compare all with all, because a new record may share something with one that did not change."""
    async with transaction() as ctx:
        shared = duplicates(await store.known_machines(ctx.conn))
        held = await store.held_as_duplicates(ctx.conn)
    return await _each(
        transaction, {*shared, *held}, lambda machine, now: set_duplicates(machine, shared.get(machine.id, ()), now)
    )


SITE_HANGS = "satellites, streams and machines are named after it"
TYPE_HANGS = "profiles list it by that slug"


async def _under_our_names(ctx: Context, walk: Walk) -> Walk:
    """The walk with sites and device types under the slugs that we know them by."""
    sites = await _names(ctx, "site", store.site_table, walk.sites, SITE_HANGS)
    kinds = await _names(ctx, "device type", store.device_type_table, walk.device_types, TYPE_HANGS)
    if not (sites.problems or kinds.problems):
        return walk
    devices, problems = (
        [],
        [DeviceProblem(k, None, "", words) for k, words in {**sites.problems, **kinds.problems}.items()],
    )
    for device in walk.devices:
        if device.site in sites.taken or device.device_type in kinds.taken:
            words = (
                f"its site {device.site} or device type {device.device_type} has a slug that means another one to us"
            )
            problems.append(DeviceProblem(device.key, device.netbox_id, device.name, words))
        else:
            kind = _ours(kinds, device.device_type)
            devices.append(replace(device, site=_ours(sites, device.site), device_type=kind))
    return replace(
        walk,
        sites=tuple(replace(s, slug=_ours(sites, s.slug)) for s in walk.sites if s.slug not in sites.taken),
        device_types=tuple(
            replace(k, slug=_ours(kinds, k.slug)) for k in walk.device_types if k.slug not in kinds.taken
        ),
        racks=tuple(replace(r, site=_ours(sites, r.site)) for r in walk.racks if r.site not in sites.taken),
        devices=tuple(devices),
        problems=(*walk.problems, *problems),
    )


def _ours(names: Names, slug: str) -> str:
    return names.ours.get(slug, slug)


async def _names(ctx: Context, kind: str, table: Table, found: Sequence[Any], why: str) -> Names:
    kept = await store.rows_by_key(ctx.conn, table, "slug")
    return settle(kind, {slug: row["netbox_id"] for slug, row in kept.items()}, found, why)


async def _places(ctx: Context, walk: Walk) -> None:
    await _put(ctx, store.site_table, "slug", [asdict(site) for site in walk.sites], _site_event)
    await _put(ctx, store.rack_table, "id", [asdict(rack) for rack in walk.racks], _rack_event)
    await _put(ctx, store.device_type_table, "slug", [asdict(kind) for kind in walk.device_types], _type_event)


def _site_event(row: dict[str, Any]) -> Message:
    return SiteUpdated(site=SiteFacts.model_validate(row))


def _rack_event(row: dict[str, Any]) -> Message:
    return RackUpdated(rack=RackFacts.model_validate(row))


def _type_event(row: dict[str, Any]) -> Message:
    return DeviceTypeUpdated(device_type=DeviceTypeFacts.model_validate(row))


async def _put(
    ctx: Context, table: Table, key: str, rows: Sequence[dict[str, Any]], event: Callable[[dict[str, Any]], Message]
) -> None:
    """Write what differs from what is kept, and say so."""
    kept = await store.rows_by_key(ctx.conn, table, key)
    for row in rows:
        before = kept.get(row[key], {"version": 0})
        after = {**before, **row, "version": before["version"] + 1}
        if all(before.get(name) == value for name, value in row.items()) and before["version"]:
            continue
        await store.put_row(ctx.conn, table, key, after)
        ctx.emit(event(after), entity_id=row[key], entity_version=after["version"], site=_site_of(table, row))


def _site_of(table: Table, row: dict[str, Any]) -> str:
    return str(row["slug"] if table is store.site_table else row.get("site", "-"))
