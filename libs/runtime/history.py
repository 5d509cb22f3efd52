"""Whether this process may act at all: is the database the one that made the stream, or an older copy of it?

Asked before anything acts and every few seconds after. While a restore waits for a human the service reads and answers
reads, lands messages and follows events, and neither writes nor publishes. See libs/bus/restore.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from nats.js import JetStreamContext
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus import restore
from libs.bus.context import Context
from libs.bus.gate import Gate
from libs.bus.restore import ForeignHistory, Held, Lost, ParkAll
from libs.contracts.calls import Answer, Call, problem
from libs.runtime.database import Database
from libs.runtime.params import invalid, parse

LOOK_SECONDS = 5.0
RETRY_SECONDS = 1.0
NAME = "restore"
UNKNOWN = "whether this database and the event stream belong together is not known yet"
PAGE = 200

MakeContext = Callable[[AsyncConnection, Call], Context]

log = structlog.get_logger("history")


class _Accept(BaseModel):
    epoch: int = Field(ge=2)
    reason: str = Field(min_length=1, max_length=500)


class _Show(BaseModel):
    model_config = ConfigDict(extra="ignore")
    cursor: str | None = None
    limit: int = Field(default=50, ge=1, le=PAGE)


class History:
    """One service's guard in one process. `writes` and `relays` are shut until it is sure, and while it is held."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, writes: Gate, relays: Gate) -> None:
        self.service, self.database, self.js = service, database, js
        self.gates = (writes, relays)
        self.held: Held | None = None
        self.epoch = 1
        self.foreign: str | None = None
        self._close(UNKNOWN)

    def _close(self, why: str) -> None:
        for gate in self.gates:
            gate.close(NAME, why)

    def problems(self) -> list[str]:
        """For readiness."""
        if self.foreign is not None:
            return [self.foreign]
        if self.held is not None:
            lost = self.held.stream_last - self.held.own_last
            return [
                f"the database was restored from a backup and lacks {lost} events; "
                f"see `slipway restore show {self.service}`"
            ]
        return [reason for reason in self.gates[0].reasons if reason == UNKNOWN]

    async def look(self, *, thoroughly: bool = True) -> None:
        """Look once and open or shut the gates."""
        try:
            self.held = await restore.look(self.database, self.js, self.service, thoroughly=thoroughly)
        except ForeignHistory as error:
            self.foreign = str(error)
            self._close(self.foreign)
            log.error("foreign_history", service=self.service, error=str(error))
            return
        self.foreign = None
        async with self.database.transaction() as conn:
            self.epoch = await restore.read_epoch(conn, self.service)
        if self.held is not None:
            self._close(restore.why(self.service))
            await restore.announce(self.js, self.service, self.epoch)
            return
        for gate in self.gates:
            gate.open(NAME)

    async def look_until_known(self) -> None:
        """At start: nothing acts before the first look has succeeded."""
        while True:
            try:
                return await self.look()
            except Exception as error:
                log.warning("history_unknown", service=self.service, error=repr(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def watch(self) -> None:
        """Look for ever; a fault leaves the gates as they are."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look(thoroughly=self.foreign is not None)
            except Exception as error:
                log.warning("history_unknown", service=self.service, error=repr(error))

    # -- what people ask ------------------------------------------------------------------------

    async def _held(self) -> Held | None:
        async with self.database.transaction() as conn:
            return await restore.held(conn, self.service)

    async def show(self, call: Call) -> Answer:
        """What the stream knows and this database does not, by entity, page by page."""
        wanted = parse(_Show, call.params)
        if isinstance(wanted, Answer):
            return wanted
        held = await self._held()
        body: dict[str, Any] = {"service": self.service, "epoch": self.epoch, "waiting": held is not None}
        if held is None:
            return Answer(body={**body, "items": [], "next_cursor": None})
        lost = (await restore.difference(self.js, self.service, held)).entities
        names = sorted(f"{entity}:{id_}" for entity, id_ in lost)
        after = [name for name in names if wanted.cursor is None or name > wanted.cursor]
        shown = after[: wanted.limit]
        body |= {
            "epoch": held.epoch,
            "detected_at": held.detected_at.isoformat(),
            "own_last": held.own_last,
            "stream_last": held.stream_last,
            "lost_events": held.stream_last - held.own_last,
            "lost_entities": len(lost),
            "open_sagas": held.open_sagas,
            "set_aside_messages": held.set_aside_messages,
            "items": [_item(lost[_pair(name)]) for name in shown],
            "next_cursor": shown[-1] if len(after) > len(shown) else None,
        }
        return Answer(body=body)

    async def accept(self, call: Call, context: MakeContext, entities: Mapping[str, Table], park: ParkAll) -> Answer:
        """A human has seen the difference: go on. The epoch in the request says which restore they mean."""
        wanted = parse(_Accept, call.params)
        if isinstance(wanted, Answer):
            return wanted
        held = await self._held()
        if held is None:
            return problem(
                409,
                "restore.not_waiting",
                f"{self.service} waits for nobody: no restore was noticed, or it was accepted before.",
                "Nothing needs to be done.",
            )
        if held.epoch != wanted.epoch:
            return invalid([{"field": "epoch", "message": f"the restore that waits is of epoch {held.epoch}"}])
        lost = await restore.difference(self.js, self.service, held)
        async with self.database.transaction() as conn:
            ctx = context(conn, call)
            said = {"actor": call.actor, "reason": wanted.reason}
            done = await restore.accept(ctx.conn, self.service, held, lost, entities, park, **said)
            await ctx.flush()
        await self.look()
        shown = {**done.__dict__, "not_found": done.not_found[:PAGE], "not_found_count": len(done.not_found)}
        return Answer(body={"service": self.service, **shown})


def _pair(name: str) -> tuple[str, str]:
    entity, _, id_ = name.partition(":")
    return entity, id_


def _item(lost: Lost) -> dict[str, Any]:
    return {**lost.__dict__, "last_time": lost.last_time.isoformat()}
