"""Differences between a source and us: kept on the machine while they last, told once when they begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from libs.contracts.inventory import Drift, MachineState
from services.inventory.model.holds import NETBOX
from services.inventory.model.machine import Change, Machine
from services.inventory.model.ownership import WRITABLE, ownership

NETBOX_SOURCE = "netbox"


def netbox_drift(machine: Machine, field: str, ours: str, theirs: str, now: datetime, repair: str = "") -> Drift:
    """What NetBox says otherwise; its owner and, unless given, its repair as declared."""
    row = ownership(field)
    owner = row.owner_of(enrolled=machine.state is not MachineState.EXPECTED)
    return Drift(
        source=NETBOX_SOURCE,
        field=field,
        ours=ours,
        theirs=theirs,
        owner=owner.value,
        repair=repair or row.repair,
        since=now,
    )


def _same(drift: Drift) -> tuple[str, str, str]:
    return drift.source, drift.field, drift.theirs


def lasting(machine: Machine, found: Iterable[Drift]) -> tuple[Drift, ...]:
    """The machine's drifts with NetBox's being exactly `found`; one that was there keeps its beginning."""
    since = {_same(drift): drift.since for drift in machine.drifts}
    mine = [drift.model_copy(update={"since": since.get(_same(drift), drift.since)}) for drift in found]
    return (*(drift for drift in machine.drifts if drift.source != NETBOX_SOURCE), *mine)


def news(machine: Machine, found: Iterable[Drift]) -> list[Drift]:
    """What of `found` the machine does not carry yet."""
    known = {_same(drift) for drift in machine.drifts}
    return [drift for drift in found if _same(drift) not in known]


def told(change: Change, drifts: Iterable[Drift]) -> Change:
    """One event for each of `drifts`."""
    for drift in drifts:
        change = change.drifted(
            drift.field, drift.ours, drift.theirs, NETBOX, field_owner=drift.owner, repair=drift.repair
        )
    return change


Shown = Mapping[str, str | None]


def edited(machine: Machine, shows: Shown, written: Sequence[Shown], now: datetime) -> Change:
    """Somebody changed fields of ours in NetBox: an event for each that none of our writes explains.

    `written`: what it showed when we last knew, then what we may have written since. The difference does not last (our
    own value is written again), so the machine does not carry it. Nothing written yet: nothing can be told apart.
    """
    if not written:
        return Change(machine)
    foreign = [name for name in WRITABLE if all(plain(shows.get(name)) != plain(one.get(name)) for one in written)]
    ours = written[-1]
    found = [netbox_drift(machine, name, ours.get(name) or "", shows.get(name) or "", now) for name in foreign]
    return told(Change(machine), found)


def same_fields(shows: Shown, ours: Shown) -> bool:
    """Whether NetBox shows our own fields as we would write them."""
    return all(plain(shows.get(name)) == plain(value) for name, value in ours.items())


def plain(value: str | None) -> str | datetime:
    """A value as it is compared: NetBox may write a time in another form than we do."""
    text = value or ""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
