"""The parts of one HTTP request, read and checked one by one: headers, query, path, body.

Each function raises Refusal naming the field. What the values mean is the owner's to judge.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from libs.contracts.ids import new_uuid
from services.gateway.filters import Query
from services.gateway.problems import Refusal, field_errors, invalid
from services.gateway.strict_json import BadJson, BadText, parse
from services.gateway.visible_text import complaint, one_line

MAX_BODY_BYTES = 256 * 1024  # What one message on the bus may carry.
MAX_QUERY_CHARACTERS = 8192
MAX_PATH_VALUE = 200
CORRELATION_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,128}")
_ETAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]{1,128})"')
_JSON_TYPE = re.compile(r"application/json(?:\s*;\s*charset=\"?utf-8\"?)?\s*", re.IGNORECASE)


def single_header(request: Request, name: str) -> str | None:
    """The header's only value, None when absent. Raises Refusal when it was sent twice."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise invalid("header", [{"field": name, "message": "was sent more than once; send it once"}])
    return values[0] if values else None


def idempotency_key(request: Request) -> str:
    """The caller's key, or a new one (then a repeat is a new request)."""
    key = single_header(request, "Idempotency-Key")
    if key is None:
        return new_uuid()
    if not _VISIBLE_ASCII.fullmatch(key):
        raise invalid(
            "header",
            [{"field": "Idempotency-Key", "message": "must be 1 to 128 visible ASCII characters, such as a UUID"}],
        )
    return key


def if_match(request: Request) -> str | None:
    """The version that the caller has seen, without quotes; None when they did not say."""
    value = single_header(request, "If-Match")
    if value is None or value.strip() == "*":
        return value and "*"
    match = _ETAG.fullmatch(value.strip())
    if match is None:
        raise invalid(
            "header", [{"field": "If-Match", "message": 'must be one quoted ETag of an earlier answer, such as "3"'}]
        )
    return match[1]


def path_values(request: Request) -> dict[str, str]:
    """The values in the path."""
    errors = []
    for name, value in request.path_params.items():
        wrong = complaint(value)
        if wrong is None and len(value) > MAX_PATH_VALUE:
            wrong = f"is too long; at most {MAX_PATH_VALUE} characters are allowed"
        if wrong is None:
            try:
                one_line(value)
            except ValueError as error:
                wrong = str(error)
        if wrong:
            errors.append({"field": name, "message": wrong})
    if errors:
        raise invalid("path", errors)
    return dict(request.path_params)


def query_values(request: Request, model: type[Query]) -> dict[str, Any]:
    """The query parameters that were given, checked. Unknown ones and repeated single ones are refused."""
    if len(request.url.query) > MAX_QUERY_CHARACTERS:
        raise Refusal(
            414,
            "gateway.query_too_long",
            f"The query has more than {MAX_QUERY_CHARACTERS} characters.",
            "Use fewer filters.",
        )
    lists = {f.alias or name for name, f in model.model_fields.items() if f.default_factory is list}
    values: dict[str, Any] = {}
    errors = []
    for name in request.query_params:
        given = request.query_params.getlist(name)
        if wrong := complaint(name):
            errors.append({"field": ascii(name[:60]), "message": f"the parameter's name {wrong}"})
        for value in given:
            if wrong := complaint(value):
                errors.append({"field": name, "message": wrong})
        if len(given) > 1 and name not in lists and name in _names(model):
            errors.append({"field": name, "message": "is given more than once; give it once"})
        values[name] = given if name in lists else given[0]
    if errors:
        raise invalid("query", errors)
    return _validated("query", model, values)


def _names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _validated(where: str, model: type[BaseModel], values: Any) -> dict[str, Any]:
    try:
        parsed = model.model_validate(values)
    except ValidationError as error:
        raise invalid(where, field_errors(error, model)) from None
    return parsed.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


async def body_values(request: Request, model: type[BaseModel] | None) -> dict[str, Any]:
    """The body's fields; one without a required field may be left out, and where none belongs {} is fine too."""
    payload = await bounded_body(request)
    required = model is not None and any(field.is_required() for field in model.model_fields.values())
    if not payload.strip() and model is not None and not required:
        return _validated("body", model, {})
    if model is None and payload.strip() in (b"", b"{}"):
        return {}
    if model is None:
        raise invalid("body", [{"field": "body", "message": "is not expected here; send none"}])
    content_type = single_header(request, "Content-Type")
    if content_type is None or not _JSON_TYPE.fullmatch(content_type.strip()):
        raise Refusal(
            415,
            "gateway.not_json",
            f"The body's Content-Type is {(content_type or 'missing')[:100]!a}.",
            "Send JSON with 'Content-Type: application/json'.",
        )
    if not payload.strip():
        raise invalid("body", [{"field": "body", "message": "is missing; send a JSON object"}])
    try:
        value = parse(payload)
    except BadText as error:
        raise invalid("body", [{"field": error.field, "message": str(error)}]) from None
    except BadJson as error:
        message = str(error)
        raise Refusal(
            400,
            "gateway.bad_json",
            message[:1].upper() + message[1:] + ".",
            "Correct the JSON and send the request again; nothing was done.",
        ) from None
    if not isinstance(value, dict):
        raise invalid("body", [{"field": "body", "message": "must be a JSON object"}])
    return _validated("body", model, value)


async def bounded_body(request: Request) -> bytes:
    """The body as it came. Raises Refusal (413) for one that the bus could not carry."""
    declared = single_header(request, "Content-Length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for piece in request.stream():  # A chunked body declares nothing, so what comes is counted.
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> Refusal:
    return Refusal(
        413,
        "gateway.body_too_large",
        f"The body has more than {MAX_BODY_BYTES // 1024} KiB.",
        "Send a smaller request; split a long list over several requests.",
        headers={"Connection": "close"},
    )
