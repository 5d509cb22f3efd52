"""What each service's user may say on the hub's broker and hear from it: its own subjects, its own durable, no more.

The broker is what tells services apart: only inventory can publish an event of inventory, whoever wrote the code that
tries. `services` is the installation's own user (streams, recovery); no service runs under it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from libs.bus.refill import KEEPS_SITE_CONSUMERS
from libs.bus.topology import EVENT_SERVICES

USERS = (*EVENT_SERVICES, "gateway")
SPEAKS_TO_SITES = ("inventory", "provisioning", "validation")

# What every service does: events, commands, replies and the epoch (cmd), dead letters, replays; its archive.
SERVICE_PUBLISH = (
    "evt.*.*.{name}.>",
    "cmd.>",
    "dlq.{name}.>",
    "replay.*.evt.*.*.{name}.>",
    "qry.audit.archived",
    "qry.audit.archived_events",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.CONSUMER.MSG.NEXT.CMD_{name}.{name}_inbox",
    "$JS.API.CONSUMER.MSG.NEXT.OBS.{name}_inbox",
    "$JS.ACK.CMD_{name}.{name}_inbox.>",
    "$JS.ACK.OBS.{name}_inbox.>",
    # A durable that somebody deleted is made again by whom it serves.
    *(
        f"$JS.API.CONSUMER.{what}.{stream}.{{name}}_inbox"
        for what in ("INFO", "DURABLE.CREATE")
        for stream in ("CMD_{name}", "OBS")
    ),
)
KEEPS_SATELLITES = ("$JS.API.CONSUMER.INFO.*.satellite", "$JS.API.CONSUMER.DURABLE.CREATE.*.satellite")
# A projection reads others' events, and a replay its own, by ephemeral consumers. A wildcard stands for a whole token.
READS_STREAMS = tuple(
    f"$JS.API.CONSUMER.{what}"
    for service in EVENT_SERVICES
    for what in (f"CREATE.EVT_{service}", f"MSG.NEXT.EVT_{service}.*")
)
SERVICE_SUBSCRIBE = ("_INBOX_{name}.>", "qry.{name}.*", "call.{name}.*")
# Whoever follows all events live, for people or subscribers, reads EVT by consumers of its own.
READS_EVT = (
    "$JS.API.STREAM.INFO.EVT",
    "$JS.API.STREAM.MSG.GET.EVT",
    "$JS.API.DIRECT.GET.EVT.>",
    "$JS.API.CONSUMER.CREATE.EVT",
    "$JS.API.CONSUMER.CREATE.EVT.>",
    "$JS.API.CONSUMER.MSG.NEXT.EVT.*",
)
# The subscription service makes subscribers' durables, and says to the broker who signs in.
KEEPS_SUBSCRIBERS = (
    "$JS.API.CONSUMER.DURABLE.CREATE.EVT.>",
    "$JS.API.CONSUMER.INFO.EVT.*",
    "$JS.API.CONSUMER.DELETE.EVT.*",
    "$JS.API.CONSUMER.LIST.EVT",
    "$JS.API.CONSUMER.NAMES.EVT",
)


def publishes(name: str) -> list[str]:
    """The subjects that the user may publish on."""
    if name == "gateway":
        return ["qry.>", "call.>", *READS_EVT]
    found = [*(subject.format(name=name) for subject in SERVICE_PUBLISH), *READS_STREAMS]
    if name in SPEAKS_TO_SITES:
        found.append("site.>")
    if name == KEEPS_SITE_CONSUMERS:
        found += KEEPS_SATELLITES
    if name == "subscription":
        found += [*READS_EVT, *KEEPS_SUBSCRIBERS]
    return found


def hears(name: str) -> list[str]:
    """The subjects that the user may subscribe to."""
    if name == "gateway":
        return ["_INBOX_gateway.>", "evt.*.*.identity.>"]
    more = ["$SYS.REQ.USER.AUTH"] if name == "subscription" else []
    return [*(subject.format(name=name) for subject in SERVICE_SUBSCRIBE), *more]


def secret_name(user: str) -> str:
    """The name of the user's password among the deployment's secrets."""
    return f"nats-{user}"


def user_entries(password: Callable[[str], str]) -> str:
    """The users of the hub's configuration, one a line. `password` finds a secret by its name."""
    return "\n      ".join(_entry(name, password(secret_name(name))) for name in USERS)


def _entry(name: str, password: str) -> str:
    publish, subscribe = json.dumps(publishes(name)), json.dumps(hears(name))
    # Answers to what others ask go to their inboxes, which nobody may publish to otherwise.
    answers = "" if name == "gateway" else ', allow_responses: { max: 1, expires: "5m" }'
    return (
        f'{{ user: {name}, password: "{password}", permissions: {{ '
        f"publish: {{ allow: {publish} }}, subscribe: {{ allow: {subscribe} }}{answers} }} }}"
    )
