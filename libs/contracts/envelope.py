"""CloudEvents 1.0 envelope (structured JSON) around every event, command, reply and observation.

`id` is the de-duplication id. `entityversion` rises by one with every event of an entity, `sequence` by one
with every event of a service (stamped by its sequencer; equal to the stream sequence in EVT_<service>),
`epoch` when a service's database was restored from a backup. https://github.com/cloudevents/spec/blob/v1.0.2
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.contracts.ids import new_uuid
from libs.contracts.text import clean

NONE_TOKEN = "-"  # "no site" or "no tenant" in a subject
MAX_MESSAGE_BYTES = 256 * 1024
SYSTEM_ACTOR = "system:slipway"


class BadMessage(ValueError):
    """Bytes that are no envelope of ours: not JSON, a field missing or of the wrong type."""


class Envelope(BaseModel):
    """One message on the bus. `data` is the payload that the message type's model validates."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(min_length=1)
    source: str
    type: str
    specversion: str = "1.0"
    time: datetime
    subject: str
    dataschema: str | None = None
    datacontenttype: str = "application/json"
    entityversion: int = 0
    correlationid: str
    causationid: str | None = None
    actor: str = SYSTEM_ACTOR
    site: str = NONE_TOKEN
    tenant: str = NONE_TOKEN
    traceparent: str | None = None
    sequence: Annotated[str | None, Field(pattern=r"^\d{20}$")] = None
    tenantsequence: Annotated[str | None, Field(pattern=r"^\d{20}$")] = None
    epoch: int = 1
    replyto: str | None = None
    deadline: datetime | None = None
    data: dict[str, Any]

    def encode(self) -> bytes:
        """JSON bytes, strings cleaned, absent attributes left out (CloudEvents: null means absent)."""
        return orjson.dumps(clean(self.model_dump(exclude_none=True)))

    @property
    def stream_sequence(self) -> int:
        """The service-wide sequence number, 0 when not stamped."""
        return int(self.sequence) if self.sequence else 0


def decode(payload: bytes) -> Envelope:
    """Parse bytes from the bus. Raises BadMessage naming the first thing that is wrong."""
    try:
        return Envelope.model_validate(clean(orjson.loads(payload)))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadMessage(f"envelope field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from error


def sequence_text(number: int) -> str:
    """The CloudEvents `sequence` extension: zero-padded, so that it sorts as text."""
    return f"{number:020d}"


def now_utc() -> datetime:
    return datetime.now(UTC)


def new_message_id() -> str:
    return new_uuid()
