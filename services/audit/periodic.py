"""What audit does by the clock: make next months' partitions, sign once a day, remove what is expired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from prometheus_client import Gauge

from libs.bus.topology import EVENT_SERVICES
from libs.contracts.envelope import now_utc
from libs.runtime.service import App, Periodic
from services.audit import checkpoints, retention, store
from services.audit.settings import Settings
from services.audit.signing import Signer, Signers

CHECKPOINT_ACTOR, RETENTION_ACTOR = "system:checkpoint", "system:retention"
PARTITIONS_EVERY_SECONDS = 6 * 3600.0
AHEAD = tuple(timedelta(days=days) for days in (0, 31, 62))

log = structlog.get_logger(__name__)
SIGNED_AT = Gauge(
    "slipway_audit_signed_timestamp_seconds", "When a chain was signed last (Unix time; 0: never)", ["service"]
)


async def make_partitions(app: App) -> None:
    """This month's and the next two: no event then waits for one to be made."""
    now = now_utc()
    async with app.database.transaction() as conn:
        await store.ensure_partitions(conn, [now + ahead for ahead in AHEAD])


async def sign(app: App, signer: Signer) -> None:
    """Sign what has no checkpoint of today yet."""
    async with app.transaction(actor=CHECKPOINT_ACTOR) as ctx:
        made = await checkpoints.make_checkpoints(ctx, signer, daily=True)
    for facts in made:
        log.info("chain_signed", service=facts.service, number=facts.number, last_sequence=facts.last_sequence)
    async with app.read() as conn:
        for service in EVENT_SERVICES:
            row = await checkpoints.latest(conn, service)
            SIGNED_AT.labels(service).set(row["made_at"].timestamp() if row is not None else 0)


async def remove_expired(app: App, signer: Signer) -> None:
    """One round: every service, step by step, each in a transaction of its own."""
    round_, more = retention.Round(), True
    while more:
        async with app.transaction(actor=RETENTION_ACTOR) as ctx:
            more = await retention.remove_some(ctx, signer, round_)
    if round_.events:
        log.info("expired_events_removed", events=round_.events, held=round_.held)


def periodic(settings: Settings, signers: Signers) -> tuple[Periodic, ...]:
    """Without a signing key nothing is signed, and so nothing is removed."""

    def with_key(work: Callable[[App, Signer], Awaitable[None]]) -> Callable[[App], Awaitable[None]]:
        async def run(app: App) -> None:
            signer = signers()
            if signer is not None:
                await work(app, signer)

        return run

    return (
        Periodic("make_partitions", PARTITIONS_EVERY_SECONDS, make_partitions),
        Periodic("sign", settings.audit_checkpoint_every_seconds, with_key(sign)),
        Periodic("remove_expired", settings.audit_retention_every_seconds, with_key(remove_expired)),
    )
