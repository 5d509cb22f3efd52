"""What is promised of events: their numbers and order, where they are kept, and what is made from them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from chaos.breaches import MOST_SHOWN, Breaches, all_events, forgotten
from chaos.history import Event, History, Kept


def a_stream_is_gapless_and_in_order(history: History) -> Breaches:
    """Event number N lies at position N, once. No number is missing but where somebody else wrote."""
    for service, void in history.void.items():
        for number in sorted(set(void) - set(history.written.get(service, ()))):
            yield f"{service}: number {number} is void, and nobody wrote there", []
    for service, events in history.streams.items():
        void = history.void.get(service, ())
        numbers = (number for number in itertools.count(1) if number not in void)
        for expected, event in zip(numbers, events, strict=False):
            if event.position != expected or event.sequence != expected:
                yield f"{service}: event {expected} is missing or displaced", [event.model_dump_json()]
                break
        yield from _repeated(service, (event.id for event in events))


def an_entity_has_no_gap(history: History) -> Breaches:
    """Versions of an entity run 1, 2, 3, … in the stream's order.

    One that a restored database has never heard of, and that is made again under its id, begins again at 1.
    """
    for service, events in history.streams.items():
        last: dict[tuple[str, str], Event] = {}
        for event in events:
            key = (event.type.split(".")[2], event.entity)
            before = last.get(key)
            if before and event.version == 1 and forgotten(history, before) and not forgotten(history, event):
                before = None
            if event.version != (before.version if before else 0) + 1:
                lines = [each.model_dump_json() for each in (before, event) if each]
                yield f"{service}: {key[0]} {key[1]} has version {event.version} out of order", lines
            last[key] = event


def a_tenant_sees_no_gap(history: History) -> Breaches:
    for service, events in history.streams.items():
        last: Counter[str] = Counter()
        for event in events:
            last[event.tenant] += 1
            if event.tenant_sequence != last[event.tenant]:
                yield f"{service}: tenant {event.tenant} sees a gap before {event.sequence}", [event.model_dump_json()]
                last[event.tenant] = event.tenant_sequence


def what_was_committed_is_published(history: History) -> Breaches:
    for service, count in history.unpublished.items():
        if count:
            yield f"{service}: {count} messages were committed and not published", []
    for kept in history.outbox:
        if kept.sequence is None:
            yield f"{kept.service}: event {kept.id} was committed and has no number", []
    yield from _differ("the outbox", _by_service(history.outbox), history)


def the_audit_store_has_every_event(history: History) -> Breaches:
    kept = _by_service(history.audit)
    yield from _differ("the audit store", kept, history)
    for service in history.audited_services:
        missing = [event for event in history.streams.get(service, ()) if event.sequence not in kept.get(service, {})]
        if missing:
            lines = [event.model_dump_json() for event in missing[:MOST_SHOWN]]
            yield f"the audit store lacks {len(missing)} events of {service}", lines


def what_was_seen_is_never_rewritten(history: History) -> Breaches:
    """A number that anybody saw on the wire means the same event for ever, also after a broker lost its tail.

    On the wire is also what the broker refuses because somebody else took its place: that event has a later number.
    """
    seen: dict[tuple[str, int], set[str]] = defaultdict(set)
    for kept in history.witnessed:
        if kept.sequence is not None:
            seen[kept.service, kept.sequence].add(kept.id)
    final = {(event.service, event.position): event.id for event in all_events(history)}
    places = {(event.service, event.id): event.position for event in all_events(history)}
    for (service, sequence), ids in sorted(seen.items()):
        before = [number for number in history.void.get(service, ()) if number <= sequence]
        ids = {id_ for id_ in ids if not (before and places.get((service, id_), 0) > sequence)}
        now = final.get((service, sequence))
        if ids and ids != {now}:
            yield f"{service}: number {sequence} was seen as {sorted(ids)} and is {now}", []


def the_common_stream_has_every_event_once(history: History) -> Breaches:
    """EVT, which outside readers follow: of each service all events, each once, in order."""
    copied = defaultdict(list)
    for service, sequence, message_id in history.everything:
        copied[service].append((sequence, message_id))
    for service, events in history.streams.items():
        wanted = [(event.sequence, event.id) for event in events]
        if copied[service] != wanted:
            pairs = enumerate(zip(copied[service], wanted, strict=False))
            place = next((number for number, (copy, event) in pairs if copy != event), None)
            where = f"differs at its event {place + 1}" if place is not None else "is shorter or longer"
            yield f"EVT {where} for {service}: {len(copied[service])} of {len(wanted)} events", []


def _by_service(rows: Iterable[Kept]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows:
        if row.sequence is not None:
            found[row.service][row.sequence] = row.id
    return found


def _differ(name: str, kept: dict[str, dict[int, str]], history: History) -> Breaches:
    for service, rows in kept.items():
        stream = {event.sequence: event.id for event in history.streams.get(service, ())}
        wrong = [number for number, message_id in sorted(rows.items()) if stream.get(number) != message_id]
        if wrong:
            lines = [f"{n}: {name} {rows[n]}, stream {stream.get(n)}" for n in wrong[:MOST_SHOWN]]
            yield f"{name} and the stream of {service} differ at {len(wrong)} numbers", lines


def _repeated(service: str, ids: Iterable[str]) -> Breaches:
    for message_id, times in Counter(ids).items():
        if times > 1:
            yield f"{service}: event {message_id} is {times} times in the stream", []


def a_projection_equals_its_rebuild(history: History) -> Breaches:
    for rebuilt in history.rebuilt:
        if rebuilt.problem or not rebuilt.equal:
            why = rebuilt.problem or "the digests differ"
            yield f"{rebuilt.service}.{rebuilt.projection}: {why}", [rebuilt.model_dump_json()]
