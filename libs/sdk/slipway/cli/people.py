"""`slipway organizations | tenants | grants | whoami`: who may do what, where."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slipway.cli.instants import At
from slipway.cli.output import Column, console, exact, print_facts, print_json, print_table
from slipway.cli.session import (
    DEFAULT_LIMIT,
    AskedDoor,
    Json,
    Limit,
    Yes,
    confirm,
    group,
    run,
    show_document,
    show_list,
    show_one,
)
from slipway.models import Document, Grant, Organization, Tenant

organizations = group("organizations", "Organizations. (operators)")
tenants = group("tenants", "Tenants of organizations. (operators)")
grants = group("grants", "Grants: who may do what, where. (operators)")
GROUPS = (organizations, tenants, grants)

ORGANIZATION_COLUMNS = (
    Column[Organization]("ID", lambda o: o.id),
    Column[Organization]("NAME", lambda o: o.name, grows=True),
)
TENANT_COLUMNS = (
    Column[Tenant]("ID", lambda t: t.id),
    Column[Tenant]("ORGANIZATION", lambda t: t.organization_id),
    Column[Tenant]("QUOTA", lambda t: "no limit" if t.machine_quota is None else t.machine_quota, right=True),
    Column[Tenant]("NAME", lambda t: t.name, grows=True),
)
GRANT_COLUMNS = (
    Column[Grant]("SUBJECT", lambda g: g.subject),
    Column[Grant]("ROLE", lambda g: g.role),
    Column[Grant]("WHERE", lambda g: _where(g)),
    Column[Grant]("SINCE", lambda g: exact(g.granted_at), spare=True),
    Column[Grant]("REVOKED", lambda g: exact(g.revoked_at)),
    Column[Grant]("ID", lambda g: g.id),
)


def _where(grant: Grant) -> str:
    return grant.scope_kind if grant.scope_kind == "installation" else f"{grant.scope_kind} {grant.scope_id}"


@organizations.command("list")
def list_organizations(limit: Limit = DEFAULT_LIMIT, as_json: Json = False) -> None:
    """List organizations."""
    show_list(lambda client: client.organizations.pages(), ORGANIZATION_COLUMNS, as_json=as_json, limit=limit)


@organizations.command("create")
def create_organization(
    id_: Annotated[str, typer.Argument(metavar="ID", help="a-z, 0-9 and dashes; never changes.")],
    name: Annotated[str, typer.Option("--name", help="Name for people.")],
    as_json: Json = False,
) -> None:
    """Create an organization.

    \b
      slipway organizations create acme --name "Acme Research"
    """
    _created(run(lambda client: client.organizations.create(id=id_, name=name)), f"Organization {id_} exists.", as_json)


@tenants.command("list")
def list_tenants(
    organization: Annotated[list[str] | None, typer.Option("--organization", help="Of this organization.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List tenants."""
    show_list(
        lambda client: client.tenants.pages(organization_id=organization), TENANT_COLUMNS, as_json=as_json, limit=limit
    )


@tenants.command("show")
def show_tenant(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Id of the tenant.")],
    at: At = None,
    as_json: Json = False,
) -> None:
    """Show one tenant; with --at as it was then.

    \b
      slipway tenants show acme-research --at 2026-11-30T10:00Z
    """

    def render(found: Tenant) -> None:
        print_facts(
            [
                ("Tenant", found.id),
                ("Name", found.name),
                ("Organization", found.organization_id),
                ("Quota", "none" if found.machine_quota is None else f"{found.machine_quota} machines"),
                ("As of", found.as_of_event.told() if found.as_of_event else None),
            ]
        )

    show_one(lambda client: client.tenants.get(tenant, at=at), render, as_json=as_json)


@tenants.command("create")
def create_tenant(
    id_: Annotated[str, typer.Argument(metavar="ID", help="a-z, 0-9 and dashes; unique, never used again.")],
    organization: Annotated[str, typer.Option("--organization", help="Its organization (id).")],
    name: Annotated[str, typer.Option("--name", help="Name for people.")],
    quota: Annotated[
        int | None, typer.Option("--quota", min=0, help="At most so many machines; else no limit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a tenant.

    \b
      slipway tenants create acme-research --organization acme --name Research --quota 16
    """
    tenant = run(
        lambda client: client.tenants.create(id=id_, organization_id=organization, name=name, machine_quota=quota)
    )
    _created(tenant, f"Tenant {id_} exists.", as_json)


@grants.command("list")
def list_grants(
    subject: Annotated[list[str] | None, typer.Option("--subject", help="Of this person.")] = None,
    role: Annotated[list[str] | None, typer.Option("--role", help="Of this role.")] = None,
    scope: Annotated[list[str] | None, typer.Option("--scope", help="In this organization or tenant (id).")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List grants, revoked ones too."""
    show_list(
        lambda client: client.grants.pages(subject=subject, role=role, scope_id=scope),
        GRANT_COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@grants.command("create")
def create_grant(
    subject: Annotated[str, typer.Argument(help="Who the identity provider calls so (sub), see their 'whoami'.")],
    role: Annotated[str, typer.Option("--role", help="operator, auditor, finance, admin, member, viewer.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="In this tenant.")] = None,
    organization: Annotated[str | None, typer.Option("--organization", help="In this organization.")] = None,
    issuer: Annotated[str | None, typer.Option("--issuer", help="Identity provider, when it is another one.")] = None,
    as_json: Json = False,
) -> None:
    """Give a role: in a tenant, in an organization, or (with neither) in the whole installation.

    \b
      slipway grants create alice --role member --tenant acme-research
      slipway grants create oskar --role auditor
    """
    kind = "tenant" if tenant else "organization" if organization else "installation"
    grant = run(
        lambda client: client.grants.create(
            subject=subject, role=role, scope_kind=kind, scope_id=tenant or organization, issuer=issuer
        )
    )
    _created(grant, f"{subject} is {role} of {_where(grant)} ({grant.id}).", as_json)


@grants.command("revoke")
def revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="Id of the grant.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take a role away; it ends within seconds.

    \b
      slipway grants revoke grt-0190… --yes
    """
    confirm(f"Revoke {grant}?", yes=yes)
    _created(run(lambda client: client.grants.revoke(grant)), f"{grant} is revoked.", as_json)


def _created(document: Document, done: str, as_json: bool) -> None:
    if as_json:
        print_json(document.raw)
    else:
        console().print(done)


def whoami(door: AskedDoor = None, as_json: Json = False) -> None:
    """Say who you are to this installation and what you may do.

    Give your subject to an operator who shall grant you a role.
    """
    show_document(lambda client: client.me(door=door), _render_me, as_json=as_json)


def _render_me(me: dict[str, Any]) -> None:
    print_facts(
        [
            ("Subject", me.get("subject")),
            ("Issuer", me.get("issuer")),
            ("Tenants", ", ".join(str(tenant) for tenant in me.get("tenants") or ()) or "none"),
        ]
    )
    held = [Grant.of(grant) for grant in me.get("grants") or ()]
    print_table(GRANT_COLUMNS, held, "No role was granted to you.")


def add_commands(app: typer.Typer) -> None:
    """`slipway whoami`."""
    app.command("whoami")(whoami)
