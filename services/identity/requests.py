"""What callers and the bootstrap file may ask for, parsed at the edge; every refusal names its field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from libs.contracts.identity import Role, ScopeKind
from libs.contracts.ids import is_slug
from services.identity.model import (
    INSTALLATION_SCOPE_ID,
    ROLE_SCOPES,
    checked_issuer,
    checked_name,
    checked_subject,
    role_fits,
)


def _slug(text: str) -> str:
    if not is_slug(text):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and inner dashes, e.g. acme-research")
    return text


Slug = Annotated[str, AfterValidator(_slug)]
Name = Annotated[str, AfterValidator(checked_name)]
MAX_MACHINE_QUOTA = 1_000_000  # Ten times the largest fleet one installation is built for.


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class NewOrganization(_Request):
    """`id` is the organization's slug."""

    id: Slug
    name: Name


class NewTenant(_Request):
    """`machine_quota` None: no limit of its own."""

    id: Slug
    organization_id: Slug
    name: Name
    machine_quota: int | None = Field(default=None, ge=0, le=MAX_MACHINE_QUOTA, strict=True)


class NewGrant(_Request):
    """`scope_id` is an organization's or a tenant's id; left out for the installation."""

    issuer: Annotated[str, AfterValidator(checked_issuer)]
    subject: Annotated[str, AfterValidator(checked_subject)]
    role: Role
    scope_kind: ScopeKind
    scope_id: str = INSTALLATION_SCOPE_ID

    @model_validator(mode="after")
    def _role_and_scope_fit(self) -> NewGrant:
        if not role_fits(self.role, self.scope_kind):
            allowed = ", ".join(sorted(ROLE_SCOPES[self.role]))
            raise ValueError(f"the role {self.role} is granted at: {allowed}; not at {self.scope_kind}")
        if self.scope_kind is ScopeKind.INSTALLATION and self.scope_id != INSTALLATION_SCOPE_ID:
            raise ValueError("leave scope_id out for the installation")
        if self.scope_kind is not ScopeKind.INSTALLATION and not is_slug(self.scope_id):
            raise ValueError(f"scope_id must be the id of the {self.scope_kind}")
        return self


class Person(_Request):
    """Whose grants are asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    issuer: str = Field(min_length=1)
    subject: str = Field(min_length=1)


class ById(_Request):
    model_config = ConfigDict(frozen=True, extra="ignore")
    id: str


class BootstrapFile(_Request):
    """The first organizations, tenants and grants of an installation. `issuer` is the grants' default."""

    issuer: str | None = None
    organizations: tuple[NewOrganization, ...] = ()
    tenants: tuple[NewTenant, ...] = ()
    grants: tuple[NewGrant, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_issuer(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("issuer") and isinstance(data.get("grants"), list):
            grants = [{"issuer": data["issuer"], **g} if isinstance(g, dict) else g for g in data["grants"]]
            return {**data, "grants": grants}
        return data
