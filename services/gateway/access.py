"""What a caller may do at a door, from their grants: pure decisions, closed by default.

A grant that was revoked, or of a role that a rule does not name, allows nothing. Which things belong
to which tenant is the owners' knowledge; this says only whose things a request may touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.contracts.identity import GrantFacts, Role, ScopeKind
from services.gateway.problems import Refusal
from services.gateway.routes import Door, Need

OPERATOR_ROLES: dict[Need, frozenset[Role]] = {
    Need.READ: frozenset({Role.OPERATOR, Role.AUDITOR}),
    Need.READ_COSTS: frozenset({Role.OPERATOR, Role.AUDITOR, Role.FINANCE}),
    Need.WRITE: frozenset({Role.OPERATOR}),
}
# An operator of the installation may look here too, and changes things at the operator door.
TENANT_ROLES: dict[Need, frozenset[Role]] = {
    Need.READ: frozenset(Role) - {Role.FINANCE},
    Need.READ_COSTS: frozenset(Role),
    Need.WRITE: frozenset({Role.ADMIN, Role.MEMBER}),
}


@dataclass(frozen=True)
class Access:
    """Who is asking and what they may do: in the installation, and in each tenant whose things exist for them."""

    issuer: str
    subject: str
    installation_roles: frozenset[Role] = frozenset()
    tenant_roles: Mapping[str, frozenset[Role]] = field(default_factory=dict)

    @property
    def actor(self) -> str:
        """How events and logs name the caller. One installation trusts one issuer."""
        return f"user:{self.subject}"

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted(self.tenant_roles))

    def tenants_with(self, roles: frozenset[Role]) -> tuple[str, ...]:
        """Tenants in which the caller has one of `roles`."""
        return tuple(sorted(tenant for tenant, held in self.tenant_roles.items() if held & roles))


def access_of(issuer: str, subject: str, grants: Iterable[GrantFacts], roles: Mapping[str, Iterable[Role]]) -> Access:
    """Access from what identity says: the caller's grants, and their roles in each tenant."""
    live = [grant for grant in grants if grant.revoked_at is None]
    installation = frozenset(grant.role for grant in live if grant.scope_kind is ScopeKind.INSTALLATION)
    return Access(issuer, subject, installation, {tenant: frozenset(held) for tenant, held in roles.items()})


def tenants_touchable(access: Access, door: Door, need: Need) -> tuple[str, ...] | None:
    """The tenants whose things this request may touch; None means all. Raises Refusal (403)."""
    if need is Need.SIGNED_IN:
        return None if door is Door.OPERATOR else access.tenants
    if door is Door.OPERATOR:
        _require_installation_role(access, OPERATOR_ROLES[need])
        return None
    if not access.tenants:
        raise _no_access(access)
    touchable = access.tenants_with(TENANT_ROLES[need])
    if not touchable:
        roles = "admin or member" if need is Need.WRITE else "viewer, member or admin"
        raise Refusal(
            403,
            "gateway.role_needed",
            f"{access.actor} has no role in any tenant that allows this; {roles} is needed.",
            "Ask an admin of the tenant for the role (GET /me shows the roles you have).",
        )
    return touchable


def choose_tenant(access: Access, asked: str | None) -> str:
    """Whose a new thing shall be: the one asked for, or the only one possible. Raises Refusal."""
    writable = tenants_writable(access)
    if asked is not None:
        if asked in writable:
            return asked
        if asked in access.tenants:
            raise Refusal(
                403,
                "gateway.role_needed",
                f"{access.actor} may look at tenant {asked!r} but not change anything in it.",
                "Ask an admin of the tenant for the role member.",
            )
        raise _tenant_refused(f"There is no tenant {asked!r} that you can see.", writable)
    if len(writable) == 1:
        return writable[0]
    raise _tenant_refused("You can act for several tenants; say for which.", writable)


def tenants_writable(access: Access) -> tuple[str, ...]:
    """Tenants in which the caller may change things."""
    return access.tenants_with(TENANT_ROLES[Need.WRITE])


def _require_installation_role(access: Access, allowed: frozenset[Role]) -> None:
    held = access.installation_roles
    if held & allowed:
        return
    has = f"has only {_words(held)}" if held else "has none"
    raise Refusal(
        403,
        "gateway.role_needed",
        f"This needs the installation role {_words(allowed)}; {access.actor} {has}.",
        "Ask an operator of the installation for the role, or use the tenant door (/v1).",
    )


def _no_access(access: Access) -> Refusal:
    return Refusal(
        403,
        "gateway.no_access",
        f"{access.actor} is signed in but belongs to no tenant.",
        f"Ask an operator for a grant to subject {access.subject!r} of issuer {access.issuer!r}.",
    )


def _tenant_refused(detail: str, choices: Sequence[str]) -> Refusal:
    named = ", ".join(choices) or "none"
    return Refusal(
        422,
        "gateway.tenant_needed",
        detail,
        f"Set 'tenant' to one of: {named}.",
        errors=[{"field": "tenant", "message": f"must be one of {named}"}],
        members={"choices": list(choices)},
    )


def _words(roles: frozenset[Role]) -> str:
    return " or ".join(sorted(role.value for role in roles))
