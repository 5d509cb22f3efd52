"""Bad input of every kind is refused by field, before any owner is asked, with what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.gateway.openapi import document
from services.gateway.routes import ROUTES, Door
from tests.unit.services.gateway.conftest import Doors, Owners
from tests.unit.services.gateway.test_gateway_doors import CLUSTER, KEY_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")
T, O = "tenant", "operator"  # noqa: E741
PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE=\n-----END OPENSSH PRIVATE KEY-----"


async def send(doors: Doors, door: str, method: str, path: str, **request: Any) -> httpx.Response:
    client, prefix = (doors.tenant, "/v1") if door == T else (doors.operator, "/operator/v1")
    signed_in = doors.as_("alice") if door == T else doors.as_operator()
    headers = signed_in | request.pop("headers", {})
    return await client.request(method, prefix + path, headers=headers, **request)


def fields(answer: httpx.Response) -> list[str]:
    return [error["field"] for error in answer.json().get("errors", [])]


BODIES: list[tuple[str, str, str, Any, str]] = [
    # POST /clusters: each limit of each field.
    *[
        (T, "POST", "/clusters", {**CLUSTER, field: value}, named)
        for field, value, named in [
            ("name", None, "name"),
            ("name", "", "name"),
            ("name", "   ", "name"),
            ("name", 7, "name"),
            ("name", "Train", "name"),
            ("name", "a" * 64, "name"),
            ("name", "train-", "name"),
            ("name", "train\u200b", "name"),
            ("name", "tr\u0430in", "name"),
            ("profile", "../etc", "profile"),
            ("profile", ["gpu"], "profile"),
            ("node_count", 0, "node_count"),
            ("node_count", -1, "node_count"),
            ("node_count", 4097, "node_count"),
            ("node_count", "4", "node_count"),
            ("node_count", 4.5, "node_count"),
            ("node_count", True, "node_count"),
            ("node_count", None, "node_count"),
            ("image", "x" * 101, "image"),
            ("image", "two\nlines", "image"),
            ("site", "FRA 1", "site"),
            ("tenant", "evt.*.>", "tenant"),
            ("ssh_authorized_keys", [], "ssh_authorized_keys"),
            ("ssh_authorized_keys", KEY_LINE, "ssh_authorized_keys"),
            ("ssh_authorized_keys", [KEY_LINE] * 65, "ssh_authorized_keys"),
            ("ssh_authorized_keys", [KEY_LINE, "ssh-ed25519"], "ssh_authorized_keys.1"),
            ("ssh_authorized_keys", [KEY_LINE + "\nssh-rsa AAAA evil"], "ssh_authorized_keys.0"),
            ("ssh_authorized_keys", ['command="sh" ' + KEY_LINE], "ssh_authorized_keys.0"),
            ("ssh_authorized_keys", [None], "ssh_authorized_keys.0"),
            ("node_cuont", 4, "node_cuont"),
        ]
    ],
    (T, "POST", "/clusters", {}, "name"),
    (T, "POST", "/clusters", [], "body"),
    (T, "POST", "/clusters", "text", "body"),
    (T, "POST", "/clusters", None, "body"),
    (O, "POST", "/enrolments", {}, "body"),
    (O, "POST", "/enrolments", {"racks": []}, "body"),
    (O, "POST", "/enrolments", {"racks": "r1"}, "racks"),
    (O, "POST", "/enrolments", {"racks": ["r1", ""]}, "racks.1"),
    (O, "POST", "/enrolments", {"racks": ["r1", "\t"]}, "racks.1"),
    (O, "POST", "/enrolments", {"machines": ["m"] * 2001}, "machines"),
    (O, "POST", "/machines/m1/quarantine", {}, "reason"),
    (O, "POST", "/machines/m1/quarantine", {"reason": "  "}, "reason"),
    (O, "POST", "/machines/m1/quarantine", {"reason": "x" * 501}, "reason"),
    (O, "POST", "/machines/m1/quarantine", {"reason": "\u202eylrevo"}, "reason"),
    (O, "POST", "/machines/m1/holds", {"reason": None}, "reason"),
    (O, "POST", "/machines/m1/retry", {"force": True}, "body"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": 98.32, "currency": "EUR"}, "price_per_machine_hour"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "-1", "currency": "EUR"}, "price_per_machine_hour"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "1e3", "currency": "EUR"}, "price_per_machine_hour"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "NaN", "currency": "EUR"}, "price_per_machine_hour"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "1.0000001", "currency": "EUR"}, "price_per_machine_hour"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "1", "currency": "euro"}, "currency"),
    (O, "PUT", "/prices/gpu", {"price_per_machine_hour": "1", "currency": "EUR", "valid_from": "soon"}, "valid_from"),
    (
        O,
        "PUT",
        "/prices/gpu",
        {"price_per_machine_hour": "1", "currency": "EUR", "valid_from": "2026-01-01T00:00:00"},
        "valid_from",
    ),
    (O, "PUT", "/images/i", {"version_label": "1", "url": "ftp://x/y", "checksum": "0" * 64}, "url"),
    (O, "PUT", "/images/i", {"version_label": "1", "url": "https://x/y z", "checksum": "0" * 64}, "url"),
    (O, "PUT", "/images/i", {"version_label": "1", "url": "https://x/y", "checksum": "md5:0"}, "checksum"),
    (O, "PUT", "/profiles/p", {"description": "d", "device_types": []}, "device_types"),
    (O, "PUT", "/profiles/p", {"description": "d", "device_types": ["x"], "gpu_count": -1}, "gpu_count"),
    (O, "POST", "/organizations", {"id": "Acme", "name": "Acme"}, "id"),
    (O, "POST", "/organizations", {"id": "acme", "name": "Acme\u200b"}, "name"),
    (O, "POST", "/organizations", {"id": "acme", "name": "\u202eemcA"}, "name"),
    (O, "POST", "/organizations", {"id": "acme", "name": "a" * 101}, "name"),
    (O, "POST", "/tenants", {"id": "t", "organization_id": "acme", "name": "T", "machine_quota": -1}, "machine_quota"),
    (O, "POST", "/grants", {"subject": "a", "role": "root", "scope_kind": "installation"}, "role"),
    (O, "POST", "/grants", {"subject": "a", "role": "member", "scope_kind": "tenant"}, "body"),
    (O, "POST", "/grants", {"subject": "", "role": "operator", "scope_kind": "installation"}, "subject"),
]


@pytest.mark.parametrize(("door", "method", "path", "body", "field"), BODIES)
async def test_a_bad_body_is_refused_by_field_and_nobody_is_asked(
    doors: Doors, owners: Owners, door: str, method: str, path: str, body: Any, field: str
) -> None:
    request = {"content": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}
    answer = await send(doors, door, method, path, **request)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "gateway.invalid_request"
    assert field in fields(answer), answer.text
    assert answer.json()["next_step"]
    assert not owners.calls


RAW: list[tuple[bytes, int, str]] = [
    (b"", 422, "missing"),
    (b"{", 400, "line 1"),
    (b"{'name': 1}", 400, "not JSON"),
    (b'{"name": "a", "name": "b"}', 400, "'name' is given twice"),
    (b'{"node_count": NaN}', 400, "NaN"),
    (b'{"node_count": -Infinity}', 400, "Infinity"),
    (b'{"node_count": 1e999}', 400, "too large"),
    (b'{"node_count": ' + b"9" * 30 + b"}", 400, "64 bits"),
    (b'{"node_count": ' + b"9" * 5000 + b"}", 400, "digits"),
    (b"[" * 100_000, 400, "nested"),
    (b'{"a":' * 20 + b"1" + b"}" * 20, 400, "nested"),
    (b'{"name": "\xff"}', 400, "UTF-8"),
    ('{"name": "ä"}'.encode("utf-16"), 400, "UTF-8"),
    (b'{"name": "a\\u0000b"}', 422, "U+0000"),
    (b'{"name": "\\ud800"}', 422, "U+D800"),
    (b'{"n\\u202eame": 1}', 422, "U+202E"),
]


@pytest.mark.parametrize(("payload", "status", "words"), RAW)
async def test_bytes_that_are_no_clean_json_are_refused(
    doors: Doors, owners: Owners, payload: bytes, status: int, words: str
) -> None:
    answer = await send(doors, T, "POST", "/clusters", content=payload, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert words in json.dumps(answer.json(), ensure_ascii=False)
    assert not owners.calls


async def test_a_private_key_is_named_as_one_and_never_repeated(doors: Doors) -> None:
    answer = await send(doors, T, "POST", "/clusters", json={**CLUSTER, "ssh_authorized_keys": [PRIVATE_KEY]})
    assert answer.status_code == 422
    assert "private key" in answer.text
    assert "b3BlbnNzaC1rZXktdjE" not in answer.text


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/xml", "application/json; charset=latin-1"])
async def test_another_media_type_is_415(doors: Doors, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    answer = await send(doors, T, "POST", "/clusters", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "gateway.not_json")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_256_kib_is_413_however_it_is_sent(doors: Doors, chunked: bool) -> None:
    payload = b'{"name": "' + b"a" * (256 * 1024) + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(payload), 8192):
            yield payload[start : start + 8192]

    answer = await send(
        doors,
        T,
        "POST",
        "/clusters",
        content=pieces() if chunked else payload,
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "gateway.body_too_large")


QUERIES: list[tuple[str, str, str, str]] = [
    (T, "/clusters?colour=red", "colour", "cursor"),
    (T, "/clusters?limit=0", "limit", "1"),
    (T, "/clusters?limit=201", "limit", "200"),
    (T, "/clusters?limit=ten", "limit", "integer"),
    (T, "/clusters?limit=", "limit", "integer"),
    (T, "/clusters?limit=1&limit=2", "limit", "once"),
    (T, "/clusters?sort=name;drop", "sort", "field name"),
    (T, "/clusters?state=ready", "state.0", "READY"),
    (T, "/clusters?state=READY&state=OFF", "state.1", "READY"),
    (T, "/clusters?q=%00", "q", "U+0000"),
    (T, "/clusters?q=%E2%80%AE", "q", "U+202E"),
    (T, "/clusters?cursor=", "cursor", "1"),
    (T, "/profiles/p1?x=1", "x", "none"),
    (T, "/usage?from=yesterday", "from", "datetime"),
    (T, "/usage?from=2026-01-01T00:00:00", "from", "2026-01-31T12:00:00Z"),
    (T, "/usage?from_=2026-01-01T00:00:00Z", "from_", "from"),
    (T, "/costs", "by", "missing"),
    (T, "/costs?by=week", "by", "hour"),
    (O, "/machines?health=GOOD", "health.0", "HEALTHY"),
    (O, "/machines?rack=%20", "rack.0", "blank"),
    (O, "/projections", "service", "missing"),
    (O, "/projections?service=gateway", "service", "inventory"),
]


@pytest.mark.parametrize(("door", "path", "field", "words"), QUERIES)
async def test_a_bad_query_is_refused_by_parameter(
    doors: Doors, owners: Owners, door: str, path: str, field: str, words: str
) -> None:
    answer = await send(doors, door, "GET", path)
    assert answer.status_code == 422, answer.text
    [error] = [error for error in answer.json()["errors"] if error["field"] == field]
    assert words in error["message"]
    assert not owners.calls


HEADERS: list[tuple[dict[str, str], str]] = [
    ({"Idempotency-Key": ""}, "Idempotency-Key"),
    ({"Idempotency-Key": "two words"}, "Idempotency-Key"),
    ({"Idempotency-Key": "k" * 129}, "Idempotency-Key"),
    ({"If-Match": "7"}, "If-Match"),
    ({"If-Match": '"1", "2"'}, "If-Match"),
    ({"X-Correlation-Id": "two words"}, "X-Correlation-Id"),
    ({"X-Correlation-Id": "c" * 129}, "X-Correlation-Id"),
]


@pytest.mark.parametrize(("headers", "field"), HEADERS)
async def test_a_bad_header_is_refused_by_name(
    doors: Doors, owners: Owners, headers: dict[str, str], field: str
) -> None:
    answer = await send(doors, T, "DELETE", "/clusters/c1", headers=headers)
    assert answer.status_code == 422
    assert fields(answer) == [field]
    assert not owners.calls


@pytest.mark.parametrize(
    "path", ["/clusters/%00", "/clusters/%E2%80%AE", "/clusters/%20", "/clusters/" + "c" * 201, "/clusters/a%0Ab"]
)
async def test_a_bad_id_in_the_path_is_refused(doors: Doors, owners: Owners, path: str) -> None:
    answer = await send(doors, T, "GET", path)
    assert answer.status_code == 422
    assert fields(answer) == ["cluster_id"]
    assert not owners.calls


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "gateway.no_such_path"),
        ("GET", "/machines", 404, "gateway.no_such_path"),
        ("GET", "/clusters/", 404, "gateway.no_such_path"),
        ("PATCH", "/clusters/c1", 405, "gateway.method_not_allowed"),
        ("POST", "/usage", 405, "gateway.method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_a_problem_that_says_where_to_look(
    doors: Doors, method: str, path: str, status: int, code: str
) -> None:
    answer = await send(doors, T, method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "/v1/openapi.json" in answer.json()["next_step"]
    assert answer.headers["X-Correlation-Id"] == answer.json()["correlation_id"]
    assert ("Allow" in answer.headers) == (status == 405)


async def test_every_route_of_a_door_is_in_its_document_and_needs_sign_in(doors: Doors) -> None:
    for door in Door:
        described = json.loads(document(door))
        client, prefix = (doors.tenant, "/v1") if door is Door.TENANT else (doors.operator, "/operator/v1")
        assert described["openapi"].startswith("3.1")
        served = await client.get(f"{prefix}/openapi.json")
        assert served.json() == described
        for route in ROUTES:
            operation = described["paths"].get(prefix + route.path, {}).get(route.method.lower())
            assert (operation is not None) == (door in route.doors), route
            if operation is None:
                continue
            answer = await client.request(route.method, prefix + route.path)
            assert answer.status_code == 401, route
            assert (route.body is None) == ("requestBody" not in operation)
