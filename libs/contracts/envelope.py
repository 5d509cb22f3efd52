"""CloudEvents 1.0 envelope (structured JSON) around every event, command, reply and observation.

`id` is the de-duplication id. `entityversion` rises by one with every event of an entity, `sequence` by one
with every event of a service (stamped by its sequencer; equal to the stream sequence in EVT_<service>),
`epoch` when a service's database was restored from a backup. https://github.com/cloudevents/spec/blob/v1.0.2
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from libs.contracts.ids import new_uuid
from libs.contracts.text import clean

NONE_TOKEN = "-"  # "no site" or "no tenant" in a subject
MAX_MESSAGE_BYTES = 256 * 1024
MAX_DEPTH = (
    100  # Levels of lists and objects in one another; ours have a dozen, PostgreSQL and Python allow some hundreds.
)
SYSTEM_ACTOR = "system:slipway"


# What is indexed has a limit, far above what we make: an index refuses rows of a few thousand bytes, and a message
# that can't be kept would stop its consumer.
Token = Annotated[str, StringConstraints(max_length=200)]
Counter = Annotated[int, Field(ge=0, le=2**31 - 1)]


class BadMessage(ValueError):
    """Bytes that are no envelope of ours: not JSON, a field missing or of the wrong type."""


class Envelope(BaseModel):
    """One message on the bus. `data` is the payload that the message type's model validates."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Token = Field(min_length=1)
    source: Token
    type: Token
    specversion: str = "1.0"
    time: AwareDatetime
    subject: Annotated[str, StringConstraints(max_length=500)]
    dataschema: str | None = None
    datacontenttype: str = "application/json"
    entityversion: Counter = 0
    correlationid: Token
    causationid: Token | None = None
    actor: str = SYSTEM_ACTOR
    site: Token = NONE_TOKEN
    tenant: Token = NONE_TOKEN
    traceparent: str | None = None
    sequence: Annotated[str | None, Field(pattern=r"^\d{20}$")] = None
    tenantsequence: Annotated[str | None, Field(pattern=r"^\d{20}$")] = None
    epoch: Annotated[Counter, Field(ge=1)] = 1
    replyto: str | None = None
    deadline: AwareDatetime | None = None
    besideversion: Annotated[Counter | None, Field(ge=1)] = None  # The same fact is told in this version, too.
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
        return Envelope.model_validate(_loads(payload))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadMessage(f"envelope field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from error


def _loads(payload: bytes) -> Any:
    """JSON with clean text. Lone surrogates (a cut emoji in a console log) are let through, to be replaced by `clean`.

    Walking every message costs several times its parsing, so that is done only where the bytes say that there may be
    something to clean: NUL must be escaped in JSON, and the fast parser refuses lone surrogates.
    """
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        if b"\\ud" not in payload and b"\\uD" not in payload:
            raise
        value = json.loads(payload, parse_constant=_no_number, parse_int=_whole, parse_float=_finite)
        return clean(_shallow(value, payload))
    _shallow(value, payload)
    return clean(value) if b"\\u0000" in payload else value


def _shallow(value: Any, payload: bytes) -> Any:
    """`value`, unless it is nested deeper than whoever reads it next can follow. Few brackets can't nest deep."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return value
    level, depth = [value], 0
    while level and depth < MAX_DEPTH:
        level, depth = [inner for each in level for inner in _inside(each)], depth + 1
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# What the fast parser refuses, or the encoder can't write again.
def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _whole(text: str) -> int:
    number = int(text) if len(text) <= 20 else 2**64
    return number if -(2**63) <= number < 2**64 else _no_number(text[:40])


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text[:40])


def sequence_text(number: int) -> str:
    """The CloudEvents `sequence` extension: zero-padded, so that it sorts as text."""
    return f"{number:020d}"


def now_utc() -> datetime:
    return datetime.now(UTC)


def new_message_id() -> str:
    return new_uuid()
