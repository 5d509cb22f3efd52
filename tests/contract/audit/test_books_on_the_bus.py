"""Identity, cost and audit on a real broker, each with its own database role: nothing billed or kept is lost."""

from __future__ import annotations

import asyncio
import contextlib
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest

from libs.bus.topology import apply_hub, load_topology
from libs.contracts.envelope import Envelope
from libs.contracts.provisioning import ClusterFacts, ClusterState, NodeStarted, NodeStopped
from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.kit import make_event
from libs.testing.servers import nats_hub
from services.audit.app import service as audit
from services.cost.app import service as cost
from services.identity.app import service as identity
from tests.conftest import eventually
from tests.contract.audit.parts import asked, database_of, running
from tools import recompute_cost

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def node_event(cls: type[NodeStarted] | type[NodeStopped], machine: str, hours: int, number: int) -> Envelope:
    facts = ClusterFacts(
        id="clu-1",
        name="train",
        tenant="acme-research",
        site="fra1",
        profile="h100",
        node_count=1,
        image="golden",
        template="plain",
        state=ClusterState.READY,
        reservation_id="res-1",
        created_at=T0,
        version=number,
    )
    more: dict[str, Any] = {"reason": "deleted"} if cls is NodeStopped else {}
    at = T0 + timedelta(hours=hours)
    message = cls(cluster=facts, machine_id=machine, profile="h100", gpu_count=8, at=at, **more)
    made = make_event(message, entity_id="clu-1", entity_version=number, tenant="acme-research", sequence=number)
    # Published when it happened: what is learnt months later would be booked as corrections.
    return made.model_copy(update={"time": at})


async def publish(js: Any, events: list[Envelope]) -> None:
    for event in events:
        name = event.type.rpartition(".")[2]
        await js.publish(f"evt.-.acme-research.provisioning.cluster.{name}.v1", event.encode())


@pytest.mark.slow
async def test_what_is_metered_is_remembered_rebuilt_and_recomputed_to_the_last_digit(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    urls = {name: await database_of(postgres, name) for name in ("identity", "cost", "audit")}
    with nats_hub(tmp_path) as server:
        url = f"nats://127.0.0.1:{server.port}"
        client = await nats.connect(url)
        js = client.jetstream()
        await apply_hub(js, load_topology(), ("fra1",))
        async with contextlib.AsyncExitStack() as stack:
            apps = {
                service.name: await stack.enter_async_context(running(service, urls[service.name], url))
                for service in (identity, cost, audit)
            }
            price = {
                "profile": "h100",
                "price_per_machine_hour": "31.27",
                "currency": "EUR",
                "valid_from": T0.isoformat(),
            }
            assert (await apps["cost"].run_call(asked("set_price", price))).status == 201
            created = await apps["identity"].run_call(asked("create_organization", {"id": "acme", "name": "Acme"}))
            assert created.status == 201
            log = [node_event(NodeStarted, f"m{n}", 0, n) for n in (1, 2, 3)]
            log += [node_event(NodeStopped, f"m{n}", n, n + 3) for n in (1, 2, 3)]
            await publish(js, log)

            async def all_kept() -> bool:
                gaps = (await apps["audit"].run_query(asked("list_gaps"))).body
                await asyncio.sleep(0.2)
                # Six node events, a price, three metered lines, an organization.
                return bool(gaps["events"] == 11)

            await eventually(all_kept, within_seconds=60, what="every event is kept")
            gaps = (await apps["audit"].run_query(asked("list_gaps"))).body
            assert (gaps["items"], gaps["entities"]) == ([], [])
            exported = (await apps["audit"].run_query(asked("export_events"))).body["items"]
            lines = io.StringIO("".join(Envelope.model_validate(item).encode().decode() + "\n" for item in exported))
            recomputed = recompute_cost.recompute(recompute_cost.read_events([lines]))
            metered = (await apps["cost"].run_query(asked("get_costs"))).body["totals"][0]
            assert metered["amount"] == "187.62" == str(Decimal("31.27") * 6)
            assert recomputed["total"]["amounts"] == {"EUR": metered["amount"]}
            assert recomputed["total"]["price_seconds"] == {"EUR": metered["price_seconds"]}
            assert recomputed["total"]["seconds"] == metered["seconds"]
            for name, projection in (("cost", "metering"), ("audit", "events")):
                rebuilt = (await apps[name].run_call(asked("rebuild_projection", {"name": projection}))).body
                assert rebuilt["equal"] is True, rebuilt
        await client.close()
    conn = await asyncpg.connect(urls["audit"])
    for statement in ("UPDATE audit.event SET envelope = ''", "DELETE FROM audit.event", "TRUNCATE audit.event"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement)
    await conn.close()
