"""Envelopes and subjects of what the satellite says: replies and observations, on its local stream.

Local subjects are `local.<site>.…`; the hub's OBS stream sources them as `obs.<site>.…`.
"""

from __future__ import annotations

from datetime import datetime

import orjson

from libs.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, new_message_id
from libs.contracts.ids import derived_uuid
from libs.contracts.message import Message, json_data
from libs.contracts.replies import REPLY_TYPE, Reply, failed

SOURCE = "/slipway/satellite"
ACTOR = "system:satellite"


def reply_subject(site: str, service: str) -> str:
    """Where the reply to a command of `service` (a slug) goes."""
    return f"local.{site}.reply.{service}.v1"


def observation_subject(site: str, message: Message) -> str:
    """Where an observation goes locally."""
    return message.message_type.subject(site=site).replace("obs.", "local.", 1)


def reply_envelope(site: str, command: Envelope, reply: Reply, now: datetime) -> Envelope:
    """The reply to `command`; its id follows from the command's, so a repeated answer is the same message."""
    return Envelope(
        id=derived_uuid("reply", command.id),
        source=SOURCE,
        type=REPLY_TYPE,
        time=now,
        subject=command.subject,
        correlationid=command.correlationid,
        causationid=command.id,
        actor=ACTOR,
        site=site,
        tenant=command.tenant,
        traceparent=command.traceparent,
        data=json_data(_fitting(reply)),
    )


def _fitting(reply: Reply) -> Reply:
    """`reply`, or a failure that says that it is too big for the bus."""
    # Half a message's limit leaves room for the envelope and for what cleaning adds.
    size = len(orjson.dumps(json_data(reply), default=str))
    if size <= MAX_MESSAGE_BYTES // 2:
        return reply
    return failed("reply_too_large", f"The answer has {size} bytes; the bus takes {MAX_MESSAGE_BYTES // 2}.")


def observation_envelope(site: str, message: Message, now: datetime, *, correlation_id: str = "") -> Envelope:
    """An observation as a new message."""
    message_id = new_message_id()
    return Envelope(
        id=message_id,
        source=SOURCE,
        type=message.message_type.type,
        dataschema=message.message_type.dataschema,
        time=now,
        subject=message.key(),
        correlationid=correlation_id or message_id,
        actor=ACTOR,
        site=site,
        data=json_data(message),
    )
