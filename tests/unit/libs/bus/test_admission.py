"""Every kind of bad message is refused for its own reason, and nothing that is sent makes admission raise."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.bus.admission import FUTURE_TOLERANCE, Known, Refused, admit
from libs.contracts.causes import Cause
from libs.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, decode
from libs.contracts.inventory import EnrolMachine, RackFacts, RackUpdated
from libs.contracts.message import Message, json_data

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SENDER = "/slipway/provisioning"
KNOWN = Known(NOW - timedelta(days=14), {SENDER: 2})


def sent(message: Message | None = None, **changes: Any) -> Envelope:
    message = message or EnrolMachine(machine_id="m1")
    kind = message.message_type
    facts: dict[str, Any] = {
        "id": "0190-1",
        "source": SENDER,
        "type": kind.type,
        "time": NOW,
        "subject": "m1",
        "dataschema": kind.dataschema,
        "correlationid": "c",
        "epoch": 2,
        "data": json_data(message),
    }
    return Envelope(**{**facts, **changes})


SUBJECT = EnrolMachine.message_type.subject()


def test_a_good_message_is_let_in() -> None:
    assert admit(SUBJECT, sent().encode(), KNOWN, NOW) == sent()


@pytest.mark.parametrize(
    ("cause", "message", "subject"),
    [
        (Cause.FUTURE_DATED, sent(time=NOW + FUTURE_TOLERANCE + timedelta(seconds=1)), SUBJECT),
        (Cause.FORGOTTEN, sent(time=NOW - timedelta(days=14, seconds=1)), SUBJECT),
        (Cause.STALE_EPOCH, sent(epoch=1), SUBJECT),
        (Cause.WRONG_SUBJECT, sent(), "cmd.inventory.accept_machine.v1"),
        (Cause.WRONG_SUBJECT, sent(), "cmd.inventory.enrol_machine.v2"),
        (Cause.WRONG_SUBJECT, sent(type="slipway.reply"), "cmd.inventory.enrol_machine.v1"),
        (Cause.WRONG_SUBJECT, sent(type="slipway.epoch"), "cmd.inventory.reply.v1"),
    ],
)
def test_a_bad_message_is_refused_for_its_reason(cause: Cause, message: Envelope, subject: str) -> None:
    refused = admit(subject, message.encode(), KNOWN, NOW)
    assert isinstance(refused, Refused)
    assert refused.cause is cause
    assert refused.envelope == message


def test_what_is_at_the_edge_of_the_allowed_is_let_in() -> None:
    for message in (sent(time=NOW + FUTURE_TOLERANCE), sent(time=KNOWN.forgotten_before), sent(epoch=3)):
        assert admit(SUBJECT, message.encode(), KNOWN, NOW) == message


def test_an_events_subject_must_carry_its_own_site_and_tenant() -> None:
    facts = RackFacts(id="r", name="r", site="fra1", version=1)
    event = sent(RackUpdated(rack=facts), site="fra1", source="/slipway/inventory")
    subject = RackUpdated.message_type.subject(site="fra1")
    assert admit(subject, event.encode(), KNOWN, NOW) == event
    refused = admit(RackUpdated.message_type.subject(site="ber2"), event.encode(), KNOWN, NOW)
    assert isinstance(refused, Refused) and refused.cause is Cause.WRONG_SUBJECT


def test_a_type_that_is_not_known_here_is_left_to_replicas_that_may_know_it() -> None:
    newer = sent(dataschema="/schemas/commands/slipway.command.inventory.enrol_machine.v9.json")
    assert admit("cmd.inventory.enrol_machine.v9", newer.encode(), KNOWN, NOW) == newer


WELL_FORMED = sent().encode()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not JSON"),
        (b"{not json", "not JSON"),
        (b"[1]", "Input should be"),
        (b"\xff\xfe", "not JSON"),
        (b'{"id": NaN, "a": "\\ud800"}', "NaN is no JSON number"),
        (b"[" * 100_000, "not JSON"),
        (WELL_FORMED.replace(b'"subject":"m1",', b""), "subject"),
        (WELL_FORMED.replace(b'"id":"0190-1"', b'"id":""'), "id"),
        (WELL_FORMED.replace(b'"id":"0190-1"', b'"id":"' + b"x" * 3000 + b'"'), "id"),
        (WELL_FORMED.replace(b'"subject":"m1"', b'"subject":"' + b"x" * 3000 + b'"'), "subject"),
        (WELL_FORMED.replace(b'"epoch":2', b'"epoch":99999999999'), "epoch"),
        (WELL_FORMED.replace(b'"epoch":2', b'"epoch":0'), "epoch"),
        (WELL_FORMED.replace(b"T12:00:00+00:00", b"T12:00:00"), "time"),
        (WELL_FORMED.replace(b'"data":{', b'"data":[{').replace(b"}}", b"}]}"), "data"),
    ],
)
def test_what_is_no_envelope_is_unreadable_and_the_reason_names_the_fault(payload: bytes, said: str) -> None:
    refused = admit(SUBJECT, payload, KNOWN, NOW)
    assert isinstance(refused, Refused)
    assert refused.cause is Cause.UNREADABLE
    assert said in refused.error
    assert refused.envelope is None


def test_a_message_above_the_limit_is_refused_without_being_read() -> None:
    refused = admit(SUBJECT, b"x" * (MAX_MESSAGE_BYTES + 1), KNOWN, NOW)
    assert isinstance(refused, Refused) and refused.cause is Cause.OVERSIZED


def test_text_that_databases_refuse_is_cleaned_and_the_message_kept() -> None:
    payload = WELL_FORMED.replace(b'"m1"}', b'"a\\u0000b","console":"\\ud83d cut \\\\u0000 emoji"}')
    assert payload != WELL_FORMED
    let_in = admit(SUBJECT, payload, KNOWN, NOW)
    assert isinstance(let_in, Envelope)
    assert let_in.data == {"machine_id": "ab", "console": "\ufffd cut \\u0000 emoji"}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_nothing_that_is_sent_makes_admission_raise(payload: bytes) -> None:
    assert isinstance(admit(SUBJECT, payload, KNOWN, NOW), Refused)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_a_message_with_any_field_replaced_is_let_in_or_refused_but_never_raises(data: st.DataObject) -> None:
    fields = orjson.loads(WELL_FORMED)
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=30) | st.lists(st.integers())
    )
    payload = orjson.dumps(fields) if _encodable(fields) else b"{}"
    judged = admit(SUBJECT, payload, KNOWN, NOW)
    assert isinstance(judged, Envelope | Refused)
    if isinstance(judged, Envelope):
        assert decode(judged.encode()) == judged


def _encodable(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def test_known_is_compared_for_each_sender_alone() -> None:
    other = replace(KNOWN, epochs={"/slipway/cost": 9})
    assert admit(SUBJECT, sent(epoch=1).encode(), other, NOW) == sent(epoch=1)
