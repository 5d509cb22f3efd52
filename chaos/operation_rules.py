"""What is promised of requests, processes and rest."""

from __future__ import annotations

from collections import defaultdict

from chaos.breaches import FINAL, MOST_SHOWN, Breaches, all_events, forgotten
from chaos.history import History, Request
from libs.bus.topology import event_stream
from libs.contracts.causes import Cause

SET_ASIDE_BY_RESTORE = (Cause.STALE_EPOCH, Cause.BEFORE_RESTORE)


def every_request_is_answered(history: History) -> Breaches:
    for request in history.requests:
        if not request.answers:
            yield f"{request.method} {request.path} was never answered", [request.model_dump_json()]


def a_repeat_is_the_same_request(history: History) -> Breaches:
    """All answers to one Idempotency-Key say the same."""
    for request in _remembered(history):
        said = {(answer.status, answer.operation_id, answer.code) for answer in request.answers}
        if len(said) > 1:
            yield f"{request.method} {request.path} was answered in {len(said)} ways", [request.model_dump_json()]


def an_accepted_request_has_one_outcome(history: History) -> Breaches:
    """One that a restored database knew as running goes on from there: the end that it had before is forgotten."""
    finished = _finished_events(history)
    restored_at = max((restore.accepted_at for restore in history.restores), default=None)
    again = _went_on_after_a_restore(history)
    seen = defaultdict(set)
    for poll in history.polls:
        if restored_at is not None and poll.operation_id in again and poll.at <= restored_at:
            continue
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


def two_creations_are_two_operations(history: History) -> Breaches:
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
    again = _went_on_after_a_restore(history)
    for event in all_events(history):
        if event.entity in again and forgotten(history, event):
            continue
        if event.type.endswith(".operation.finished"):
            found[event.entity].append((str(event.facts.get("status")), event.model_dump_json()))
    return found


def _went_on_after_a_restore(history: History) -> set[str]:
    """The operations of which something was told before a restore and after it."""
    before = {event.entity for event in all_events(history) if forgotten(history, event)}
    after = {event.entity for event in all_events(history) if not forgotten(history, event)}
    return {entity for entity in before & after if entity.startswith("op-")}


def a_saga_ends_or_goes_on_or_says_why_not(history: History) -> Breaches:
    for saga in history.sagas:
        if saga.phase == "finished":
            if saga.status not in FINAL:
                yield f"{saga.id} finished as {saga.status}", [saga.model_dump_json()]
        elif saga.phase == "parked":
            if not saga.waiting_for:
                yield f"{saga.id} waits and does not say for what", [saga.model_dump_json()]
        elif saga.timers < max(saga.pending, 1):
            yield f"{saga.id} ({saga.kind}) has nothing that would ever move it on", [saga.model_dump_json()]


def the_system_comes_to_rest(history: History) -> Breaches:
    """Once faults and requests end, everything under way ends too, or waits for a time or a human."""
    if not history.at_rest:
        still = [saga.model_dump_json() for saga in history.sagas if saga.phase in ("running", "undoing")]
        yield "work was still under way when patience ended", still[:MOST_SHOWN]


def no_dead_letter_is_unexplained(history: History) -> Breaches:
    """The harness sends only messages that were good once, so nothing may end as a dead letter, except by a restore and
    what it wrote into an event stream in its owner's place."""
    for letter in history.dead_letters:
        if history.restores and letter.cause in SET_ASIDE_BY_RESTORE:
            continue
        stream, _, place = letter.message_id.partition(":")
        if stream == event_stream(letter.service) and int(place) in history.written.get(letter.service, ()):
            continue
        yield f"{letter.service} could not handle {letter.subject}: {letter.error[:200]}", [letter.model_dump_json()]
