"""What callers may ask for, parsed at the edge; every refusal names its field."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from libs.bus.topology import EVENT_SERVICES
from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.ids import is_slug
from libs.contracts.subscription import Signature
from services.subscription.model import subject_problems

MAX_GRACE_SECONDS = 7 * 86_400


def _slug(text: str) -> str:
    if not is_slug(text):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and inner dashes, e.g. billing-export")
    return text


def _service(text: str) -> str:
    if text not in EVENT_SERVICES:
        raise ValueError(f"must be one of {', '.join(EVENT_SERVICES)}")
    return text


Slug = Annotated[str, AfterValidator(_slug)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ById(_Request):
    id: str = Field(min_length=1)


class Begin(_Request):
    """Where to begin: `now`, the `start` of what is kept, or an instant."""

    begin: Literal["now", "start"] | AwareDatetime = "now"


class NewSubscriber(Begin):
    """No subjects: everything that its tenant may see."""

    name: Slug
    tenant: Slug | None = None
    subjects: tuple[str, ...] = ()
    max_ack_pending: int = Field(default=500, ge=1, le=5000)
    max_waiting: int = Field(default=8, ge=1, le=64)
    ack_wait_seconds: int = Field(default=30, ge=1, le=3600)

    @property
    def of(self) -> str:
        return self.tenant or NONE_TOKEN

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.subjects or (f"evt.*.{self.tenant}.>" if self.tenant else "evt.>",)

    @model_validator(mode="after")
    def _within_tenant(self) -> Self:
        problems = subject_problems(self.wanted, self.of)
        if problems:
            raise ValueError("; ".join(problems))
        return self


class Rotate(ById):
    """`grace_seconds`: for so long the old password is good, too; 0: whoever has it is cut off now."""

    grace_seconds: int = Field(default=0, ge=0, le=MAX_GRACE_SECONDS)


class NewWebhook(Begin):
    name: Slug
    tenant: Slug | None = None
    url: str = Field(min_length=1, max_length=2000)
    services: tuple[Annotated[str, AfterValidator(_service)], ...] = Field(default=(), max_length=20)
    types: tuple[str, ...] = Field(default=(), max_length=50)
    entities: tuple[str, ...] = Field(default=(), max_length=50)
    signature: Signature = Signature.HMAC

    @property
    def of(self) -> str:
        return self.tenant or NONE_TOKEN


class ChangeWebhook(ById):
    """What is not named stays."""

    url: str | None = Field(default=None, min_length=1, max_length=2000)
    services: tuple[Annotated[str, AfterValidator(_service)], ...] | None = Field(default=None, max_length=20)
    types: tuple[str, ...] | None = Field(default=None, max_length=50)
    entities: tuple[str, ...] | None = Field(default=None, max_length=50)


class Replay(ById):
    """From an instant, the start of what is kept, or behind a number of one service."""

    begin: Literal["start"] | AwareDatetime | None = None
    service: Annotated[str, AfterValidator(_service)] | None = None
    after: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.begin is None) == (self.service is None) or (self.service is None) != (self.after is None):
            raise ValueError("give 'begin', or 'service' together with 'after' (the number to go on behind)")
        return self


class OneDelivery(ById):
    delivery_id: int
