"""Names of places and types when NetBox renames them: the same thing by its number keeps the name that we use.

Sites name satellites, streams and subjects, and profiles list device types by slug: a renamed slug must neither move a
fleet nor make it vanish. One problem says so; every machine goes on under our name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Named(Protocol):
    """A site or a device type as NetBox has it."""

    @property
    def slug(self) -> str: ...
    @property
    def netbox_id(self) -> int | None: ...


@dataclass(frozen=True)
class Names:
    """`ours`: NetBox's slug → the one that we use. `taken`: slugs that mean another thing to us than to NetBox."""

    ours: Mapping[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)


def settle(kind: str, kept: Mapping[str, int | None], found: Iterable[Named], why: str) -> Names:
    """Compare what NetBox lists with what we keep (slug → NetBox's number). `why` says what hangs on the slug."""
    listed = list(found)
    numbers = {number: slug for slug, number in kept.items() if number is not None}
    there = {one.netbox_id for one in listed}
    ours, taken, problems = {}, set(), {}
    for one in listed:
        before = numbers.get(one.netbox_id) if one.netbox_id is not None else None
        if before is not None and before != one.slug:
            ours[one.slug] = before
            problems[f"{kind}:{one.netbox_id}"] = (
                f"{kind} {before} is called {one.slug} in NetBox now; Slipway goes on calling it {before}, because "
                f"{why}: rename the slug back in NetBox"
            )
        holder = kept.get(one.slug)
        if before is None and holder is not None and holder != one.netbox_id and holder in there:
            taken.add(one.slug)
            problems[f"{kind}:{one.netbox_id}"] = (
                f"{kind} {one.slug} (number {one.netbox_id} in NetBox) has the slug that was number {holder}'s: "
                "give it another slug; until then nothing of it is read"
            )
    return Names(ours, frozenset(taken), problems)
