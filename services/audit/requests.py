"""What callers may ask for, parsed at the edge; and how a page is cut so that it fits into one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from libs.contracts.audit import HoldKind

MAX_PAGE_BYTES = 600 * 1024  # NATS carries 1 MiB by default; the rest is for escaping and the envelope.
LEAST_KEEP_DAYS = 30  # A shorter time is a slip, and would remove what a month's bill is recomputed from.
MOST_KEEP_DAYS = 36_500
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]
KeepDays = Annotated[int, Field(ge=LEAST_KEEP_DAYS, le=MOST_KEEP_DAYS)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Range(_Request):
    """[from, to)."""

    start: AwareDatetime | None = Field(default=None, alias="from")
    stop: AwareDatetime | None = Field(default=None, alias="to")


class ExportPage(Range):
    """One page of an export: every filter narrows it, a filter with several values matches any of them."""

    service: Several = ()
    type: Several = ()
    entity_id: Several = ()
    tenant: Several = ()
    actor: Several = ()
    correlation_id: Several = ()
    cursor: Annotated[str, Field(pattern=r"^[a-z]+:\d{1,19}$")] | None = None
    limit: int = Field(default=500, ge=1, le=2000)

    def place(self) -> tuple[str, int] | None:
        if self.cursor is None:
            return None
        service, _, sequence = self.cursor.partition(":")
        return service, int(sequence)


class ChainPage(_Request):
    """A stretch of one service's chain, going on from `after`, whose digest is `digest`."""

    service: str
    after: int = Field(default=0, ge=0)
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    until: int | None = Field(default=None, ge=0)
    limit: int = Field(default=500, ge=1, le=1000)


class StateAt(_Request):
    entity_kind: Literal["machine", "cluster", "tenant"]
    entity_id: str = Field(min_length=1)
    at: AwareDatetime


class NewPolicy(_Request):
    """`keep_days` None: for ever. (A null does not travel, so that a missing one is null here.)"""

    keep_days: KeepDays | None = None
    reason: Reason


class Preview(_Request):
    keep_days: KeepDays | None = None


class NewHold(_Request):
    """Exactly one of the three says what is held."""

    entity_id: str | None = Field(default=None, min_length=1, max_length=200)
    tenant: str | None = Field(default=None, min_length=1, max_length=63)
    correlation_id: str | None = Field(default=None, min_length=1, max_length=200)
    reason: Reason

    @model_validator(mode="after")
    def _one_thing(self) -> NewHold:
        if sum(value is not None for value in (self.entity_id, self.tenant, self.correlation_id)) != 1:
            raise ValueError("name exactly one of entity_id, tenant and correlation_id")
        return self

    def held(self) -> tuple[HoldKind, str]:
        if self.entity_id is not None:
            return HoldKind.ENTITY, self.entity_id
        if self.tenant is not None:
            return HoldKind.TENANT, self.tenant
        return HoldKind.CORRELATION, self.correlation_id or ""


class Release(_Request):
    id: str
    reason: Reason


class RetentionStep(_Request):
    """Where a round of retention goes on; from the start without a cursor."""

    cursor: Annotated[str, Field(pattern=r"^[a-z]+:\d{1,19}$")] | None = None


def cut_page(rows: Sequence[Mapping[Any, Any]], limit: int) -> tuple[list[Mapping[Any, Any]], bool]:
    """As many rows as fit into one answer, at least one; and whether there are more."""
    shown: list[Mapping[Any, Any]] = []
    size = 0
    for row in rows[:limit]:
        size += len(row["envelope"])
        if shown and size > MAX_PAGE_BYTES:
            break
        shown.append(row)
    return shown, len(shown) < len(rows)
