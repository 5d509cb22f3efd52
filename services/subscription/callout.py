"""Answers the broker when somebody signs in who is not in its configuration: a subscriber, or nobody.

Fails closed: whatever goes wrong here, the client is refused and tries again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from libs.runtime.database import Database
from services.subscription import store
from services.subscription.broker_tokens import Issuer, SignIn, Unreadable, parse_request
from services.subscription.model import STREAM, consumer_name
from services.subscription.signatures import inbox_prefix, password_digest

SUBJECT = "$SYS.REQ.USER.AUTH"

log = structlog.get_logger("callout")
SIGN_INS = Counter("slipway_subscriber_sign_ins_total", "Sign-ins at the broker", ["outcome"])


async def serve(bus: Client, database: Database, issuer: Issuer) -> None:
    """Answer from now on; any replica answers any question."""

    async def take(message: Msg) -> None:
        try:
            request = parse_request(message.data)
            await message.respond(await answer(database, issuer, request))
        except Unreadable as error:
            log.warning("callout_unreadable", error=str(error))
        except Exception as error:
            SIGN_INS.labels("failed").inc()
            log.warning("callout_failed", error=repr(error))  # No answer is a refusal.

    await bus.subscribe(SUBJECT, queue="subscription", cb=take)


async def answer(database: Database, issuer: Issuer, request: SignIn) -> bytes:
    """Yes with exactly what the subscriber may do, or no."""
    async with database.transaction() as conn:
        row = await store.sign_in_row(conn, request.user)
        now = await store.database_now(conn)
    seconds = int(now.timestamp())
    if row is None:
        return _refused(issuer, request, seconds, "unknown")
    given = password_digest(request.password)
    if hmac.compare_digest(given, row["password_digest"]):
        until = None
    elif _old_password_good(row, given, now):
        until = int(row["old_password_until"].timestamp())
    else:
        return _refused(issuer, request, seconds, "wrong_password")
    SIGN_INS.labels("allowed").inc()
    consumer = f"{STREAM}.{consumer_name(row['id'], row['generation'])}"
    return issuer.allowed(request, consumer, inbox_prefix(request.password), seconds, until)


def _old_password_good(row: Mapping[Any, Any], given: str, now: Any) -> bool:
    old, until = row["old_password_digest"], row["old_password_until"]
    return old is not None and now < until and hmac.compare_digest(given, old)


def _refused(issuer: Issuer, request: SignIn, now: int, reason: str) -> bytes:
    SIGN_INS.labels(reason).inc()
    log.info("subscriber_refused", user=request.user[:80], host=request.host, reason=reason)
    return issuer.refused(request, now, reason)
