"""The promises, as pure functions from a recorded history to the ways in which it breaks them.

A rule returns one `Broken` for each breach, with enough evidence to find the place; an empty list when the promise
held. docs/architecture/guarantees.md states the promises; tests/chaos shows that each rule can fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from chaos.history import Event, History, Kept, Request, SiteAct
from libs.contracts.causes import Cause

FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
SET_ASIDE_BY_RESTORE = (Cause.STALE_EPOCH, Cause.BEFORE_RESTORE)
LIVE_CLAIMS = ("HELD", "CLAIMED", "RETURNING")
MOST_SHOWN = 20  # One fault in a store breaks thousands of rows; the first ones say where.


@dataclass(frozen=True)
class Broken:
    """One breach: the rule's name, what is wrong, and the lines of the history that show it."""

    rule: str
    what: str
    evidence: tuple[str, ...] = ()


Rule = Callable[[History], Iterator[tuple[str, list[str]]]]


# -- requests ---------------------------------------------------------------------------------------


def every_request_is_answered(history: History) -> Iterator[tuple[str, list[str]]]:
    for request in history.requests:
        if not request.answers:
            yield f"{request.method} {request.path} was never answered", [request.model_dump_json()]


def a_repeat_is_the_same_request(history: History) -> Iterator[tuple[str, list[str]]]:
    """All answers to one Idempotency-Key say the same."""
    for request in _remembered(history):
        said = {(answer.status, answer.operation_id, answer.code) for answer in request.answers}
        if len(said) > 1:
            yield f"{request.method} {request.path} was answered in {len(said)} ways", [request.model_dump_json()]


def an_accepted_request_has_one_outcome(history: History) -> Iterator[tuple[str, list[str]]]:
    finished = _finished_events(history)
    seen = defaultdict(set)
    for poll in history.polls:
        if poll.status in FINAL:
            seen[poll.operation_id].add(poll.status)
    for operation, request in _accepted(history).items():
        status = history.operations.get(operation)
        if status is None:
            yield f"{operation} was accepted and is not there", [request]
            continue
        events = finished[operation]
        outcomes = {*seen[operation], *(word for word, _ in events)} | ({status} if status in FINAL else set())
        if len(outcomes) > 1 or len(events) > 1 or (outcomes and status not in FINAL):
            yield (
                f"{operation} has the outcomes {sorted(outcomes)}",
                [request, f"now {status}", *(e for _, e in events)],
            )
        elif outcomes and not events:
            yield f"{operation} ended {status} and no event says so", [request]


def two_creations_are_two_operations(history: History) -> Iterator[tuple[str, list[str]]]:
    creators = defaultdict(list)
    for request in history.requests:
        if request.method == "POST" and request.path == "/clusters":
            for operation in {answer.operation_id for answer in request.answers if answer.operation_id}:
                creators[operation].append(request.model_dump_json())
    for operation, lines in creators.items():
        if len(lines) > 1:
            yield f"{operation} answers {len(lines)} different requests", lines


def _remembered(history: History) -> list[Request]:
    """All requests; after a restore those that came later, for a database from the past knows nothing of the others."""
    since = max((restore.accepted_at for restore in history.restores), default=None)
    return [request for request in history.requests if since is None or request.sent_at > since]


def _accepted(history: History) -> dict[str, str]:
    return {
        answer.operation_id: request.model_dump_json()
        for request in _remembered(history)
        for answer in request.answers
        if answer.operation_id is not None
    }


def _finished_events(history: History) -> dict[str, list[tuple[str, str]]]:
    found = defaultdict(list)
    for event in _all_events(history):
        if event.type.endswith(".operation.finished"):
            found[event.entity].append((str(event.facts.get("status")), event.model_dump_json()))
    return found


def _all_events(history: History) -> Iterator[Event]:
    for events in history.streams.values():
        yield from events


# -- machines ---------------------------------------------------------------------------------------


def a_machine_has_one_live_claim(history: History) -> Iterator[tuple[str, list[str]]]:
    """Fold reservation's events in their order: a claim that becomes live finds its machine free.

    Claims that a restored database has forgotten end with it: what the site still knows of them is another rule's.
    """
    holder: dict[str, tuple[str, str]] = {}
    forgets_after = {restore.goes_on_after.get("reservation", 0) for restore in history.restores}
    for event in history.streams.get("reservation", ()):
        if event.sequence - 1 in forgets_after:
            holder.clear()
        claims = event.facts.get("claims") or ()
        # What an event ends makes room for what it begins: a replacement is one event.
        for claim in sorted(claims, key=lambda claim: claim["state"] in LIVE_CLAIMS):
            machine, line = claim["machine_id"], event.model_dump_json()
            kept = holder.get(machine)
            if claim["state"] not in LIVE_CLAIMS:
                if kept is not None and kept[0] == claim["id"]:
                    del holder[machine]
            elif kept is not None and kept[0] != claim["id"]:
                yield f"machine {machine} has the live claims {kept[0]} and {claim['id']}", [kept[1], line]
            else:
                holder[machine] = (claim["id"], line)


def a_claim_is_deployed_once(history: History) -> Iterator[tuple[str, list[str]]]:
    """A second deploy for a claim is right only after the first has failed."""
    for machine, acts in _by_machine(history).items():
        deployed: dict[str, SiteAct] = {}
        for act in acts:
            if act.what == "failed":
                deployed.pop(act.subject, None)
            elif act.what == "deploy":
                before = deployed.get(act.subject)
                if before is not None:
                    yield f"{machine} was deployed twice for claim {act.subject}", _lines(before, act)
                deployed[act.subject] = act


def nothing_is_deployed_after_its_release(history: History) -> Iterator[tuple[str, list[str]]]:
    for machine, acts in _by_machine(history).items():
        released: dict[str, SiteAct] = {}
        for act in acts:
            if act.what == "released":
                released[act.subject] = act
            elif act.what in ("deploy", "claimed") and act.subject in released:
                yield f"{machine}: {act.what} for claim {act.subject} after it", _lines(released[act.subject], act)


def a_machine_is_wiped_between_claims(history: History) -> Iterator[tuple[str, list[str]]]:
    for machine, acts in _by_machine(history).items():
        dirty: SiteAct | None = None
        for act in acts:
            if act.what == "cleaned":
                dirty = None
            elif act.what == "deploy":
                if dirty is not None and dirty.subject != act.subject:
                    yield f"{machine} went from one claim to another unwiped", _lines(dirty, act)
                dirty = act


def a_machine_carries_one_claim_at_the_site(history: History) -> Iterator[tuple[str, list[str]]]:
    for machine, acts in _by_machine(history).items():
        held: SiteAct | None = None
        for act in acts:
            if act.what == "claimed":
                if held is not None and held.subject != act.subject:
                    yield f"{machine} was claimed while it carried another claim", _lines(held, act)
                held = act
            elif act.what == "released":
                held = None


def _by_machine(history: History) -> dict[str, list[SiteAct]]:
    found = defaultdict(list)
    for act in sorted(history.site, key=lambda act: act.number):
        found[act.machine].append(act)
    return found


def _lines(*acts: SiteAct) -> list[str]:
    return [act.model_dump_json() for act in acts]


def owners_agree_at_rest(history: History) -> Iterator[tuple[str, list[str]]]:
    """What inventory says of a machine and what reservation says of its claim, where no process is open on either.

    After a restore it takes people to bring the two together again.
    """
    if history.restores:
        return
    busy = {saga.target for saga in history.sagas if saga.phase != "finished"}
    machines = {machine.id: machine for machine in history.machines}
    live = {claim.id: claim for claim in history.claims if claim.state in LIVE_CLAIMS}
    for machine in history.machines:
        if machine.claim_id is None or {machine.id, machine.cluster_id} & busy:
            continue
        if machine.claim_id not in live:
            yield f"{machine.name} carries claim {machine.claim_id}, which is not live", [machine.model_dump_json()]
    for claim in live.values():
        holder = machines.get(claim.machine_id)
        if claim.state == "HELD" or holder is None or {holder.id, holder.cluster_id} & busy:
            continue  # A hold ends by its own time.
        if holder.claim_id != claim.id:
            yield (
                f"claim {claim.id} is {claim.state}, but {holder.name} carries {holder.claim_id}",
                [claim.model_dump_json(), holder.model_dump_json()],
            )


def a_node_is_billed_once(history: History) -> Iterator[tuple[str, list[str]]]:
    """Of each cluster's machine at most one start and one stop; as many stops as starts once the cluster is gone.

    After a restore the log has both histories; cost keeps them apart as anomalies.
    """
    if history.restores:
        return
    starts: Counter[tuple[str, str]] = Counter()
    stops: Counter[tuple[str, str]] = Counter()
    gone = set()
    for event in history.streams.get("provisioning", ()):
        node = (event.entity, str(event.facts.get("machine_id")))
        if event.type.endswith(".node_started"):
            starts[node] += 1
        elif event.type.endswith(".node_stopped"):
            stops[node] += 1
        elif event.facts.get("to_state") in ("DELETED", "FAILED"):
            gone.add(event.entity)
    for node in sorted({*starts, *stops}):
        begun, ended = starts[node], stops[node]
        if begun > 1 or ended > begun or (node[0] in gone and ended != begun):
            yield f"machine {node[1]} of {node[0]}: billing started {begun} and stopped {ended} times", []


# -- events -----------------------------------------------------------------------------------------


def a_stream_is_gapless_and_in_order(history: History) -> Iterator[tuple[str, list[str]]]:
    """Event number N lies at position N, once."""
    for service, events in history.streams.items():
        for expected, event in enumerate(events, start=1):
            if event.position != expected or event.sequence != expected:
                yield f"{service}: event {expected} is missing or displaced", [event.model_dump_json()]
                break
        yield from _repeated(service, (event.id for event in events))


def an_entity_has_no_gap(history: History) -> Iterator[tuple[str, list[str]]]:
    """Versions of an entity run 1, 2, 3, … in the stream's order."""
    for service, events in history.streams.items():
        last: dict[tuple[str, str], Event] = {}
        for event in events:
            key = (event.type.split(".")[2], event.entity)
            before = last.get(key)
            if event.version != (before.version if before else 0) + 1:
                lines = [each.model_dump_json() for each in (before, event) if each]
                yield f"{service}: {key[0]} {key[1]} has version {event.version} out of order", lines
            last[key] = event


def a_tenant_sees_no_gap(history: History) -> Iterator[tuple[str, list[str]]]:
    for service, events in history.streams.items():
        last: Counter[str] = Counter()
        for event in events:
            last[event.tenant] += 1
            if event.tenant_sequence != last[event.tenant]:
                yield f"{service}: tenant {event.tenant} sees a gap before {event.sequence}", [event.model_dump_json()]
                last[event.tenant] = event.tenant_sequence


def what_was_committed_is_published(history: History) -> Iterator[tuple[str, list[str]]]:
    for service, count in history.unpublished.items():
        if count:
            yield f"{service}: {count} messages were committed and not published", []
    for kept in history.outbox:
        if kept.sequence is None:
            yield f"{kept.service}: event {kept.id} was committed and has no number", []
    yield from _differ("the outbox", _by_service(history.outbox), history)


def the_audit_store_has_every_event(history: History) -> Iterator[tuple[str, list[str]]]:
    kept = _by_service(history.audit)
    yield from _differ("the audit store", kept, history)
    for service in history.audited_services:
        missing = [event for event in history.streams.get(service, ()) if event.sequence not in kept.get(service, {})]
        if missing:
            lines = [event.model_dump_json() for event in missing[:MOST_SHOWN]]
            yield f"the audit store lacks {len(missing)} events of {service}", lines


def what_was_seen_is_never_rewritten(history: History) -> Iterator[tuple[str, list[str]]]:
    """A number that anybody saw on the wire means the same event for ever, also after a broker lost its tail."""
    seen: dict[tuple[str, int], set[str]] = defaultdict(set)
    for kept in history.witnessed:
        if kept.sequence is not None:
            seen[kept.service, kept.sequence].add(kept.id)
    final = {(event.service, event.position): event.id for event in _all_events(history)}
    for (service, sequence), ids in sorted(seen.items()):
        now = final.get((service, sequence))
        if ids != {now}:
            yield f"{service}: number {sequence} was seen as {sorted(ids)} and is {now}", []


def the_common_stream_has_every_event_once(history: History) -> Iterator[tuple[str, list[str]]]:
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


def _differ(name: str, kept: dict[str, dict[int, str]], history: History) -> Iterator[tuple[str, list[str]]]:
    for service, rows in kept.items():
        stream = {event.sequence: event.id for event in history.streams.get(service, ())}
        wrong = [number for number, message_id in sorted(rows.items()) if stream.get(number) != message_id]
        if wrong:
            lines = [f"{n}: {name} {rows[n]}, stream {stream.get(n)}" for n in wrong[:MOST_SHOWN]]
            yield f"{name} and the stream of {service} differ at {len(wrong)} numbers", lines


def _repeated(service: str, ids: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for message_id, times in Counter(ids).items():
        if times > 1:
            yield f"{service}: event {message_id} is {times} times in the stream", []


# -- what is made from events, and what goes on ---------------------------------------------------------


def a_projection_equals_its_rebuild(history: History) -> Iterator[tuple[str, list[str]]]:
    for rebuilt in history.rebuilt:
        if rebuilt.problem or not rebuilt.equal:
            why = rebuilt.problem or "the digests differ"
            yield f"{rebuilt.service}.{rebuilt.projection}: {why}", [rebuilt.model_dump_json()]


def a_saga_ends_or_goes_on_or_says_why_not(history: History) -> Iterator[tuple[str, list[str]]]:
    for saga in history.sagas:
        if saga.phase == "finished":
            if saga.status not in FINAL:
                yield f"{saga.id} finished as {saga.status}", [saga.model_dump_json()]
        elif saga.phase == "parked":
            if not saga.waiting_for:
                yield f"{saga.id} waits and does not say for what", [saga.model_dump_json()]
        elif saga.timers < max(saga.pending, 1):
            yield f"{saga.id} ({saga.kind}) has nothing that would ever move it on", [saga.model_dump_json()]


def the_system_comes_to_rest(history: History) -> Iterator[tuple[str, list[str]]]:
    """Once faults and requests end, everything under way ends too, or waits for a time or a human."""
    if not history.at_rest:
        still = [saga.model_dump_json() for saga in history.sagas if saga.phase in ("running", "undoing")]
        yield "work was still under way when patience ended", still[:MOST_SHOWN]


def no_dead_letter_is_unexplained(history: History) -> Iterator[tuple[str, list[str]]]:
    """The harness sends only messages that were good once, so nothing may end as a dead letter, except by a restore."""
    for letter in history.dead_letters:
        if history.restores and letter.cause in SET_ASIDE_BY_RESTORE:
            continue
        yield f"{letter.service} could not handle {letter.subject}: {letter.error[:200]}", [letter.model_dump_json()]


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        every_request_is_answered,
        a_repeat_is_the_same_request,
        an_accepted_request_has_one_outcome,
        two_creations_are_two_operations,
        a_machine_has_one_live_claim,
        a_machine_carries_one_claim_at_the_site,
        a_claim_is_deployed_once,
        nothing_is_deployed_after_its_release,
        a_machine_is_wiped_between_claims,
        owners_agree_at_rest,
        a_node_is_billed_once,
        a_stream_is_gapless_and_in_order,
        an_entity_has_no_gap,
        a_tenant_sees_no_gap,
        what_was_committed_is_published,
        the_audit_store_has_every_event,
        what_was_seen_is_never_rewritten,
        the_common_stream_has_every_event_once,
        a_projection_equals_its_rebuild,
        a_saga_ends_or_goes_on_or_says_why_not,
        the_system_comes_to_rest,
        no_dead_letter_is_unexplained,
    )
}


def judge(history: History) -> list[Broken]:
    """Every breach of every rule, at most MOST_SHOWN a rule."""
    found = []
    for name, rule in RULES.items():
        for number, (what, evidence) in enumerate(rule(history)):
            if number == MOST_SHOWN:
                break
            found.append(Broken(name, what, tuple(evidence[:MOST_SHOWN])))
    return found
