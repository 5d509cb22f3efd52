"""A door as an ASGI application: FastAPI routes and the OpenAPI document, both made from the table.

FastAPI does routing and the document; the request itself is served by `pipeline.py`, so that every
route signs in, refuses and answers in exactly one way.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Query
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from services.gateway.answers import ProblemDocument
from services.gateway.filters import Query as QueryModel
from services.gateway.pipeline import PREFIXES
from services.gateway.problems import PROBLEM_MEDIA_TYPE, Refusal, problem_response
from services.gateway.routes import ROUTES, Door, Route

API_VERSION = "1.0.0"
CLIENT_WENT_AWAY = 499
STREAM_DESCRIPTION = """\
Each event is one `data` line: a CloudEvent. Its `id` is a position: send it as `Last-Event-ID` (or `after`) to go on
behind it. Named events: `gap` (numbers that the broker no longer has), `goodbye` (why the server ends the stream)."""
REF = "#/components/schemas/{model}"
Serve = Callable[[Route, Request], Awaitable[Response]]

TITLES = {Door.TENANT: "Slipway tenant API", Door.OPERATOR: "Slipway operator API"}
DESCRIPTION = """\
Sign in at the installation's identity provider for the audience `{audience}` and send the access token as
`Authorization: Bearer …`. A token for the other door is refused here.

* **Writes** take an `Idempotency-Key` (1-128 visible ASCII characters): the same key with the same request is done
  once and answered alike; without one, a repeat is a new request. Work that takes longer answers 202 with an
  `operation_id`; watch `GET /operations/{{operation_id}}` (the `Location`).
* **Lists** come in pages: give `next_cursor` back as `cursor`. `sort` takes a field, with a dash in front for
  descending; a filter that is given several times matches any of its values.
* **Versions**: a document's `ETag` sent as `If-Match` makes a write happen only if nobody changed it since.
* **Errors** are RFC 9457 problems: `code` is permanent, `next_step` says what to do, `correlation_id` finds every
  log line and event. Another tenant's thing answers exactly like one that does not exist.
"""


def make_app(door: Door, audience: str, serve: Serve) -> FastAPI:
    """The application of one door. `serve` answers a request of a route."""
    prefix = PREFIXES[door]
    app = FastAPI(
        title=TITLES[door],
        version=API_VERSION,
        description=DESCRIPTION.format(audience=audience),
        openapi_url=f"{prefix}/openapi.json",
        docs_url=None,  # The stock pages load scripts from elsewhere.
        redoc_url=None,
        redirect_slashes=False,
    )
    for route in ROUTES:
        if door in route.doors:
            _add(app, prefix, door, route, serve)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _routing_error)
    return app


def _add(app: FastAPI, prefix: str, door: Door, route: Route, serve: Serve) -> None:
    class DoorRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return _handler(route, serve)

    app.router.add_api_route(
        prefix + route.path,
        _documented(route, door),
        methods=[route.method],
        response_model=route.answer,
        status_code=route.status,
        summary=route.summary,
        description=_about(route),
        operation_id=route.call,
        tags=[route.path.split("/")[1]],
        responses=_responses(route),
        route_class_override=DoorRoute,
    )


def _handler(route: Route, serve: Serve) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def handle(request: Request) -> Response:
        try:
            return await serve(route, request)
        except Refusal as refusal:
            return _problem(request, refusal)
        except ClientDisconnect:
            return Response(status_code=CLIENT_WENT_AWAY)

    return handle


def _documented(route: Route, door: Door) -> Callable[..., Any]:
    """A function whose signature tells FastAPI what the document must say. It is never called."""

    async def never_called(**_: Any) -> None:
        raise AssertionError("requests are served by the pipeline")

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, annotation=Annotated[str, Path(min_length=1, max_length=200)])
        for name in _path_names(route.path)
    ]
    if route.query is not QueryModel:
        parameters.append(inspect.Parameter("query", keyword, annotation=Annotated[route.query, Query()]))
    if route.body is not None:
        parameters.append(inspect.Parameter("body", keyword, annotation=route.body))
    if route.writes:
        parameters.append(_header("Idempotency-Key", "The same key and request are done once and answered alike."))
    if route.guarded:
        parameters.append(_header("If-Match", "Only if the thing still has this ETag."))
    never_called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    never_called.__name__ = route.call
    return never_called


def _header(alias: str, description: str) -> inspect.Parameter:
    annotation = Annotated[str | None, Header(alias=alias, description=description, max_length=128)]
    name = alias.lower().replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _path_names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _about(route: Route) -> str:
    needs = {
        "signed_in": "Needs a believed token only.",
        "read": "Needs a role that may look.",
        "read_costs": "Needs a role that may look, or finance.",
        "write": "Needs a role that may change things.",
    }
    return f"{route.summary}. {needs[route.need]}"


def _responses(route: Route) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {"default": {"description": "A problem", "content": _problem_content()}}
    if route.streams:
        found[200] = {"description": STREAM_DESCRIPTION, "content": {"text/event-stream": {}}}
    return found


def _problem_content() -> dict[str, Any]:
    return {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": REF.format(model=ProblemDocument.__name__)}}}


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.router.routes
        )
        _, problem = models_json_schema([(ProblemDocument, "serialization")], ref_template=REF)
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(problem["$defs"])
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
        document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema


async def _routing_error(request: Request, error: Exception) -> Response:
    """No such path, or another method: the only errors that do not come from the pipeline."""
    assert isinstance(error, HTTPException)
    prefix = request.app.openapi_url.removesuffix("/openapi.json")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = Refusal(
            405,
            "gateway.method_not_allowed",
            f"{request.method} is not possible on this path.",
            f"Use {allowed or 'another method'}; {prefix}/openapi.json lists every path and method.",
            headers=error.headers,
        )
    else:
        refusal = Refusal(
            error.status_code,
            "gateway.no_such_path" if error.status_code == 404 else "gateway.bad_request",
            "There is nothing at this path." if error.status_code == 404 else "The request cannot be read.",
            f"{prefix}/openapi.json lists every path and method of this door.",
        )
    return _problem(request, refusal)


def _problem(request: Request, refusal: Refusal) -> Response:
    return problem_response(refusal, correlation_id=request.state.correlation_id, instance=request.url.path)
