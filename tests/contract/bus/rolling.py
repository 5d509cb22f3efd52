"""The toy in two releases, each a process of its own: python -m tests.contract.bus.rolling RELEASE NATS DATABASE

"old" is the toy as it is. "new" knows version 2 of a command, of an event, and one more process; it tells each fact in
version 2 and, for whoever still reads that, in version 1. Never imported by tests: declaring a version is for good.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.contracts.envelope import Envelope
from libs.contracts.inventory import EnrolMachine, RackFacts, RackUpdated
from libs.contracts.message import Message, command, event
from libs.contracts.replies import Reply, ok
from libs.contracts.upcasters import UPCASTERS, upcaster
from libs.projection import Projection, upsert_newer
from libs.runtime.database import Database
from libs.runtime.service import App, Service
from libs.saga import saga, step
from tests.contract.bus import toy


def new_release(old: Service) -> Service:
    """The toy's next release."""

    @command("inventory", "enrol_machine", version=2)
    class EnrolMachine2(Message):
        id: str

        def key(self) -> str:
            return self.id

    @event("inventory", "rack", "updated", version=2)
    class RackUpdated2(Message):
        rack_id: str
        count: int

        def key(self) -> str:
            return self.rack_id

    @upcaster(EnrolMachine.message_type.type, 1)
    def _enrol(data: dict[str, Any]) -> dict[str, Any]:
        return {"id": data["machine_id"]}

    @upcaster(RackUpdated.message_type.type, 1)
    def _rack(data: dict[str, Any]) -> dict[str, Any]:
        return {"rack_id": data["rack"]["id"], "count": int(data["rack"]["name"])}

    async def count(ctx: Context, wanted: EnrolMachine2) -> Reply:
        if wanted.id.startswith("process-"):
            await ctx.start_saga("newer", {"id": wanted.id[8:]}, target_kind="toy", target_id=wanted.id)
            return ok()
        n, version = await toy.count_up(ctx, wanted.id)
        fact = RackUpdated2(rack_id=wanted.id, count=n)
        same = RackUpdated(rack=RackFacts(id=wanted.id, name=str(n), site="fra1", version=version))
        # What "modern-…" counts nobody reads in version 1 any more.
        older = None if wanted.id.startswith("modern-") else same
        ctx.emit(fact, entity_id=wanted.id, entity_version=version, site="fra1", older=older)
        return ok(n=n)

    async def apply(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        facts = [
            (RackUpdated2.model_validate(e.data), e.entityversion)
            for e in events
            if e.type == RackUpdated2.message_type.type
        ]
        rows = [{"id": fact.rack_id, "n": fact.count, "version": version, "seen": 1} for fact, version in facts]
        await upsert_newer(conn, toy.mirror, rows, key=("id",), version="version")

    def count_later(data: dict[str, Any]) -> EnrolMachine2:
        return EnrolMachine2(id=data["id"])

    steps = [step(count_later, name=f"count {n}", within=timedelta(minutes=2), retries=5) for n in range(3)]
    return dataclasses.replace(
        old,
        commands={EnrolMachine2: count},
        sagas=(*old.sagas, saga("newer", *steps)),
        projections=(Projection("mirror", ("inventory",), (toy.mirror,), apply),),
    )


async def main(release: str, nats_url: str, database_url: str) -> None:
    service = toy.toy_service(nats_url, database_url)
    if release == "new":
        service = new_release(service)
    UPCASTERS.check()
    app = App(service, Database(database_url, application_name=release))
    app.holder = release
    await app.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
