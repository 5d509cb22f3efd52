"""Every stream and durable consumer, declared in one place (deploy/nats/topology.yaml) and applied at start-up.

Services use what is here and declare nothing. Applying is idempotent; a difference between the file and the
broker is brought in line where JetStream can, and reported where it can't.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats.js.errors
import structlog
import yaml
from nats.js import JetStreamContext, api

log = structlog.get_logger("topology")
TOPOLOGY_FILE = Path(__file__).resolve().parents[2] / "deploy" / "nats" / "topology.yaml"
DUPLICATE_WINDOW_SECONDS = 120
ACK_WAIT_SECONDS = 30
EVENT_SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription")


def event_stream(service: str) -> str:
    return f"EVT_{service}"


def command_stream(service: str) -> str:
    return f"CMD_{service}"


def site_stream(site: str) -> str:
    return f"SITE_{site}"


def site_local_stream(site: str) -> str:
    return f"SAT_{site}"


def inbox_consumer(service: str) -> str:
    """The durable by which a service takes its commands, replies and observations."""
    return f"{service}_inbox"


def load_topology(path: Path = TOPOLOGY_FILE) -> dict[str, Any]:
    """The declared topology: {services: {name: {observations: [...]}}, streams: {...limits}}."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


async def apply_hub(
    js: JetStreamContext, topology: Mapping[str, Any], sites: tuple[str, ...], replicas: int = 1
) -> None:
    """Declare the hub's streams and consumers. Safe to repeat; never deletes anything."""
    limits = topology["limits"]
    for service in topology["services"]:
        if service in EVENT_SERVICES:
            await _stream(js, event_stream(service), [f"evt.*.*.{service}.>"], limits["events"], replicas)
        await _stream(js, command_stream(service), [f"cmd.{service}.>"], limits["commands"], replicas)
        await _consumer(js, command_stream(service), inbox_consumer(service), f"cmd.{service}.>")
    for site in sites:
        await _stream(js, site_stream(site), [f"site.{site}.>"], limits["site_commands"], replicas)
        await _consumer(js, site_stream(site), "satellite", f"site.{site}.>")
    await _sourced(js, "EVT", [event_stream(name) for name in EVENT_SERVICES], limits["events"], replicas)
    await _stream(js, "DLQ", ["dlq.>"], limits["dead_letters"], replicas)
    await _stream(js, "REPLAY", ["replay.>"], limits["replays"], replicas)
    await _observations(js, sites, limits["observations"], replicas)
    for service, wants in topology["services"].items():
        await _consumer(
            js, "OBS", inbox_consumer(service), [f"obs.*.reply.{service}.>", *wants.get("observations", [])]
        )


async def apply_site(js: JetStreamContext, topology: Mapping[str, Any], site: str) -> None:
    """Declare the site's own stream, in the leaf's JetStream domain."""
    await _stream(js, site_local_stream(site), [f"local.{site}.>"], topology["limits"]["site_local"], 1)


def _config(name: str, limits: Mapping[str, Any], replicas: int, **more: Any) -> api.StreamConfig:
    return api.StreamConfig(
        name=name,
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        discard=api.DiscardPolicy(limits.get("discard", "new")),
        max_bytes=limits["max_bytes"],
        max_age=limits.get("max_age_seconds", 0),
        duplicate_window=DUPLICATE_WINDOW_SECONDS,
        num_replicas=replicas,
        allow_direct=True,
        **more,
    )


async def _stream(
    js: JetStreamContext, name: str, subjects: list[str], limits: Mapping[str, Any], replicas: int
) -> None:
    await _apply(js, _config(name, limits, replicas, subjects=subjects))


async def _sourced(
    js: JetStreamContext, name: str, sources: list[str], limits: Mapping[str, Any], replicas: int
) -> None:
    limits = {**limits, "discard": "old"}
    await _apply(js, _config(name, limits, replicas, sources=[api.StreamSource(name=source) for source in sources]))


async def _observations(js: JetStreamContext, sites: tuple[str, ...], limits: Mapping[str, Any], replicas: int) -> None:
    """OBS takes each site's local stream out of the leaf's domain, `local.<site>.>` becoming `obs.<site>.>`."""
    sources = [
        api.StreamSource(
            name=site_local_stream(site),
            external=api.ExternalStream(api=f"$JS.{site}.API", deliver=None),
            subject_transforms=[api.SubjectTransform(src=f"local.{site}.>", dest=f"obs.{site}.>")],
        )
        for site in sites
    ]
    await _apply(js, _config("OBS", limits, replicas, sources=sources))


async def _apply(js: JetStreamContext, config: api.StreamConfig) -> None:
    assert config.name is not None
    try:
        await js.stream_info(config.name)
    except nats.js.errors.NotFoundError:
        await js.add_stream(config)
        log.debug("stream_added", stream=config.name)
        return
    await js.update_stream(config)


async def _consumer(js: JetStreamContext, stream: str, durable: str, subjects: str | list[str]) -> None:
    filters = [subjects] if isinstance(subjects, str) else subjects
    config = api.ConsumerConfig(
        durable_name=durable,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_SECONDS,
        max_deliver=-1,  # Attempts are counted in the inbox, where a poison message can be seen and re-driven.
        max_ack_pending=20_000,
        filter_subjects=filters,
    )
    await js.add_consumer(stream, config)
