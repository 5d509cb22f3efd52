"""Prepare the hub's database and broker: roles, schemas, streams, consumers. Safe to repeat at every start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import asyncpg
import nats

from deploy.local.layout import SERVICES, SITE, Ports
from deploy.local.nats_servers import secret
from libs.bus.topology import apply_hub, apply_site, load_topology
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import owner_role, role_statements, running_role

DATABASE = "slipway"


class Reachable(Protocol):
    """A PostgreSQL server: the superuser's URL of one of its databases."""

    def url(self, database: str = "postgres") -> str: ...


def database_url(var: Path, ports: Ports, role: str) -> str:
    """How `role` reaches the hub's database."""
    return f"postgresql://{role}:{secret(var, role)}@127.0.0.1:{ports.postgres}/{DATABASE}"


async def prepare_database(var: Path, postgres: Reachable) -> None:
    """The database, and two roles and two schemas a service."""
    admin = await asyncpg.connect(postgres.url())
    try:
        if not await admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await admin.execute(f"CREATE DATABASE {DATABASE}")
            await admin.execute(f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC")
    finally:
        await admin.close()
    inside = await asyncpg.connect(postgres.url(DATABASE))
    try:
        await inside.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for service in SERVICES:
            owner, running = secret(var, owner_role(service)), secret(var, running_role(service))
            for statement in role_statements(service, owner, running, DATABASE):
                await inside.execute(statement)
    finally:
        await inside.close()


async def prepare_broker(var: Path, ports: Ports, replicas: int = 1) -> None:
    """Streams and consumers of the hub, each stream on `replicas` of its servers, and of the site."""
    topology = load_topology()
    site_client = await nats.connect(
        f"nats://127.0.0.1:{ports.leaf}", user="satellite", password=secret(var, f"nats-satellite-{SITE}")
    )
    hub_client = await nats.connect(
        f"nats://127.0.0.1:{ports.hub}", user="services", password=secret(var, "nats-services")
    )
    try:
        await apply_site(site_client.jetstream(), topology, SITE)
        await apply_hub(hub_client.jetstream(), topology, (SITE,), replicas)
    finally:
        await hub_client.close()
        await site_client.close()


def prepare(var: Path, ports: Ports, postgres: EmbeddedPostgres) -> None:
    """Both."""
    asyncio.run(prepare_database(var, postgres))
    asyncio.run(prepare_broker(var, ports))
