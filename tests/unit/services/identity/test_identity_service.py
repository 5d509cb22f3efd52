"""Identity on a real database: requests in, events and answers out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.calls import Answer
from libs.testing.kit import ServiceKit
from services.identity.app import service
from services.identity.bootstrap import BootstrapError, apply_bootstrap, read_bootstrap

ISSUER = "https://login.example.com"


async def made(kit: ServiceKit) -> None:
    """Organization acme with tenant acme-research, globex with globex-ml, and one operator."""
    for id_ in ("acme", "globex"):
        assert (await kit.call("create_organization", {"id": id_, "name": id_.title()})).status == 201
    for organization, tenant in (("acme", "acme-research"), ("globex", "globex-ml")):
        params = {"id": tenant, "organization_id": organization, "name": tenant.title()}
        assert (await kit.call("create_tenant", params)).status == 201
    assert (await grant(kit, "operator", "operator", "installation")).status == 201


async def grant(kit: ServiceKit, subject: str, role: str, kind: str, scope_id: str | None = None) -> Answer:
    params: dict[str, Any] = {"issuer": ISSUER, "subject": subject, "role": role, "scope_kind": kind}
    return await kit.call("create_grant", params | ({"scope_id": scope_id} if scope_id else {}))


async def resolved(kit: ServiceKit, subject: str, issuer: str = ISSUER) -> Any:
    return (await kit.query("resolve", {"issuer": issuer, "subject": subject})).body


async def test_a_tenant_member_resolves_to_their_tenant(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    await grant(kit, "alice", "member", "tenant", "acme-research")
    body = await resolved(kit, "alice")
    assert body["tenants"] == ["acme-research"]
    assert [g["role"] for g in body["grants"]] == ["member"]
    assert (await resolved(kit, "operator"))["tenants"] == ["acme-research", "globex-ml"]


async def test_the_same_subject_of_another_issuer_is_somebody_else(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    body = await resolved(kit, "operator", issuer="https://evil.example.com")
    assert (body["grants"], body["tenants"]) == ([], [])


async def test_every_write_says_so_in_an_event(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    types = [event.type.removeprefix("slipway.identity.") for event in await kit.events()]
    assert types == ["organization.updated"] * 2 + ["tenant.updated"] * 2 + ["grant.given"]


async def test_a_revoked_grant_reaches_nothing_and_can_be_given_again(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    given = await grant(kit, "alice", "member", "tenant", "acme-research")
    assert (await kit.call("revoke_grant", {"id": given.body["id"]})).status == 200
    assert (await resolved(kit, "alice"))["tenants"] == []
    assert (await kit.events())[-1].entityversion == 2
    again = await kit.call("revoke_grant", {"id": given.body["id"]})
    assert (again.status, again.body["code"]) == (409, "grant.already_revoked")
    assert (await grant(kit, "alice", "member", "tenant", "acme-research")).status == 201


async def test_the_last_operator_stays_however_many_revoke_at_once(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    ids = [(await grant(kit, f"operator-{n}", "operator", "installation")).body["id"] for n in range(3)]
    everyone = (await kit.query("list_grants", {"role": "operator"})).body["items"]
    assert len(everyone) == len(ids) + 1
    answers = await asyncio.gather(*(kit.call("revoke_grant", {"id": item["id"]}) for item in everyone))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 409]
    refused = next(answer for answer in answers if answer.status == 409)
    assert refused.body["code"] == "grant.last_operator"


NONSENSE_GRANTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"subject": ""}, "subject"),
    ({"subject": "ali\u200bce"}, "subject"),
    ({"issuer": "login"}, "issuer"),
    ({"role": "king"}, "role"),
    ({"role": None}, "role"),
    ({"scope_kind": "planet"}, "scope_kind"),
    ({"scope_id": "nobody"}, "scope_id"),
    ({"role": "operator"}, "(body)"),
    ({"extra": 1}, "extra"),
)


async def test_a_grant_that_makes_no_sense_is_refused_by_field(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    good = {"issuer": ISSUER, "subject": "alice", "role": "member", "scope_kind": "tenant", "scope_id": "acme-research"}
    for change, field in NONSENSE_GRANTS:
        answer = await kit.call("create_grant", {**good, **change})
        assert answer.status == 422
        assert [error["field"] for error in answer.body["errors"]] == [field], change
    assert (await resolved(kit, "alice"))["grants"] == []


async def test_a_live_grant_is_not_given_twice(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    assert (await grant(kit, "operator", "operator", "installation")).body["code"] == "grant.exists"


TAKEN_OR_UNREADABLE = (
    ("acme", "Other", "organization.exists"),
    ("acme-2", "ACME", "organization.name_taken"),
    ("acme-3", "\u0410cme", "organization.name_taken"),
    ("Acme", "Other", "request.invalid"),
    ("a.b", "Other", "request.invalid"),
    ("-", "Other", "request.invalid"),
    ("x" * 64, "Other", "request.invalid"),
    ("other", " ", "request.invalid"),
    ("other", "a\u202eb", "request.invalid"),
)


async def test_an_organization_that_is_taken_or_unreadable_is_refused(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    for id_, name, code in TAKEN_OR_UNREADABLE:
        answer = await kit.call("create_organization", {"id": id_, "name": name})
        assert (answer.status >= 400, answer.body["code"]) == (True, code), (id_, name)


async def test_a_tenants_id_is_unique_in_the_installation_and_its_organization_exists(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    taken = await kit.call("create_tenant", {"id": "acme-research", "organization_id": "globex", "name": "Other"})
    assert taken.body["code"] == "tenant.exists"
    nowhere = await kit.call("create_tenant", {"id": "other", "organization_id": "nowhere", "name": "Other"})
    assert (nowhere.status, nowhere.body["code"]) == (422, "organization.unknown")


async def test_the_tenant_door_changes_nothing_and_sees_its_own_only(service_kit: Any) -> None:
    kit = await service_kit(service)
    await made(kit)
    mine = ("acme-research",)
    for name in ("create_organization", "create_tenant", "create_grant", "revoke_grant"):
        assert (await kit.call(name, {}, tenants=mine)).status == 403
    listed = await kit.query("list_tenants", tenants=mine)
    assert [item["id"] for item in listed.body["items"]] == ["acme-research"]
    assert (await kit.query("get_tenant", {"id": "globex-ml"}, tenants=mine)).status == 404
    assert (await kit.query("get_tenant", {"id": "acme-research"}, tenants=mine)).status == 200


async def test_the_bootstrap_file_adds_what_is_missing_once(service_kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "grants.yaml"
    path.write_text(
        f"issuer: {ISSUER}\n"
        "organizations: [{id: acme, name: Acme}]\n"
        "tenants: [{id: acme-research, organization_id: acme, name: Acme research}]\n"
        "grants:\n"
        "  - {subject: operator, role: operator, scope_kind: installation}\n"
        "  - {subject: alice, role: member, scope_kind: tenant, scope_id: acme-research}\n"
    )
    kit = await service_kit(service)
    added = []
    for _ in range(2):
        async with kit.app.transaction(actor="system:bootstrap") as ctx:
            added.append(await apply_bootstrap(ctx, read_bootstrap(path)))
    assert added == [4, 0]
    alice = await resolved(kit, "alice")
    assert alice["tenants"] == ["acme-research"]
    await kit.call("revoke_grant", {"id": alice["grants"][0]["id"]})
    async with kit.app.transaction(actor="system:bootstrap") as ctx:
        assert await apply_bootstrap(ctx, read_bootstrap(path)) == 0, "what was revoked stays revoked"


WRONG_FILES = (
    "{",
    "grants: [{subject: a}]",
    "tenants: [{id: x, organization_id: nowhere, name: X}]",
    "nonsense: 1",
    "- 1",
)


async def test_a_bootstrap_file_that_is_wrong_says_where(service_kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "grants.yaml"
    kit = await service_kit(service)
    for content in WRONG_FILES:
        path.write_text(content)
        with pytest.raises(BootstrapError):
            async with kit.app.transaction(actor="system:bootstrap") as ctx:
                await apply_bootstrap(ctx, read_bootstrap(path))
    with pytest.raises(BootstrapError, match=r"SLIPWAY_BOOTSTRAP_GRANTS"):
        read_bootstrap(tmp_path / "missing.yaml")
