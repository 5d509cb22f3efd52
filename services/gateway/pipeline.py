"""One request from the door to its owner and back.

The order is fixed: who are you, may you do this at all, is the request well formed, ask the one
owner, pass the answer on. Nothing is decided here that a service could decide.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from libs.contracts.calls import Answer, Call
from libs.contracts.ids import OWNER_CODES, operation_owner
from libs.runtime.tokens import Principal, SignInUnavailable, TokenRefused, TokenVerifier, bearer_token
from services.gateway import request_parts
from services.gateway.access import Access, choose_tenant, tenants_touchable, tenants_writable
from services.gateway.access_cache import AccessCache
from services.gateway.owners import Owners, subject_of
from services.gateway.problems import Refusal, unavailable
from services.gateway.routes import Door, Fill, Owner, Route

JSON_LINES = "application/x-ndjson"
ASKABLE_SERVICES = frozenset(OWNER_CODES) - {"gateway"}
PREFIXES = {Door.TENANT: "/v1", Door.OPERATOR: "/operator/v1"}


@dataclass(frozen=True)
class Gate:
    """What one door needs to serve a request."""

    door: Door
    verifier: TokenVerifier
    access: AccessCache
    owners: Owners


async def serve(gate: Gate, route: Route, request: Request) -> Response:
    """The answer to `request`. Raises Refusal for everything that is refused here or by the owner."""
    principal = await sign_in(gate, request)
    correlation_id: str = request.state.correlation_id
    access = await gate.access.access(principal, correlation_id)
    request.state.actor = access.actor
    touchable = tenants_touchable(access, gate.door, route.need)
    params = await _params(gate.door, route, request, access)
    owner, name = _asked(route, params)
    call = Call(
        name=name,
        actor=access.actor,
        tenants=touchable,
        correlation_id=correlation_id,
        idempotency_key=request_parts.idempotency_key(request) if route.writes else None,
        if_match=request_parts.if_match(request) if route.guarded else None,
        params=params,
    )
    subject = subject_of(owner, name, writes=route.writes)
    answer = await gate.owners.ask(subject, call, route.patience_seconds)
    if answer.status >= 400:
        raise _refusal_of(answer, hidden_by_role=route.writes and _only_looks(access, gate.door))
    return _response(gate.door, request, answer)


async def sign_in(gate: Gate, request: Request) -> Principal:
    """Who sent the request. Raises Refusal (401, 503)."""
    try:
        token = bearer_token(request_parts.single_header(request, "Authorization"))
        return await gate.verifier.verify(token, time.time())
    except SignInUnavailable as error:
        raise unavailable("gateway.sign_in_unavailable", f"{error}.", error.retry_after_seconds) from None
    except TokenRefused as error:
        raise Refusal(
            401,
            f"gateway.{error.code}",
            f"Not signed in at the {gate.door} door: {error.message}.",
            f"Sign in for the audience {gate.verifier.audience!r} and send 'Authorization: Bearer <token>'.",
            headers={"WWW-Authenticate": f'Bearer realm="{gate.verifier.audience}", error="invalid_token"'},
        ) from None


async def _params(door: Door, route: Route, request: Request, access: Access) -> dict[str, Any]:
    params: dict[str, Any] = {
        **request_parts.query_values(request, route.query),
        **request_parts.path_values(request),
    }
    if route.writes:
        params |= await request_parts.body_values(request, route.body)
    match route.fill:
        case Fill.TENANT if door is Door.TENANT:
            params["tenant"] = choose_tenant(access, params.get("tenant"))
        case Fill.ISSUER:
            params.setdefault("issuer", access.issuer)
        case Fill.CALLER:
            params |= {"issuer": access.issuer, "subject": access.subject}
        case Fill.TENANT | Fill.NOTHING:
            pass
    return params


def _asked(route: Route, params: dict[str, Any]) -> tuple[str, str]:
    """Whom to ask and what: the owner about the present, audit about the past."""
    if route.past is None or "at" not in params:
        return _owner(route, params), route.call
    (thing,) = (name for name in params if name != "at")
    params |= {"entity_kind": route.past, "entity_id": params.pop(thing)}
    return "audit", "get_state"


def _owner(route: Route, params: Mapping[str, Any]) -> str:
    """The one service to ask. Raises Refusal (404) when the request names none that exists."""
    if route.owner == Owner.OF_OPERATION:
        owner = operation_owner(params["operation_id"])
        if owner is None:
            raise Refusal(
                404,
                "operation.not_found",
                f"There is no operation {params['operation_id']!r} that you can see.",
                "List them: GET /operations",
            )
        return owner
    if route.owner == Owner.OF_SERVICE:
        if params["service"] not in ASKABLE_SERVICES:
            raise Refusal(
                404,
                "service.not_found",
                f"There is no service {params['service']!r}.",
                f"Use one of: {', '.join(sorted(ASKABLE_SERVICES))}.",
            )
        return str(params["service"])
    return route.owner


def _only_looks(access: Access, door: Door) -> bool:
    """Whether there are tenants whose things the caller sees and cannot change."""
    return door is Door.TENANT and set(access.tenants) != set(tenants_writable(access))


def _refusal_of(answer: Answer, *, hidden_by_role: bool) -> Refusal:
    """The owner's problem, in the shape of every other."""
    body = dict(answer.body) if isinstance(answer.body, dict) else {}
    errors = body.pop("errors", None)
    next_step = str(body.pop("next_step", "") or "")
    if answer.status == 404 and hidden_by_role:
        next_step = f"{next_step} You may be only a viewer of its tenant: changing needs member or admin.".strip()
    status = answer.status if answer.status < 600 else 500
    message = str(body.pop("message", "") or body.pop("detail", "") or "The request was refused.")
    return Refusal(
        status,
        str(body.pop("code", "") or "gateway.owner_refused"),
        message,
        next_step or "Report this with the correlation id.",
        errors=errors if isinstance(errors, list) else (),
        headers={"Retry-After": "2"} if status == 503 else None,
        members=body,
    )


def _response(door: Door, request: Request, answer: Answer) -> Response:
    headers = {"Cache-Control": "private, no-cache"}
    if answer.etag is not None:
        headers["ETag"] = _quoted(answer.etag)
        if request.method == "GET" and request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
    if answer.location is not None:
        headers["Location"] = PREFIXES[door] + answer.location
    if request.headers.get("Accept") == JSON_LINES and isinstance(answer.body, dict) and "items" in answer.body:
        return _json_lines(answer, headers)
    if answer.body is None:
        return Response(status_code=204 if answer.status == 200 else answer.status, headers=headers)
    return Response(orjson.dumps(answer.body), answer.status, headers, "application/json")


def _json_lines(answer: Answer, headers: dict[str, str]) -> Response:
    """A page as one JSON document a line; the next page's cursor is in a header."""
    if cursor := answer.body.get("next_cursor"):
        headers["X-Next-Cursor"] = str(cursor)
    lines = b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in answer.body["items"])
    return Response(lines, answer.status, headers, JSON_LINES)


def _quoted(etag: str) -> str:
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def at_other_door(gate: Gate, door: Door, audience: str) -> Gate:
    """The gate of another door of the same process: same keys, same bus, other audience."""
    return replace(gate, door=door, verifier=gate.verifier.for_audience(audience))
