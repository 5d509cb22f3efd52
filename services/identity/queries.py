"""Answers about organizations, tenants and grants, and who a caller is.

`resolve` is the gateway's: which grants a believed token's issuer and subject have, and which tenants they reach.
Nobody without a grant sees anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.identity import store
from services.identity.model import roles_by_tenant
from services.identity.requests import ById, Person


def _organization_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return store.organization_facts(row).model_dump(mode="json")


def _tenant_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return store.tenant_facts(row).model_dump(mode="json")


def _grant_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return store.grant_facts(row).model_dump(mode="json")


ORGANIZATIONS = Listing(
    table=store.organization,
    filters={"name": store.organization.c.name},
    sorts={"id": store.organization.c.id, "name": store.organization.c.name},
    default_sort="id",
    key=store.organization.c.id,
    tenant=None,
    row=_organization_body,
)
TENANTS = Listing(
    table=store.tenant,
    filters={"organization_id": store.tenant.c.organization_id},
    sorts={"id": store.tenant.c.id, "name": store.tenant.c.name},
    default_sort="id",
    key=store.tenant.c.id,
    tenant=store.tenant.c.id,
    row=_tenant_body,
)
GRANTS = Listing(
    table=store.role_grant,
    filters={
        "subject": store.role_grant.c.subject,
        "issuer": store.role_grant.c.issuer,
        "role": store.role_grant.c.role,
        "scope_kind": store.role_grant.c.scope_kind,
        "scope_id": store.role_grant.c.scope_id,
    },
    sorts={"granted_at": store.role_grant.c.granted_at, "subject": store.role_grant.c.subject},
    default_sort="granted_at",
    key=store.role_grant.c.id,
    tenant=store.role_grant.c.scope_id,
    row=_grant_body,
)


async def list_organizations(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, ORGANIZATIONS, call)


async def list_tenants(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, TENANTS, call)


async def list_grants(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, GRANTS, call)


async def get_organization(conn: AsyncConnection, call: Call) -> Answer:
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    facts = await store.get_organization(conn, wanted.id)
    if facts is None or call.tenants is not None:
        return not_found("organization", wanted.id)
    return Answer(body=facts.model_dump(mode="json"), etag=str(facts.version))


async def get_tenant(conn: AsyncConnection, call: Call) -> Answer:
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    facts = await store.get_tenant(conn, wanted.id)
    if facts is None or not call.may_see(facts.id):
        return not_found("tenant", wanted.id)
    return Answer(body=facts.model_dump(mode="json"), etag=str(facts.version))


async def resolve(conn: AsyncConnection, call: Call) -> Answer:
    """{issuer, subject} → {issuer, subject, grants, tenants, roles by tenant}; a stranger has none."""
    person = parse(Person, call.params)
    if isinstance(person, Answer):
        return person
    grants = await store.live_grants_of(conn, person.issuer, person.subject)
    roles = roles_by_tenant(grants, await store.all_tenants(conn)) if grants else {}
    return Answer(
        body={
            "issuer": person.issuer,
            "subject": person.subject,
            "grants": [grant.model_dump(mode="json") for grant in grants],
            "tenants": list(roles),
            "roles": roles,
        }
    )


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_organizations": list_organizations,
    "list_tenants": list_tenants,
    "list_grants": list_grants,
    "get_organization": get_organization,
    "get_tenant": get_tenant,
    "resolve": resolve,
    # The gateway puts the caller's own issuer and subject into the parameters.
    "get_me": resolve,
}
