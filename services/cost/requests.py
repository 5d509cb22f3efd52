"""What callers and the bootstrap file may ask for, parsed at the edge."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from services.cost.pricing import Basis, By

_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_PRICE = Decimal(1_000_000)  # Per machine-hour, in any currency; more is a slip of the keyboard.


def _profile(text: str) -> str:
    if not _PROFILE.fullmatch(text):
        raise ValueError("must be a profile's name: letters, digits, dots, dashes")
    return text


def _amount(value: Any) -> Any:
    """Money comes as text or a whole number. A binary fraction is read as it is written: 2.1 is 2.1."""
    if isinstance(value, bool):
        raise ValueError('must be an amount, e.g. "31.20"')
    return repr(value) if isinstance(value, float) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Profile = Annotated[str, AfterValidator(_profile)]
Price = Annotated[Decimal, BeforeValidator(_amount), Field(ge=0, le=MAX_PRICE, decimal_places=6, allow_inf_nan=False)]
Several = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class NewPrice(BaseModel):
    """`valid_from` left out: from now on."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    profile: Profile
    price_per_machine_hour: Price
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    valid_from: AwareDatetime | None = None


class Range(BaseModel):
    """[from, to), RFC 3339 with a zone; None: no bound."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)
    start: AwareDatetime | None = Field(default=None, alias="from")
    stop: AwareDatetime | None = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if self.start is not None and self.stop is not None and self.start >= self.stop:
            raise ValueError("`from` must be before `to`, which is exclusive")
        return self


class CostRequest(Range):
    by: By = By.CLUSTER
    basis: Basis = Basis.USED
    cluster_id: Several = ()
    tenant: Several = ()


class PriceFile(BaseModel):
    """The first prices of an installation."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prices: tuple[NewPrice, ...] = ()
