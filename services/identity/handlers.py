"""Create organizations, tenants and grants; revoke grants. Each write and its event are one transaction.

The installation never loses its last operator. Callers come through the operator door; what a tenant's people
may do for themselves is left to the gateway's later doors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.identity import (
    GrantFacts,
    GrantGiven,
    GrantRevoked,
    OrganizationFacts,
    OrganizationUpdated,
    ScopeKind,
    TenantFacts,
    TenantUpdated,
)
from libs.contracts.ids import new_id
from libs.runtime.params import parse
from services.identity import errors, store
from services.identity.model import is_installation_operator
from services.identity.requests import ById, NewGrant, NewOrganization, NewTenant


async def add_organization(ctx: Context, wanted: NewOrganization) -> OrganizationFacts | None:
    """Add it and say so; None when its id or look-alike name is taken."""
    facts = OrganizationFacts(id=wanted.id, slug=wanted.id, name=wanted.name, version=1)
    if not await store.add_organization(ctx.conn, facts, now=ctx.now):
        return None
    ctx.emit(OrganizationUpdated(organization=facts), entity_id=facts.id, entity_version=1)
    return facts


async def add_tenant(ctx: Context, wanted: NewTenant) -> TenantFacts | None:
    """Add it and say so; None when its id or name is taken. The organization must exist."""
    facts = TenantFacts(**wanted.model_dump(), version=1)
    if not await store.add_tenant(ctx.conn, facts, now=ctx.now):
        return None
    ctx.emit(TenantUpdated(tenant=facts), entity_id=facts.id, entity_version=1, tenant=facts.id)
    return facts


async def add_grant(ctx: Context, wanted: NewGrant) -> GrantFacts | None:
    """Give it and say so; None when it is live already. The scope must exist."""
    facts = new_grant_facts(ctx, wanted)
    if not await store.add_grant(ctx.conn, facts):
        return None
    ctx.emit(GrantGiven(grant=facts), entity_id=facts.id, entity_version=1, tenant=_tenant_of(facts))
    return facts


def new_grant_facts(ctx: Context, wanted: NewGrant) -> GrantFacts:
    return GrantFacts(
        id=new_id("grt"), **wanted.model_dump(), granted_by=ctx.actor, granted_at=ctx.now, revoked_at=None, version=1
    )


async def scope_exists(ctx: Context, kind: ScopeKind, id_: str) -> bool:
    match kind:
        case ScopeKind.INSTALLATION:
            return True
        case ScopeKind.ORGANIZATION:
            return await store.get_organization(ctx.conn, id_) is not None
        case ScopeKind.TENANT:
            return await store.get_tenant(ctx.conn, id_) is not None


def _tenant_of(grant: GrantFacts) -> str:
    return grant.scope_id if grant.scope_kind is ScopeKind.TENANT else NONE_TOKEN


async def create_organization(ctx: Context, call: Call) -> Answer:
    """POST /organizations {id, name} → 201."""
    if call.tenants is not None:
        return errors.operator_door_only()
    wanted = parse(NewOrganization, call.params)
    if isinstance(wanted, Answer):
        return wanted
    facts = await add_organization(ctx, wanted)
    if facts is not None:
        return _created("organizations", facts.id, facts.model_dump(mode="json"))
    if await store.get_organization(ctx.conn, wanted.id) is not None:
        return problem(
            409, errors.ORGANIZATION_EXISTS, f"There is an organization {wanted.id!r} already.", "Choose another id."
        )
    return problem(
        409,
        errors.ORGANIZATION_NAME_TAKEN,
        f"Another organization's name looks like {wanted.name!r}.",
        "Choose a name that people can tell apart.",
    )


async def create_tenant(ctx: Context, call: Call) -> Answer:
    """POST /tenants {id, organization_id, name, machine_quota?} → 201."""
    if call.tenants is not None:
        return errors.operator_door_only()
    wanted = parse(NewTenant, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if await store.get_organization(ctx.conn, wanted.organization_id) is None:
        return problem(
            422,
            errors.ORGANIZATION_UNKNOWN,
            f"There is no organization {wanted.organization_id!r}.",
            "Create it first: POST /organizations",
            errors=[{"field": "organization_id", "message": "names no organization"}],
        )
    facts = await add_tenant(ctx, wanted)
    if facts is not None:
        return _created("tenants", facts.id, facts.model_dump(mode="json"))
    if await store.get_tenant(ctx.conn, wanted.id) is not None:
        return problem(
            409,
            errors.TENANT_EXISTS,
            f"There is a tenant {wanted.id!r} already; ids are unique in the installation.",
            "Choose another id.",
        )
    return problem(
        409,
        errors.TENANT_NAME_TAKEN,
        f"Another tenant of this organization has a name that looks like {wanted.name!r}.",
        "Choose a name that people can tell apart.",
    )


async def create_grant(ctx: Context, call: Call) -> Answer:
    """POST /grants {issuer, subject, role, scope_kind, scope_id?} → 201."""
    if call.tenants is not None:
        return errors.operator_door_only()
    wanted = parse(NewGrant, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if not await scope_exists(ctx, wanted.scope_kind, wanted.scope_id):
        return problem(
            422,
            errors.GRANT_SCOPE_UNKNOWN,
            f"There is no {wanted.scope_kind} {wanted.scope_id!r}.",
            "Name an existing organization or tenant.",
            errors=[{"field": "scope_id", "message": f"names no {wanted.scope_kind}"}],
        )
    facts = await add_grant(ctx, wanted)
    if facts is None:
        return problem(409, errors.GRANT_EXISTS, "This grant is live already.", "Nothing needs to be done.")
    return _created("grants", facts.id, facts.model_dump(mode="json"))


async def revoke_grant(ctx: Context, call: Call) -> Answer:
    """DELETE /grants/{id} → 200 with the revoked grant; refused for the last installation operator."""
    if call.tenants is not None:
        return errors.operator_door_only()
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    operators = await store.lock_installation_operators(ctx.conn)
    grant = await store.get_grant(ctx.conn, wanted.id)
    if grant is None:
        return not_found("grant", wanted.id)
    if grant.revoked_at is not None or not _may_go(grant, operators):
        return _refused_revocation(grant)
    if not await store.mark_revoked(ctx.conn, grant, now=ctx.now):
        return _refused_revocation(grant.model_copy(update={"revoked_at": ctx.now}))
    gone = grant.model_copy(update={"revoked_at": ctx.now, "version": grant.version + 1})
    ctx.emit(GrantRevoked(grant=gone), entity_id=gone.id, entity_version=gone.version, tenant=_tenant_of(gone))
    return Answer(body=gone.model_dump(mode="json"))


def _may_go(grant: GrantFacts, operators: tuple[GrantFacts, ...]) -> bool:
    return not is_installation_operator(grant) or any(other.id != grant.id for other in operators)


def _refused_revocation(grant: GrantFacts) -> Answer:
    if grant.revoked_at is not None:
        return problem(409, errors.GRANT_REVOKED, "This grant was revoked already.", "Nothing needs to be done.")
    return problem(
        409,
        errors.GRANT_LAST_OPERATOR,
        "This is the last operator of the installation; without one nobody could give grants any more.",
        "Grant the role operator to somebody else first.",
    )


def _created(collection: str, id_: str, body: dict[str, object]) -> Answer:
    return Answer(status=201, body=body, location=f"/{collection}/{id_}", etag=str(body["version"]))


CALLS: dict[str, Callable[[Context, Call], Awaitable[Answer]]] = {
    "create_organization": create_organization,
    "create_tenant": create_tenant,
    "create_grant": create_grant,
    "revoke_grant": revoke_grant,
}
