"""Prepare the servers of docker-compose.yml: `python -m deploy.images.prepare hub|site`. Safe to repeat.

`hub` makes the database, its roles and the hub's streams; `site` the site's stream, with the satellite's own
credentials and from the site's network. A failure ends it with an exit code, and what waits for it does not start.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import nats

from deploy.images.layout import CONFIG, HUB_NATS, NATS_PORT, POSTGRES, POSTGRES_PORT
from deploy.local.layout import SITE
from deploy.local.nats_servers import secret
from deploy.local.preparation import prepare_database
from libs.bus.topology import apply_hub, apply_site, load_topology
from services.satellite.settings import SatelliteSettings


@dataclass(frozen=True)
class ContainerPostgres:
    """Where the hub's PostgreSQL is, for the preparation."""

    password: str

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self.password}@{POSTGRES}:{POSTGRES_PORT}/{database}"


async def hub() -> None:
    """Database, roles, schemas, streams and consumers."""
    await prepare_database(CONFIG, ContainerPostgres(secret(CONFIG, "postgres")))
    client = await nats.connect(
        f"nats://{HUB_NATS}:{NATS_PORT}", user="services", password=secret(CONFIG, "nats-services")
    )
    try:
        await apply_hub(client.jetstream(), load_topology(), (SITE,))
    finally:
        await client.close()


async def site() -> None:
    """The site's stream in the leaf's own domain."""
    settings = SatelliteSettings()
    password = settings.leaf_nats_password
    client = await nats.connect(
        settings.leaf_nats_url,
        user=settings.leaf_nats_user,
        password=password.get_secret_value() if password else None,
    )
    try:
        await apply_site(client.jetstream(), load_topology(), settings.site)
    finally:
        await client.close()


if __name__ == "__main__":
    parts = {"hub": hub, "site": site}
    if sys.argv[1:2] not in ([name] for name in parts):
        sys.exit("usage: python -m deploy.images.prepare hub|site")
    asyncio.run(parts[sys.argv[1]]())
