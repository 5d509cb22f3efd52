"""Requests of the gateway to a service over NATS request-reply: `qry.<service>.<name>` and `call.<service>.<name>`.

The gateway has checked who is asking; `tenants` says whose things they may touch (None: all, the operator
door). The owner applies it, so another tenant's thing answers exactly as one that does not exist.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from libs.contracts.message import Message

QUERY_PREFIX = "qry"
CALL_PREFIX = "call"


class Call(Message):
    """One request. `params` holds path, query and body values; a write carries the Idempotency-Key."""

    name: str
    actor: str
    tenants: tuple[str, ...] | None = None
    correlation_id: str
    idempotency_key: str | None = None
    if_match: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)

    def may_see(self, tenant: str) -> bool:
        """Whether things of `tenant` exist for the caller."""
        return self.tenants is None or tenant in self.tenants


class Answer(Message):
    """What the owner says. `status` is an HTTP status; `body` the document, or a problem when status ≥ 400.

    `once` names members of the body that are said once and not kept for a repeat (a password): there they are null.

    A problem body has: code, message, next_step, and optionally errors: [{field, message}].
    """

    status: int = 200
    body: Any = None
    etag: str | None = None
    location: str | None = None
    once: tuple[str, ...] = ()


class Page(Message):
    """One page of a list. `next_cursor` is None on the last."""

    items: tuple[dict[str, Any], ...]
    next_cursor: str | None = None
    as_of: str | None = None  # age of the data the answer depends on (RFC 3339), when it is a copy


def problem(
    status: int, code: str, message: str, next_step: str = "", errors: list[dict[str, str]] | None = None, **extra: Any
) -> Answer:
    """A refusal in our one shape."""
    body: dict[str, Any] = {"code": code, "message": message, "next_step": next_step, **extra}
    if errors:
        body["errors"] = errors
    return Answer(status=status, body=body)


def not_found(kind: str, id_: str) -> Answer:
    """404; the same words whether it does not exist or belongs to somebody else."""
    return problem(
        404, f"{kind}.not_found", f"There is no {kind} {id_!r} that you can see.", f"List them: GET /{kind}s"
    )
