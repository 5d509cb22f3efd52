"""Bad input on every subject there is: each message type, each way to be wrong, refused for its own reason.

The types come from the registry, so a new one is in the table by being declared. What is done with what is refused is
tried on a real broker: tests/contract/bus/test_bad_input.py, tests/contract/site/test_satellite_link.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import libs.contracts.all  # noqa: F401 - declares every message
from libs.bus.admission import (
    EPOCH_TYPE,
    FUTURE_TOLERANCE,
    SATELLITE,
    Known,
    Refused,
    admit,
    epoch_counts,
    event_objection,
    site_command_objection,
)
from libs.contracts.causes import Cause
from libs.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, decode, sequence_text
from libs.contracts.message import Kind, MessageType, registry
from libs.contracts.replies import REPLY_TYPE

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SITE, TENANT, POSITION = "fra1", "acme", 7
FORGOTTEN = NOW - timedelta(days=14)
Sent = tuple[str, Envelope]


def _sender(kind: MessageType) -> str:
    if kind.kind is Kind.OBSERVATION:
        return SATELLITE
    return f"/slipway/{kind.group}" if kind.kind is Kind.EVENT else "/slipway/provisioning"


def _message(type_: str, source: str, **more: Any) -> Envelope:
    known: dict[str, Any] = {"id": "m-1", "time": NOW, "subject": "thing", "correlationid": "c", "epoch": 2, "data": {}}
    return Envelope(**{**known, "source": source, "type": type_, **more})


def _of(kind: MessageType) -> Sent:
    site = SITE if kind.kind is not Kind.COMMAND else "-"
    tenant = TENANT if kind.kind is Kind.EVENT else "-"
    sequence = sequence_text(POSITION) if kind.kind is Kind.EVENT else None
    more = {"site": site, "tenant": tenant, "dataschema": kind.dataschema, "sequence": sequence}
    return kind.subject(site=site, tenant=tenant), _message(kind.type, _sender(kind), **more)


TYPES = {f"{kind.type}.v{kind.version}": kind for kind in (cls.message_type for cls in registry().values())}
LANDED: dict[str, Sent] = {
    **{name: _of(kind) for name, kind in TYPES.items() if kind.kind in (Kind.COMMAND, Kind.OBSERVATION)},
    "reply of a service": ("cmd.provisioning.reply.v1", _message(REPLY_TYPE, "/slipway/inventory", causationid="c-1")),
    "reply of a site": (f"obs.{SITE}.reply.inventory.v1", _message(REPLY_TYPE, SATELLITE, site=SITE)),
    "epoch": ("cmd.inventory.epoch.v1", _message(EPOCH_TYPE, "/slipway/cost", subject="cost")),
}
EVENTS = {name: _of(kind) for name, kind in TYPES.items() if kind.kind is Kind.EVENT}
SITE_COMMANDS = {name: _of(kind) for name, kind in TYPES.items() if kind.kind is Kind.SITE_COMMAND}


def _known(message: Envelope) -> Known:
    return Known(FORGOTTEN, {message.source: 2})


def _changed(**changes: Any) -> Callable[[Sent], tuple[str, bytes]]:
    return lambda sent: (sent[0], sent[1].model_copy(update=changes).encode())


def _said_by_another_kind(sent: Sent) -> tuple[str, bytes]:
    """A satellite where a service speaks, a service where a satellite does; an epoch told by another service."""
    other = "/slipway/inventory" if sent[1].source == SATELLITE or sent[1].type == EPOCH_TYPE else SATELLITE
    return sent[0], sent[1].model_copy(update={"source": other}).encode()


WRONG: dict[Cause, list[Callable[[Sent], tuple[str, bytes]]]] = {
    Cause.UNREADABLE: [
        lambda sent: (sent[0], b""),
        lambda sent: (sent[0], b"\xff\xfe"),
        lambda sent: (sent[0], b"[" * 50_000),
        lambda sent: (sent[0], b"null"),
        lambda sent: (sent[0], sent[1].encode()[:-2]),
        lambda sent: (sent[0], sent[1].encode().replace(b'"data":', b'"date":')),
        lambda sent: (sent[0], sent[1].encode().replace(b'"epoch":2', b'"epoch":-2')),
    ],
    Cause.OVERSIZED: [
        lambda sent: (sent[0], sent[1].encode()[:-1] + b" " * MAX_MESSAGE_BYTES + b"}"),
    ],
    Cause.WRONG_SUBJECT: [
        lambda sent: ("cmd.nobody.does_this.v1", sent[1].encode()),
        lambda sent: (f"{sent[0]}.more", sent[1].encode()),
        lambda sent: ("", sent[1].encode()),
    ],
    Cause.WRONG_SENDER: [
        _said_by_another_kind,
        _changed(source=""),
        _changed(source="/slipway/"),
        _changed(source="https://example.org/inventory"),
    ],
    Cause.FUTURE_DATED: [
        _changed(time=NOW + FUTURE_TOLERANCE + timedelta(seconds=1)),
        _changed(time=NOW.replace(year=9999)),
    ],
    Cause.FORGOTTEN: [_changed(time=FORGOTTEN - timedelta(seconds=1))],
    Cause.STALE_EPOCH: [_changed(epoch=1)],
}


@pytest.mark.parametrize("name", sorted(LANDED))
def test_what_lands_in_an_inbox_is_let_in_when_good_and_refused_for_its_reason_when_not(name: str) -> None:
    subject, message = LANDED[name]
    known = _known(message)
    assert admit(subject, message.encode(), known, NOW) == message
    for cause, ways in WRONG.items():
        for number, way in enumerate(ways):
            bad_subject, payload = way((subject, message))
            refused = admit(bad_subject, payload, known, NOW)
            assert isinstance(refused, Refused), (cause, number)
            assert refused.cause is cause, (cause, number, refused)
            assert refused.error


@pytest.mark.parametrize("name", sorted(name for name, (subject, _) in LANDED.items() if subject.startswith("obs.")))
def test_a_site_speaks_for_itself_alone_and_its_epoch_silences_nobody(name: str) -> None:
    subject, message = LANDED[name]
    elsewhere = message.model_copy(update={"site": "ber2"})
    refused = admit(subject, elsewhere.encode(), _known(message), NOW)
    assert isinstance(refused, Refused) and refused.cause in (Cause.WRONG_SENDER, Cause.WRONG_SUBJECT)
    assert not epoch_counts(message)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_an_event_is_its_owners_at_its_own_place_or_none(name: str) -> None:
    subject, event = EVENTS[name]
    assert event_objection(subject, POSITION, event) is None
    assert decode(event.encode()) == event
    service = subject.split(".")[3]
    other = "cost" if service != "cost" else "identity"
    for bad_subject, position, bad in (
        (subject, POSITION + 1, event),
        (subject, POSITION, event.model_copy(update={"sequence": None})),
        (subject, POSITION, event.model_copy(update={"source": f"/slipway/{other}"})),
        (subject, POSITION, event.model_copy(update={"source": SATELLITE})),
        (subject.replace(f".{TENANT}.", ".other."), POSITION, event),
        (subject.replace(f".{SITE}.", ".ber2."), POSITION, event),
        (subject + "2", POSITION, event),
        (subject.replace(f".{service}.", f".{other}."), POSITION, event),
        ("evt", POSITION, event),
    ):
        assert event_objection(bad_subject, position, bad), (bad_subject, position, bad)


@pytest.mark.parametrize("name", sorted(SITE_COMMANDS))
def test_a_sites_command_comes_from_a_service_and_is_for_that_site_or_is_none(name: str) -> None:
    subject, command = SITE_COMMANDS[name]
    assert site_command_objection(subject, command) is None
    for bad_subject, bad in (
        (subject, command.model_copy(update={"site": "ber2"})),
        (subject, command.model_copy(update={"site": "-"})),
        (subject, command.model_copy(update={"source": SATELLITE})),
        (subject, command.model_copy(update={"source": "somebody"})),
        (subject.replace(f".{SITE}.", ".ber2."), command),
        (subject + "2", command),
        ("cmd.inventory.reply.v1", command),
    ):
        assert site_command_objection(bad_subject, bad), (bad_subject, bad)


def test_every_kind_of_subject_is_in_the_table() -> None:
    kinds = {subject.split(".")[0] for subject, _ in (*LANDED.values(), *EVENTS.values(), *SITE_COMMANDS.values())}
    assert kinds == {"cmd", "obs", "evt", "site"}
    assert len(LANDED) + len(EVENTS) + len(SITE_COMMANDS) == len(TYPES) + 3
