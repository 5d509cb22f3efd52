"""Who gets through which door, and to which owner a request goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.contracts.calls import Answer, Call, not_found, problem
from tests.unit.services.gateway.conftest import Broker, Doors, Issuer, Owners, grant, new_broker, open_doors, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY_LINE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJr2wq0yVbCkXl2jmS5wq1kq3n0c7b4v6T8u9yZaBcDe alice@desk"
CLUSTER: dict[str, Any] = {
    "name": "train-1",
    "profile": "gpu-h100-8",
    "node_count": 4,
    "ssh_authorized_keys": [KEY_LINE],
}
STARTED = Answer(status=202, body={"cluster_id": "clu-1", "operation_id": "op-1"}, location="/operations/op-1")
PAGE = Answer(body={"items": [{"id": "clu-1"}], "next_cursor": None})


async def test_a_read_is_one_question_to_the_owner_with_the_callers_tenants(doors: Doors, owners: Owners) -> None:
    await owners.answer("qry.provisioning.list_clusters", PAGE)
    answer = await doors.tenant.get(
        "/v1/clusters?state=READY&state=FAILED&limit=10&sort=-created_at", headers=doors.as_("alice")
    )
    assert answer.status_code == 200
    assert answer.json() == {"items": [{"id": "clu-1"}], "next_cursor": None}
    [(subject, call)] = owners.calls
    assert subject == "qry.provisioning.list_clusters"
    assert call.tenants == ("acme-research",)
    assert call.actor == "user:alice"
    assert call.idempotency_key is None
    assert call.params == {"state": ["READY", "FAILED"], "limit": 10, "sort": "-created_at"}


async def test_a_write_carries_the_key_and_answers_where_to_look(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.provisioning.create_cluster", STARTED)
    headers = doors.as_("alice", **{"Idempotency-Key": "key-1", "X-Correlation-Id": "corr-1"})
    answer = await doors.tenant.post("/v1/clusters", json=CLUSTER, headers=headers)
    assert answer.status_code == 202
    assert answer.headers["Location"] == "/v1/operations/op-1"
    assert answer.headers["X-Correlation-Id"] == "corr-1"
    [(_, call)] = owners.calls
    assert call.idempotency_key == "key-1"
    assert call.correlation_id == "corr-1"
    assert call.params == {**CLUSTER, "tenant": "acme-research"}


async def test_without_a_key_every_write_gets_its_own(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.provisioning.create_cluster", STARTED)
    for _ in range(2):
        await doors.tenant.post("/v1/clusters", json=CLUSTER, headers=doors.as_("alice"))
    keys = {call.idempotency_key for _, call in owners.calls}
    assert len(keys) == 2
    assert None not in keys


async def test_the_operator_door_asks_for_all_tenants(doors: Doors, owners: Owners) -> None:
    await owners.answer("qry.inventory.list_machines", PAGE)
    answer = await doors.operator.get("/operator/v1/machines?rack=r1", headers=doors.as_operator())
    assert answer.status_code == 200
    assert owners.calls[0][1].tenants is None
    assert owners.calls[0][1].params == {"rack": ["r1"]}


async def test_a_token_for_one_door_is_refused_at_the_other(doors: Doors) -> None:
    tenant = await doors.tenant.get("/v1/clusters", headers=doors.as_("alice", "slipway-operator"))
    operator = await doors.operator.get("/operator/v1/machines", headers=doors.as_("operator", "slipway-api"))
    for answer in (tenant, operator):
        assert answer.status_code == 401
        assert answer.json()["code"] == "gateway.token_audience_mismatch"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "token_missing"),
        ("Basic YTpi", "token_malformed"),
        ("Bearer", "token_malformed"),
        ("Bearer not.a.token", "token_malformed"),
    ],
)
async def test_who_does_not_sign_in_learns_how(doors: Doors, authorization: str | None, code: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    answer = await doors.tenant.get("/v1/clusters", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["code"] == f"gateway.{code}"
    assert "slipway-api" in answer.json()["next_step"]


async def test_an_expired_token_is_refused(doors: Doors) -> None:
    token = doors.issuer.token("alice", exp=1_700_000_000, iat=1_600_000_000)
    answer = await doors.tenant.get("/v1/clusters", headers={"Authorization": f"Bearer {token}"})
    assert answer.json()["code"] == "gateway.token_expired"
    assert token not in answer.text


async def test_one_operation_is_asked_of_the_service_that_its_id_names(doors: Doors, owners: Owners) -> None:
    operation_id = "op-prv-" + "0" * 32
    await owners.answer("qry.provisioning.get_operation", Answer(body={"id": operation_id}, etag="3"))
    answer = await doors.tenant.get(f"/v1/operations/{operation_id}", headers=doors.as_("alice"))
    assert answer.json() == {"id": operation_id}
    assert answer.headers["ETag"] == '"3"'
    unchanged = await doors.tenant.get(
        f"/v1/operations/{operation_id}", headers=doors.as_("alice", **{"If-None-Match": '"3"'})
    )
    assert unchanged.status_code == 304
    unknown = await doors.tenant.get("/v1/operations/op-zzz-1", headers=doors.as_("alice"))
    assert (unknown.status_code, unknown.json()["code"]) == (404, "operation.not_found")


async def test_a_rebuild_is_asked_of_the_service_in_the_path(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.reservation.rebuild_projection", Answer(body={"equal": True}))
    answer = await doors.operator.post("/operator/v1/projections/reservation/pool/rebuild", headers=doors.as_operator())
    assert answer.json() == {"equal": True}
    assert owners.calls[0][1].params == {"service": "reservation", "name": "pool"}
    unknown = await doors.operator.post("/operator/v1/projections/gateway/x/rebuild", headers=doors.as_operator())
    assert (unknown.status_code, unknown.json()["code"]) == (404, "service.not_found")


async def test_if_match_reaches_the_owner_without_quotes(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.provisioning.delete_cluster", STARTED)
    await doors.tenant.delete("/v1/clusters/clu-1", headers=doors.as_("alice", **{"If-Match": '"7"'}))
    await doors.tenant.delete("/v1/clusters/clu-1", headers=doors.as_("alice", **{"If-Match": 'W/"8"'}))
    assert [call.if_match for _, call in owners.calls] == ["7", "8"]


async def test_an_owners_problem_becomes_a_problem_document(doors: Doors, owners: Owners) -> None:
    said = problem(
        409, "cluster.name_taken", "There is a cluster 'train-1'.", "Choose another name.", cluster_id="clu-9"
    )
    await owners.answer("call.provisioning.create_cluster", said)
    answer = await doors.tenant.post(
        "/v1/clusters", json=CLUSTER, headers=doors.as_("alice", **{"X-Correlation-Id": "c-1"})
    )
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "urn:slipway:problem:cluster.name_taken",
        "title": "Conflict",
        "status": 409,
        "detail": "There is a cluster 'train-1'.",
        "code": "cluster.name_taken",
        "next_step": "Choose another name.",
        "correlation_id": "c-1",
        "instance": "/v1/clusters",
        "cluster_id": "clu-9",
    }


async def test_another_tenants_thing_answers_like_one_that_does_not_exist(doors: Doors, owners: Owners) -> None:
    def answer(call: Call) -> Answer:
        id_ = call.params["cluster_id"]
        exists = id_ == "clu-of-globex" and call.may_see("globex-ml")
        return Answer(body={"id": id_}) if exists else not_found("cluster", id_)

    await owners.answer("qry.provisioning.get_cluster", answer)
    foreign = (await doors.tenant.get("/v1/clusters/clu-of-globex", headers=doors.as_("alice"))).json()
    missing = (await doors.tenant.get("/v1/clusters/clu-of-nobody", headers=doors.as_("alice"))).json()
    assert foreign["status"] == 404
    assert foreign | {"detail": "", "instance": "", "correlation_id": ""} == missing | {
        "detail": "",
        "instance": "",
        "correlation_id": "",
    }
    own = await doors.tenant.get("/v1/clusters/clu-of-globex", headers=doors.as_("bob"))
    assert own.status_code == 200


@pytest.mark.parametrize(
    ("subject", "method", "path", "status"),
    [
        ("operator", "GET", "/machines", 200),
        ("auditor", "GET", "/machines", 200),
        ("finance", "GET", "/machines", 403),
        ("finance", "GET", "/usage", 200),
        ("auditor", "POST", "/sources/netbox/read", 403),
        ("finance", "POST", "/sources/netbox/read", 403),
        ("operator", "POST", "/sources/netbox/read", 200),
        ("alice", "GET", "/machines", 403),
        ("alice", "GET", "/usage", 403),
        ("stranger", "GET", "/usage", 403),
        ("stranger", "GET", "/me", 200),
    ],
)
async def test_an_installation_role_decides_at_the_operator_door(
    doors: Doors, owners: Owners, subject: str, method: str, path: str, status: int
) -> None:
    for question in ("*.inventory.>", "*.cost.>", "qry.identity.get_me"):
        await owners.answer(question, Answer(body={"items": []}))
    answer = await doors.operator.request(method, f"/operator/v1{path}", headers=doors.as_operator(subject))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == "gateway.role_needed"
        assert not owners.calls


@pytest.mark.parametrize(
    ("subject", "method", "path", "status", "tenants"),
    [
        ("alice", "GET", "/clusters", 200, ("acme-research",)),
        ("alice", "DELETE", "/clusters/c", 200, ("acme-research",)),
        ("bob", "GET", "/clusters", 200, ("globex-ml",)),
        ("bob", "DELETE", "/clusters/c", 403, None),
        ("ada", "GET", "/clusters", 200, ("acme-ops", "acme-research", "globex-ml")),
        ("ada", "DELETE", "/clusters/c", 200, ("acme-ops", "acme-research")),
        ("frank", "GET", "/clusters", 403, None),
        ("frank", "GET", "/usage", 200, ("acme-research",)),
        ("auditor", "GET", "/clusters", 200, ("acme-research",)),
        ("operator", "DELETE", "/clusters/c", 403, None),
        ("stranger", "GET", "/clusters", 403, None),
    ],
)
async def test_a_tenant_role_counts_in_its_tenant_only(
    doors: Doors,
    owners: Owners,
    subject: str,
    method: str,
    path: str,
    status: int,
    tenants: tuple[str, ...] | None,
) -> None:
    await owners.answer("*.provisioning.>", Answer(body={"items": []}))
    await owners.answer("*.cost.>", Answer(body={"items": []}))
    answer = await doors.tenant.request(method, f"/v1{path}", headers=doors.as_(subject))
    assert answer.status_code == status, answer.text
    assert [call.tenants for _, call in owners.calls] == ([tenants] if tenants else [])


async def test_a_viewer_who_may_not_change_a_thing_is_told_so(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.provisioning.delete_cluster", lambda call: not_found("cluster", "clu-g"))
    answer = await doors.tenant.delete("/v1/clusters/clu-g", headers=doors.as_("ada"))
    assert answer.status_code == 404
    assert "viewer" in answer.json()["next_step"]


async def test_whose_cluster_it_is_must_be_said_by_who_has_several_tenants(doors: Doors, owners: Owners) -> None:
    await owners.answer("call.provisioning.create_cluster", STARTED)
    headers = doors.as_("ada")
    ambiguous = await doors.tenant.post("/v1/clusters", json=CLUSTER, headers=headers)
    assert ambiguous.status_code == 422
    assert ambiguous.json()["choices"] == ["acme-ops", "acme-research"]
    looked_at = await doors.tenant.post("/v1/clusters", json={**CLUSTER, "tenant": "globex-ml"}, headers=headers)
    assert looked_at.status_code == 403
    foreign = await doors.tenant.post("/v1/clusters", json={**CLUSTER, "tenant": "initech"}, headers=headers)
    assert foreign.status_code == 422
    assert "initech" in foreign.json()["detail"]
    chosen = await doors.tenant.post("/v1/clusters", json={**CLUSTER, "tenant": "acme-ops"}, headers=headers)
    assert chosen.status_code == 202
    assert [call.params["tenant"] for _, call in owners.calls] == ["acme-ops"]


async def test_a_grant_given_without_an_issuer_is_for_this_installations_provider(doors: Doors, owners: Owners) -> None:
    await owners.answer(
        "call.identity.create_grant", Answer(status=201, body={"id": "grt-1"}, location="/grants/grt-1")
    )
    body = {"subject": "carol", "role": "member", "scope_kind": "tenant", "scope_id": "acme-ops"}
    answer = await doors.operator.post("/operator/v1/grants", json=body, headers=doors.as_operator())
    assert answer.status_code == 201
    assert answer.headers["Location"] == "/operator/v1/grants/grt-1"
    assert owners.calls[0][1].params == {**body, "issuer": doors.issuer.url}


async def test_who_you_are_is_told_by_issuer_and_subject(doors: Doors, owners: Owners) -> None:
    await owners.answer("qry.identity.get_me", Answer(body={"subject": "stranger", "grants": [], "tenants": []}))
    answer = await doors.tenant.get("/v1/me", headers=doors.as_("stranger"))
    assert answer.status_code == 200
    assert owners.calls[0][1].params == {"issuer": doors.issuer.url, "subject": "stranger"}


async def test_grants_are_asked_once_and_again_when_identity_says_that_they_changed(
    doors: Doors, owners: Owners
) -> None:
    await owners.answer("qry.provisioning.list_clusters", PAGE)
    ask = [doors.tenant.get("/v1/clusters", headers=doors.as_("alice")) for _ in range(20)]
    assert {answer.status_code for answer in await asyncio.gather(*ask)} == {200}
    assert owners.resolved == ["alice"]
    owners.people["alice"] = {"grants": [], "roles": {}}
    await owners.bus.publish("evt.-.-.identity.grant.revoked.v1", b"{}")
    await owners.bus.flush()

    async def status() -> int:
        return (await doors.tenant.get("/v1/clusters", headers=doors.as_("alice"))).status_code

    for _ in range(100):
        if await status() == 403:
            break
        await asyncio.sleep(0.01)
    assert await status() == 403
    assert len(owners.resolved) == 2


async def test_a_grant_that_was_revoked_allows_nothing(doors: Doors, owners: Owners) -> None:
    revoked = grant("operator", "installation") | {"revoked_at": "2026-03-02T00:00:00Z"}
    owners.people["eve"] = {"grants": [revoked], "roles": {}}
    answer = await doors.operator.get("/operator/v1/machines", headers=doors.as_operator("eve"))
    assert answer.status_code == 403


async def test_an_owner_that_does_not_run_is_unavailable_not_empty(doors: Doors) -> None:
    answer = await doors.operator.get("/operator/v1/machines", headers=doors.as_operator())
    assert answer.status_code == 503
    assert answer.json()["code"] == "gateway.owner_unavailable"
    assert "inventory" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 0


async def test_an_owner_that_is_too_slow_is_unavailable(broker: Broker, issuer: Issuer, owners: Owners) -> None:
    async def never(_: Any) -> None:
        pass

    await owners.bus.subscribe("qry.inventory.list_machines", cb=never)
    await owners.bus.flush()
    async with open_doors(broker.url, issuer, answer_within_seconds=0.2) as doors:
        await until(lambda: not doors.gateway.problems())
        answer = await doors.operator.get("/operator/v1/machines", headers=doors.as_operator())
    assert answer.status_code == 503
    assert "0.2 s" in answer.json()["detail"]


@pytest.mark.parametrize("payload", [b"", b"nonsense", b"[]", b'{"status": "fine"}'])
async def test_an_unreadable_answer_of_an_owner_is_never_passed_on(
    doors: Doors, owners: Owners, payload: bytes
) -> None:
    await owners.say("qry.inventory.list_machines", payload)
    answer = await doors.operator.get("/operator/v1/machines", headers=doors.as_operator())
    assert (answer.status_code, answer.json()["code"]) == (502, "gateway.owner_unreadable")


async def test_without_identity_nobody_is_let_in(broker: Broker, issuer: Issuer) -> None:
    async with open_doors(broker.url, issuer, answer_within_seconds=0.5) as doors:
        await until(lambda: not doors.gateway.problems())
        answer = await doors.operator.get("/operator/v1/machines", headers=doors.as_operator())
    assert answer.status_code == 503
    assert "identity" in answer.json()["detail"]


async def test_a_bus_that_goes_away_makes_the_gateway_unready_until_it_is_back(tmp_path: Any, issuer: Issuer) -> None:
    broker = new_broker(tmp_path)
    async with open_doors(broker.url, issuer) as doors:
        await until(lambda: doors.gateway.problems() == ["the message bus cannot be reached"])
        unready = await doors.tenant.get("/readyz")
        assert (unready.status_code, unready.json()["status"]) == (503, "unready")
        refused = await doors.tenant.get("/v1/clusters", headers=doors.as_("alice"))
        assert (refused.status_code, refused.json()["code"]) == (503, "gateway.bus_unavailable")
        assert (await doors.tenant.get("/healthz")).status_code == 200
        await asyncio.to_thread(broker.process.start)
        await until(lambda: not doors.gateway.problems())
        assert (await doors.tenant.get("/readyz")).status_code == 200
        await asyncio.to_thread(broker.process.stop)
        await until(lambda: bool(doors.gateway.problems()))


async def test_without_a_provider_sign_in_is_unavailable_and_closed(broker: Broker, owners: Owners) -> None:
    from tests.unit.services.gateway.conftest import free_port

    nobody = Issuer(f"http://127.0.0.1:{free_port()}")
    async with open_doors(broker.url, nobody) as doors:
        await until(lambda: doors.gateway.owners.reachable)
        answer = await doors.tenant.get("/v1/clusters", headers=doors.as_("alice"))
        assert (answer.status_code, answer.json()["code"]) == (503, "gateway.sign_in_unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert (await doors.tenant.get("/readyz")).status_code == 503


async def test_requests_are_counted_by_route_template_and_status(doors: Doors, owners: Owners) -> None:
    await owners.answer("qry.provisioning.get_cluster", not_found("cluster", "x"))
    labels = {"door": "tenant", "method": "GET", "route": "/v1/clusters/{cluster_id}", "status": "404"}

    def counted() -> float:
        return doors.registry.get_sample_value("slipway_api_request_seconds_count", labels) or 0

    before = counted()
    await doors.tenant.get("/v1/clusters/some-id", headers=doors.as_("alice"))
    assert counted() == before + 1


async def test_a_page_can_be_had_as_json_lines(doors: Doors, owners: Owners) -> None:
    page = Answer(body={"items": [{"id": "e1"}, {"id": "e2"}], "next_cursor": "abc"})
    await owners.answer("qry.audit.export_events", page)
    headers = doors.as_operator(Accept="application/x-ndjson")
    answer = await doors.operator.get("/operator/v1/audit/export", headers=headers)
    assert answer.text == '{"id":"e1"}\n{"id":"e2"}\n'
    assert answer.headers["X-Next-Cursor"] == "abc"
