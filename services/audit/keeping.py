"""Put events into their service's chain: new ones at its end, lost ones back into their place, no two into one.

Whoever calls holds the lock of the service's position (the projector, or `restore`), so nobody else adds to the same
chain meanwhile. An event that the chain has no room for is refused: the number is taken by another event, or what
follows was chained without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipway.proof import chained
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from services.audit import store
from services.audit.record import canonical, event_row


@dataclass(frozen=True)
class Refused:
    """An event that was not kept. `kept_digest` is the chain's digest before its place."""

    envelope: Envelope
    kept_digest: str
    why: str


@dataclass
class Kept:
    """What became of a batch."""

    new: list[Envelope] = field(default_factory=list)
    known: int = 0
    removed: int = 0
    refused: list[Refused] = field(default_factory=list)


async def keep(
    conn: AsyncConnection, service: str, events: Sequence[Envelope], digests: Mapping[int, str] | None = None
) -> Kept:
    """Keep the service's events. `digests` (a restore): what each must get, and no number may be passed over."""
    kept = Kept()
    if not events:
        return kept
    await store.ensure_partitions(conn, (event.time for event in events))
    ordered = sorted(events, key=lambda event: event.stream_sequence)
    end = await store.chain_end(conn, service)
    if ordered[0].stream_sequence > end[0] and _rises(ordered):
        await _append(conn, ordered, end, digests, kept)
        return kept
    for run in _runs(await _unknown(conn, service, ordered, kept)):
        before = await store.chain_end(conn, service, run[0].stream_sequence)
        await _append(conn, run, before, digests, kept, service)
    return kept


def _rises(ordered: Sequence[Envelope]) -> bool:
    return len({event.stream_sequence for event in ordered}) == len(ordered)


async def _unknown(
    conn: AsyncConnection, service: str, ordered: Sequence[Envelope], kept: Kept
) -> list[tuple[bool, Envelope]]:
    """Events whose numbers are free, each with whether it follows the one before it directly."""
    first, last = ordered[0].stream_sequence, ordered[-1].stream_sequence
    texts = await store.kept_between(conn, service, first, last)
    removed = await store.removed_ranges(conn, service, first, last)
    unknown: list[tuple[bool, Envelope]] = []
    direct = False
    for event in ordered:
        sequence = event.stream_sequence
        if sequence in texts:
            direct = False
            if texts[sequence] == canonical(event):
                kept.known += 1
            else:
                _, digest = await store.chain_end(conn, service, sequence)
                kept.refused.append(Refused(event, digest, f"number {sequence} is taken by another event"))
        elif any(low <= sequence <= high for low, high in removed):
            direct = False
            kept.removed += 1
        else:
            # What lies between two given numbers may be kept: a run never reaches over a number that was not given.
            direct = direct and bool(unknown) and unknown[-1][1].stream_sequence == sequence - 1
            unknown.append((direct, event))
            texts[sequence] = canonical(event)
            direct = True
    return unknown


def _runs(unknown: Sequence[tuple[bool, Envelope]]) -> Iterator[list[Envelope]]:
    run: list[Envelope] = []
    for direct, event in unknown:
        if run and not direct:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


async def _append(
    conn: AsyncConnection,
    run: Sequence[Envelope],
    before: tuple[int, str],
    digests: Mapping[int, str] | None,
    kept: Kept,
    follows_in: str | None = None,
) -> None:
    """Chain the run to what is before it. `follows_in`: the service, when something may come after the run."""
    rows: list[dict[str, Any]] = []
    place, digest = before
    for event in run:
        text = canonical(event)
        computed = chained(digest, text)
        why = _misfit(event.stream_sequence, place, computed, digests) if digests is not None else ""
        if why:
            kept.refused += [Refused(late, digest, why) for late in run[len(rows) :]]
            break
        rows.append(event_row(event, computed))
        place, digest = event.stream_sequence, computed
    if not rows:
        return
    fitting = run[: len(rows)]
    if follows_in is not None and len(rows) == len(run):
        after = await store.next_link(conn, follows_in, place)
        if after is not None and not _continues(digest, *after):
            why = f"the event after {place} was chained without it"
            kept.refused += [Refused(event, before[1], why) for event in fitting]
            return
    await store.add_events(conn, rows)
    kept.new += fitting


def _misfit(sequence: int, place: int, computed: str, digests: Mapping[int, str]) -> str:
    given = digests.get(sequence)
    if given is not None and given != computed:
        return f"event {sequence} has digest {given}; after what is kept up to {place} it must be {computed}"
    if given is None and sequence != place + 1:
        return f"numbers {place + 1} to {sequence - 1} are missing before it; restore them first"
    return ""


def _continues(digest: str, text: str | None, next_digest: str) -> bool:
    return digest == next_digest if text is None else chained(digest, text) == next_digest
