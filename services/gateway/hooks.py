"""Webhooks that other systems send to us: `POST /hooks/netbox`, at the operator door's port.

The sender is NetBox, not a person: it has no token, but signs the body with a secret that both know (HMAC-SHA512 in
hex, header X-Hook-Signature). The signature is the sign-in; what the body means is inventory's to say. One request is
one bus call; NetBox does not send again what failed, and need not: inventory polls.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog
from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import Response

from libs.contracts.calls import Call
from services.gateway.owners import Owners, subject_of
from services.gateway.problems import Refusal, problem_response
from services.gateway.request_parts import bounded_body, single_header

NETBOX_PATH = "/hooks/netbox"
NETBOX_ACTOR = "system:netbox"
SIGNATURE_HEADER = "X-Hook-Signature"
# A shorter secret could be guessed from one signed body.
MIN_SECRET_CHARACTERS = 16

log = structlog.get_logger("gateway")


@dataclass(frozen=True)
class NetBoxHook:
    """The route. `secrets`: those accepted now, so that a new one can be brought in before the old one goes."""

    owners: Owners
    secrets: Callable[[], list[bytes]]
    received: Counter

    async def serve(self, request: Request) -> Response:
        """202 for what NetBox signed, a problem for the rest."""
        try:
            return await self._serve(request)
        except Refusal as refusal:
            self.received.labels(refusal.code.removeprefix("gateway.")).inc()
            return problem_response(refusal, correlation_id=request.state.correlation_id, instance=request.url.path)

    async def _serve(self, request: Request) -> Response:
        secrets = self.secrets()
        if not secrets:
            raise Refusal(
                404,
                "gateway.no_such_path",
                "This gateway takes no webhooks of NetBox: it has no secret to know them by.",
                "Set SLIPWAY_NETBOX_HOOK_SECRET_FILE for the gateway.",
            )
        body = await bounded_body(request)
        _require_signature(body, single_header(request, SIGNATURE_HEADER), secrets)
        request.state.actor = NETBOX_ACTOR
        call = Call(
            name="netbox_hook",
            actor=NETBOX_ACTOR,
            correlation_id=request.state.correlation_id,
            params={"document": _document(body)},
        )
        answer = await self.owners.ask(subject_of("inventory", call.name, writes=True), call)
        if answer.status >= 400:
            raise Refusal(503, "gateway.owner_refused", "Inventory can't take it now.", "It polls NetBox by itself.")
        self.received.labels("accepted").inc()
        return Response(orjson.dumps(answer.body), answer.status, media_type="application/json")


def _require_signature(body: bytes, given: str | None, secrets: list[bytes]) -> None:
    """Raises Refusal (401) unless one of the secrets made the signature."""
    sent = (given or "").strip().lower().encode()
    right = [
        hmac.compare_digest(hmac.new(secret, body, hashlib.sha512).hexdigest().encode(), sent) for secret in secrets
    ]
    if not any(right):
        log.warning("netbox_hook_refused", signed=given is not None)
        raise Refusal(
            401,
            "gateway.bad_signature",
            f"The body is not signed with a secret that is known here ({SIGNATURE_HEADER}).",
            "Give NetBox's webhook the secret of SLIPWAY_NETBOX_HOOK_SECRET_FILE.",
        )


def _document(body: bytes) -> object:
    """The body's JSON. Whoever signed it may still send what is none: that points at nothing."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def hook_secrets(path: Path | None) -> Callable[[], list[bytes]]:
    """The secrets in a file, one a line; read anew each time, so that they are changed without a restart."""

    def read() -> list[bytes]:
        if path is None:
            return []
        try:
            lines = path.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            log.error("netbox_hook_secret_unreadable", file=str(path), error=str(error))
            return []
        short = [line for line in lines if len(line) < MIN_SECRET_CHARACTERS]
        if short:
            log.error("netbox_hook_secret_too_short", file=str(path), at_least=MIN_SECRET_CHARACTERS)
        return [line.encode() for line in lines if len(line) >= MIN_SECRET_CHARACTERS]

    return read
