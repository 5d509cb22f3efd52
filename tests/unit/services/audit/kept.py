"""Events to keep, a service with a signing key, and a look behind its back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from libs.contracts.envelope import Envelope, sequence_text
from libs.runtime.service import Service
from libs.testing.kit import ServiceKit
from services.audit.app import make_service
from services.audit.settings import Settings
from services.audit.signing import make_key

YEAR = 365
LONG_AGO = datetime(2021, 5, 1, 12, tzinfo=UTC)


def signing_service(folder: Path) -> Service:
    """Audit with a key of its own."""
    make_key(folder / "signing.pem")
    return make_service(Settings(audit_signing_key=folder / "signing.pem"))


def event(
    sequence: int,
    *,
    time: datetime | None = None,
    service: str = "inventory",
    kind: str = "machine",
    id_: str = "m1",
    version: int | None = None,
    tenant: str = "-",
    correlation: str = "c1",
    **facts: Any,
) -> Envelope:
    """Event `sequence` of a service, about one entity whose facts are `facts`, a second after the one before."""
    return Envelope(
        id=f"e-{service}-{sequence}",
        source=f"/slipway/{service}",
        type=f"slipway.{service}.{kind}.updated",
        time=time or LONG_AGO + timedelta(seconds=sequence),
        subject=id_,
        entityversion=sequence if version is None else version,
        correlationid=correlation,
        tenant=tenant,
        sequence=sequence_text(sequence),
        data={kind: {"id": id_, "name": f"name-of-{id_}", "version": version or sequence, **facts}},
    )


async def project(kit: ServiceKit, events: list[Envelope]) -> None:
    """Keep the events and move the position, as the projector does."""
    await kit.project("events", events)
    statement = (
        "INSERT INTO audit.projection_position VALUES ('events', :service, :position) "
        "ON CONFLICT (projection, stream) DO UPDATE SET position = excluded.position"
    )
    await as_owner(
        kit, statement, service=events[-1].type.split(".")[1], position=max(event.stream_sequence for event in events)
    )


async def as_owner(kit: ServiceKit, statement: str, **values: Any) -> list[Any]:
    """What somebody does who owns the database, and may do anything in it."""
    async with kit.database.transaction() as conn:
        done = await conn.execute(text(statement), values)
        return list(done) if done.returns_rows else []


async def body(kit: ServiceKit, name: str, params: dict[str, Any] | None = None, **more: Any) -> Any:
    answer = await kit.query(name, params or {}, **more)
    assert answer.status == 200, answer.body
    return answer.body


async def sequences(kit: ServiceKit, service: str = "inventory") -> list[int]:
    rows = await as_owner(kit, "SELECT sequence FROM audit.event WHERE service = :s ORDER BY sequence", s=service)
    return [row.sequence for row in rows]


async def problems(kit: ServiceKit, service: str = "inventory", **params: Any) -> list[tuple[str, int]]:
    """What a walk along the whole chain finds: (kind, sequence)."""
    found: list[tuple[str, int]] = []
    state: dict[str, Any] = {"after": 0, "digest": ""}
    while True:
        page = await body(kit, "verify_chain", {"service": service, **state, **params})
        found += [(problem["kind"], problem["sequence"]) for problem in page["problems"]]
        state = {"after": page["sequence"], "digest": page["digest"]}
        if not page["more"]:
            return found


async def in_force(kit: ServiceKit, keep_days: int | None = YEAR) -> None:
    """A policy, a day after it was set."""
    assert (await kit.call("set_retention", {"keep_days": keep_days, "reason": "the books"})).status == 200
    await as_owner(kit, "UPDATE audit.retention_policy SET in_force_at = set_at - interval '1 second'")


async def run(kit: ServiceKit) -> dict[str, int]:
    """A whole round of retention."""
    total, cursor = {"removed": 0, "held": 0}, None
    while True:
        answer = await kit.call("run_retention", {"cursor": cursor} if cursor else {})
        assert answer.status == 200, answer.body
        total = {name: total[name] + answer.body[name] for name in total}
        cursor = answer.body["next_cursor"]
        if cursor is None:
            return total
