"""The connection to NATS: made once the server answers, made again for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from nats.aio.client import Client

from libs.runtime.headers import Connection
from libs.runtime.settings import ServiceSettings

RECONNECT_SECONDS = 0.5

log = structlog.get_logger("broker")


async def connect(settings: ServiceSettings, name: str) -> Client:
    """Connect to NATS and keep reconnecting for ever; wait for the first connection."""

    async def on_error(error: Exception) -> None:
        log.warning("nats_error", error=repr(error))

    options: dict[str, Any] = {"reconnect_time_wait": RECONNECT_SECONDS}
    if settings.nats_user:
        options |= {"user": settings.nats_user, "password": settings.nats_password.get_secret_value()}
    while True:
        client = Connection()
        try:
            await client.connect(
                settings.nats_url,
                name=name,
                inbox_prefix=f"_INBOX_{name}",  # Its own: who may hear its answers is a permission at the broker.
                max_reconnect_attempts=-1,
                error_cb=on_error,
                **options,
            )
            return client
        except Exception as error:
            log.warning("nats_unavailable", url=settings.nats_url, error=repr(error))
            await asyncio.sleep(RECONNECT_SECONDS * 2)
