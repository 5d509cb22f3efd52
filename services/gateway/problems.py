"""Every error of the gateway in one shape: RFC 9457 problem details with our members.

`code` is permanent and for programs, `detail` says what happened to what, `next_step` what to do.
A problem never repeats a caller's value that may be a secret (a token, a key).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

PROBLEM_MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:slipway:problem:"
RETRY_AFTER_SECONDS = 2  # A service that restarts answers again after about this long.
MAX_ERRORS_SHOWN = 20


class Refusal(Exception):
    """The request ends here with this problem. `members` are added to the problem's own."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        next_step: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.next_step = next_step
        self.errors = tuple(errors)[:MAX_ERRORS_SHOWN]
        self.headers = dict(headers or {})
        self.members = dict(members or {})


def problem_response(refusal: Refusal, *, correlation_id: str, instance: str) -> Response:
    """The refusal as application/problem+json."""
    body: dict[str, Any] = {
        **refusal.members,
        "type": TYPE_PREFIX + refusal.code,
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "next_step": refusal.next_step,
        "correlation_id": correlation_id,
        "instance": instance,
    }
    if refusal.errors:
        body["errors"] = list(refusal.errors)
    return Response(orjson.dumps(body), refusal.status, refusal.headers, PROBLEM_MEDIA_TYPE)


def unavailable(code: str, detail: str, retry_after_seconds: int = RETRY_AFTER_SECONDS) -> Refusal:
    """503: nothing was decided; the same request may work later."""
    return Refusal(
        503,
        code,
        detail,
        f"Send the same request with the same Idempotency-Key again in {retry_after_seconds} s.",
        headers={"Retry-After": str(retry_after_seconds)},
    )


def invalid(where: str, errors: Sequence[Mapping[str, str]]) -> Refusal:
    """422: `errors` are [{field, message}] about the `where` ("body", "query", "path", "header")."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Refusal(
        422,
        "gateway.invalid_request",
        f"{where} field {first['field']!r} {first['message']}{more}.",
        "Correct the fields listed in 'errors' and send the request again; nothing was done.",
        errors=errors,
    )


def field_errors(error: ValidationError, model: type[BaseModel]) -> list[dict[str, str]]:
    """A pydantic error as [{field, message}], in words for a person; values are left out."""
    allowed = sorted(field.alias or name for name, field in model.model_fields.items())
    return [
        {"field": ".".join(map(str, item["loc"])) or "body", "message": _message(item, model, allowed)}
        for item in error.errors(include_url=False, include_input=False)
    ]


def _message(item: Mapping[str, Any], model: type[BaseModel], allowed: Sequence[str]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is not known here; allowed are {', '.join(allowed) or 'none'}"
        case "string_pattern_mismatch":
            return f"does not have the right form{_form(item['loc'], model)}"
        case "string_too_short":
            return f"is too short; give at least {context['min_length']} characters"
        case "string_too_long":
            return f"is too long; at most {context['max_length']} characters are allowed"
        case "too_short":
            return f"has too few entries; give at least {context['min_length']}"
        case "too_long":
            return f"has too many entries; at most {context['max_length']} are allowed"
        case "enum" | "literal_error":
            return f"must be one of {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "timezone_aware":
            return "needs an offset from UTC, for example 2026-01-31T12:00:00Z"
        case _:
            return str(item["msg"]).replace("Input should be", "must be", 1).replace("Value", "value", 1)


def _form(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """The field's own description, which says in words what its pattern demands."""
    name = location[0] if location else ""
    field = next((f for key, f in model.model_fields.items() if name in (key, f.alias)), None)
    return f": {field.description}" if field is not None and field.description else ""
