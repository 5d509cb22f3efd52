"""Reads the end of a run: every stream, every table that rules look at, and the site's own record."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import orjson
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from chaos import wire
from chaos.driver import Crowd, Person
from chaos.history import Claim, DeadLetter, Event, History, Kept, Machine, Rebuilt, Restore, Saga, SiteAct
from chaos.witness import Witness
from chaos.world import World
from deploy.local.layout import SERVICES
from libs.bus.foreign import FILLER, VOID
from libs.bus.reading import open_reader
from libs.bus.tables import DEAD
from libs.bus.topology import event_stream

SILENCE_SECONDS = 30.0
# What was committed just now may be on its way; a relay that works needs far less.
LATE = "created_at < now() - interval '30 seconds'"
REBUILD_LOOK_SECONDS = 0.5
REBUILD_SECONDS = 180.0
AUDITED = tuple(service for service in SERVICES if service != "audit")


async def read_end(
    world: World, crowd: Crowd, witness: Witness, *, at_rest: bool, restores: Sequence[Restore] = ()
) -> History:
    """The whole history of the run; the system runs and nothing hurts it any more."""
    rebuilt = await rebuild_all(crowd.person("operator", "operator-end"))
    operations = await operation_states(crowd)
    async with wire.hub(world) as client, wire.database(world) as db:
        js = client.jetstream(timeout=30)
        # Satellites look and clocks tick at rest, too: what is compared ends at the numbers of one moment.
        ends = {service: (await js.stream_info(event_stream(service))).state.last_seq for service in SERVICES}
        streams = {service: tuple([e async for e in _events(js, service, ends[service])]) for service in SERVICES}
        everything = tuple([event async for event in _common_stream(js) if event[1] <= ends[event[0]]])
        audit = [Kept(**row) for row in await db.fetch("SELECT service, sequence, id FROM audit.event")]
        outbox = [kept for service in SERVICES for kept in await _outbox(db, service)]
        sagas = [saga for service in SERVICES for saga in await _sagas(db, service)]
        return History(
            seed=crowd.seed,
            at_rest=at_rest,
            requests=tuple(crowd.book.requests.values()),
            polls=tuple(crowd.book.polls),
            operations=operations,
            streams=streams,
            everything=everything,
            outbox=_up_to(ends, outbox),
            unpublished={service: await _unpublished(db, service) for service in SERVICES},
            audit=_up_to(ends, audit),
            audited_services=AUDITED,
            witnessed=_up_to(ends, witness.kept()),
            site=tuple(site_acts(world.stack.var / "satellite" / "simulated-site.sqlite")),
            sagas=tuple(sagas),
            dead_letters=tuple([letter for service in SERVICES for letter in await _dead_letters(db, service)]),
            claims=tuple(Claim(**row) for row in await db.fetch("SELECT id, machine_id, state FROM reservation.claim")),
            machines=await _machines(db),
            rebuilt=rebuilt,
            restores=tuple(restores),
            void={service: await _void(db, service) for service in SERVICES},
        )


# -- streams ----------------------------------------------------------------------------------------


def _up_to(ends: Mapping[str, int], rows: Iterable[Kept]) -> tuple[Kept, ...]:
    return tuple(row for row in rows if row.sequence is None or row.sequence <= ends[row.service])


async def _messages(js: JetStreamContext, stream: str, last: int) -> AsyncIterator[Msg]:
    """Every message of a stream up to `last`, oldest first. Raises TimeoutError when it goes silent before."""
    position = 0
    if last == 0:
        return
    async with await open_reader(js, stream, 1) as reader:
        while position < last:
            batch = await reader.next_batch(SILENCE_SECONDS)
            if not batch:
                raise TimeoutError(f"{stream} went silent at {position} of {last}")
            for message in batch:
                position = message.metadata.sequence.stream
                if position <= last:
                    yield message


def is_foreign(message: Msg) -> bool:
    """Whether the harness wrote it, or it fills a number that is void."""
    return wire.FOREIGN in (message.headers or {}) or message.data == FILLER


async def _events(js: JetStreamContext, service: str, last: int) -> AsyncIterator[Event]:
    async for message in _messages(js, event_stream(service), last):
        if is_foreign(message):
            continue
        event = orjson.loads(message.data)
        yield Event(
            service=service,
            position=message.metadata.sequence.stream,
            sequence=int(event.get("sequence", 0)),
            id=event["id"],
            type=event["type"],
            entity=event["subject"],
            version=event["entityversion"],
            tenant=event.get("tenant", "-"),
            tenant_sequence=int(event.get("tenantsequence", 0)),
            facts=_facts(event["type"], event["data"]),
        )


def _facts(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """The few facts that rules look at; a whole run's events with all their data would be hundreds of megabytes."""
    if ".operation." in kind:
        return {name: data["operation"][name] for name in ("kind", "status")}
    if kind.startswith("slipway.reservation.reservation."):
        claims = data["reservation"]["claims"]
        return {"claims": [{name: claim[name] for name in ("id", "machine_id", "state")} for claim in claims]}
    if kind.startswith("slipway.inventory.machine."):
        return {name: data["machine"].get(name) for name in ("state", "claim_id")}
    return {name: data[name] for name in ("machine_id", "to_state") if name in data}


async def _common_stream(js: JetStreamContext) -> AsyncIterator[tuple[str, int, str]]:
    last = (await js.stream_info("EVT")).state.last_seq
    async for message in _messages(js, "EVT", last):
        if is_foreign(message):
            continue
        event = orjson.loads(message.data)
        yield message.subject.split(".")[3], int(event["sequence"]), str(event["id"])


# -- tables -----------------------------------------------------------------------------------------


async def _outbox(db: asyncpg.Connection, service: str) -> list[Kept]:
    rows = await db.fetch(
        f"SELECT seq, message_id FROM {service}.outbox WHERE is_event AND (seq IS NOT NULL OR {LATE}) ORDER BY id"
    )
    return [Kept(service=service, sequence=row["seq"], id=row["message_id"]) for row in rows]


async def _unpublished(db: asyncpg.Connection, service: str) -> int:
    return int(await db.fetchval(f"SELECT count(*) FROM {service}.outbox WHERE published_at IS NULL AND {LATE}"))


async def _sagas(db: asyncpg.Connection, service: str) -> list[Saga]:
    rows = await db.fetch(
        f"""SELECT s.id, kind, phase, status, target_id, state->>'waiting_for' AS waiting_for,
            (SELECT count(*) FROM jsonb_object_keys(state->'pending')) AS pending,
            (SELECT count(*) FROM {service}.saga_timer t WHERE t.saga_id = s.id) AS timers
        FROM {service}.saga s ORDER BY s.id"""
    )
    return [
        Saga(
            service=service,
            id=row["id"],
            kind=row["kind"],
            phase=row["phase"],
            status=row["status"],
            target=row["target_id"],
            waiting_for=row["waiting_for"] or "",
            pending=row["pending"],
            timers=row["timers"],
        )
        for row in rows
    ]


async def _void(db: asyncpg.Connection, service: str) -> tuple[int, ...]:
    rows = await db.fetch(f"SELECT last_seq FROM {service}.stream_seen WHERE stream LIKE $1 ORDER BY 1", f"{VOID}%")
    return tuple(row["last_seq"] for row in rows)


async def _dead_letters(db: asyncpg.Connection, service: str) -> list[DeadLetter]:
    rows = await db.fetch(
        f"""SELECT message_id, subject, coalesce(error, '') AS error, coalesce(cause, '') AS cause
        FROM {service}.inbox WHERE state = {DEAD} ORDER BY id"""
    )
    return [DeadLetter(service=service, **row) for row in rows]


async def _machines(db: asyncpg.Connection) -> tuple[Machine, ...]:
    rows = await db.fetch("SELECT id, name, state, claim_id, facts->>'cluster_id' AS cluster_id FROM inventory.machine")
    return tuple(Machine(**row) for row in rows)


# -- the site ---------------------------------------------------------------------------------------


def site_acts(store: Path) -> list[SiteAct]:
    """The simulated site's own record."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT number, at, machine, what, subject FROM act ORDER BY number").fetchall()
    finally:
        connection.close()
    return [SiteAct(number=row[0], at=row[1], machine=row[2], what=row[3], subject=row[4]) for row in rows]


# -- the API ----------------------------------------------------------------------------------------


async def operation_states(crowd: Crowd) -> dict[str, str]:
    """Every accepted operation as the API shows it now; one that is not there is missing."""
    people = {account: crowd.person(account, account) for account in ("operator", "alice", "bob")}
    found = {}
    for operation, who in crowd.book.accepted.items():
        status = await people[who.rpartition("-")[0]].status(operation)
        if status is not None:
            found[operation] = status
    return found


async def rebuild_all(operator: Person) -> tuple[Rebuilt, ...]:
    """Build every projection of every service again, and compare."""
    found = []
    for service in SERVICES:
        document = await operator.read(f"/projections?service={service}")
        names = sorted({item["projection"] for item in document["items"]}) if document else []
        if document is None:
            found.append(Rebuilt(service=service, projection="?", equal=False, events=0, problem="could not be listed"))
        found += [await _rebuild(operator, service, name) for name in names]
    return tuple(found)


async def _rebuild(operator: Person, service: str, name: str) -> Rebuilt:
    path = f"{operator.url}/projections/{service}/{name}/rebuild"
    try:
        answer = await operator.post_once(path, REBUILD_SECONDS)
    except httpx.HTTPError as error:
        return Rebuilt(service=service, projection=name, equal=False, events=0, problem=repr(error))
    if answer.status_code not in (200, 202):
        return Rebuilt(service=service, projection=name, equal=False, events=0, problem=answer.text[:300])
    body = answer.json()
    while body["state"] == "running":
        await asyncio.sleep(REBUILD_LOOK_SECONDS)
        body = await operator.read(f"/projections/{service}/{name}/rebuild") or body
    if body["state"] == "failed":
        return Rebuilt(service=service, projection=name, equal=False, events=0, problem=str(body["error"])[:300])
    return Rebuilt(service=service, projection=name, equal=body["equal"], events=body["events"])
