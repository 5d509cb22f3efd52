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
# Landing a message and acknowledging it takes milliseconds; what a killed process held is given to another one after
# this. A slower landing is delivered again, and known by its id.
ACK_WAIT_SECONDS = 5
# The durable of a site's stream by which the hub's OBS takes what the site says. Unlike the consumers that JetStream
# makes for sources by itself it shows the hub when the site can be reached again (decision 0018).
SOURCING_CONSUMER = "hub"
SOURCING_HEARTBEAT_SECONDS = 1
OBSERVATIONS = "OBS"
SATELLITE_CONSUMER = "satellite"
EVENT_SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription")


def event_stream(service: str) -> str:
    return f"EVT_{service}"


def command_stream(service: str) -> str:
    return f"CMD_{service}"


def site_stream(site: str) -> str:
    return f"SITE_{site}"


def site_local_stream(site: str) -> str:
    return f"SAT_{site}"


def sourcing_subject(site: str) -> str:
    """Where a site's server hands over to the hub's what the site says."""
    return f"sourced.{site}"


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
        await _consumer(js, site_stream(site), SATELLITE_CONSUMER, f"site.{site}.>")
    await _sourced(js, "EVT", [event_stream(name) for name in EVENT_SERVICES], limits["events"], replicas)
    await _stream(js, "DLQ", ["dlq.>"], limits["dead_letters"], replicas)
    await _stream(js, "REPLAY", ["replay.>"], limits["replays"], replicas)
    await _observations(js, sites, limits["observations"], replicas)
    for service in topology["services"]:
        await _consumer(js, OBSERVATIONS, inbox_consumer(service), _observed_by(topology, service))


def _observed_by(topology: Mapping[str, Any], service: str) -> list[str]:
    return [f"obs.*.reply.{service}.>", *topology["services"][service].get("observations", [])]


async def restore_inbox_consumer(js: JetStreamContext, service: str, stream: str) -> bool:
    """Make the service's durable on `stream` again when somebody deleted it. Returns whether it was missing.

    It begins at the stream's first message, as it did when it was first declared: what the inbox had is known there
    by its id, and no position of ours could tell what another replica had taken and not yet acknowledged. Only what
    is missing is made: an older replica must not put its own settings over a newer release's.
    """
    subjects = _observed_by(load_topology(), service) if stream == OBSERVATIONS else f"cmd.{service}.>"
    return await _restore_consumer(js, stream, inbox_consumer(service), subjects)


async def restore_satellite_consumer(js: JetStreamContext, stream: str) -> bool:
    """The same for the durable of a site's commands; its satellite's journal knows the commands that it had."""
    site = stream.removeprefix(site_stream(""))
    return await _restore_consumer(js, stream, SATELLITE_CONSUMER, f"site.{site}.>")


async def restore_sourcing_consumer(js: JetStreamContext, site: str) -> bool:
    """The same for the durable by which the hub takes what the site says, in the leaf's JetStream domain; the hub asks
    it to begin after the last message that it has."""
    stream = site_local_stream(site)
    if not await _is_missing(js, stream, SOURCING_CONSUMER):
        return False
    await js.add_consumer(stream, _sourcing(site))
    return True


async def _restore_consumer(js: JetStreamContext, stream: str, durable: str, subjects: str | list[str]) -> bool:
    if not await _is_missing(js, stream, durable):
        return False
    await _consumer(js, stream, durable, subjects)
    return True


async def _is_missing(js: JetStreamContext, stream: str, durable: str) -> bool:
    await js.stream_info(stream)  # A stream that is gone is for the deployment to declare: it says so by raising.
    try:
        await js.consumer_info(stream, durable)
    except nats.js.errors.NotFoundError:
        log.warning("consumer_missing", stream=stream, consumer=durable)
        return True
    return False


async def apply_site(js: JetStreamContext, topology: Mapping[str, Any], site: str) -> None:
    """Declare the site's own stream, in the leaf's JetStream domain, and the durable that hands it to the hub."""
    await _stream(js, site_local_stream(site), [f"local.{site}.>"], topology["limits"]["site_local"], 1)
    await js.add_consumer(site_local_stream(site), _sourcing(site))


def _sourcing(site: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        durable_name=SOURCING_CONSUMER,
        deliver_subject=sourcing_subject(site),
        ack_policy=api.AckPolicy.FLOW_CONTROL,
        idle_heartbeat=SOURCING_HEARTBEAT_SECONDS,
    )


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
            consumer=api.StreamConsumerSource(name=SOURCING_CONSUMER, deliver_subject=sourcing_subject(site)),
            external=api.ExternalStream(api=f"$JS.{site}.API", deliver=None),
            subject_transforms=[api.SubjectTransform(src=f"local.{site}.>", dest=f"obs.{site}.>")],
        )
        for site in sites
    ]
    await _apply(js, _config(OBSERVATIONS, limits, replicas, sources=sources))


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
