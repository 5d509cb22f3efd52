"""Identity: organizations, tenants, members and roles. People come from the identity provider, never from here."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.message import Message, event


class ScopeKind(StrEnum):
    INSTALLATION = "installation"
    ORGANIZATION = "organization"
    TENANT = "tenant"


class Role(StrEnum):
    """What a grant allows; where, is its scope."""

    OPERATOR = "operator"  # installation: the operator door, everything in it
    AUDITOR = "auditor"  # read everything, change nothing
    FINANCE = "finance"  # read usage and cost
    ADMIN = "admin"  # organization or tenant: members and everything below
    MEMBER = "member"  # tenant: clusters
    VIEWER = "viewer"  # tenant: read


class OrganizationFacts(Message):
    id: str
    slug: str
    name: str
    version: int


class TenantFacts(Message):
    """`id` is the token in event subjects: a slug, unique in the installation, never re-used."""

    id: str
    organization_id: str
    name: str
    machine_quota: int | None = None
    version: int


class GrantFacts(Message):
    """`subject` (with `issuer`) is who the identity provider says they are; never an e-mail address."""

    id: str
    issuer: str
    subject: str
    role: Role
    scope_kind: ScopeKind
    scope_id: str
    granted_by: str
    granted_at: datetime
    revoked_at: datetime | None = None
    version: int


@event("identity", "organization", "updated")
class OrganizationUpdated(Message):
    """An organization was made or changed."""

    organization: OrganizationFacts


@event("identity", "tenant", "updated")
class TenantUpdated(Message):
    """A tenant was made or changed."""

    tenant: TenantFacts


@event("identity", "grant", "given")
class GrantGiven(Message):
    """Somebody was given a role."""

    grant: GrantFacts


@event("identity", "grant", "revoked")
class GrantRevoked(Message):
    """A role was taken away; it no longer counts from now on."""

    grant: GrantFacts
