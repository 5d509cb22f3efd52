"""`slipway subscribers`: durable consumers of events for other programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from slipway.cli.instants import Since
from slipway.cli.output import Column, ago, console, exact, print_facts, print_json, state
from slipway.cli.session import (
    DEFAULT_LIMIT,
    AskedDoor,
    Json,
    Limit,
    Yes,
    confirm,
    group,
    run,
    show_list,
    show_one,
    usage_error,
)
from slipway.client import Client
from slipway.doors import Door
from slipway.private_file import check_writable, write_private
from slipway.subscriptions import Subscriber

subscribers = group("subscribers", "Programs that read events from the broker: create, list, show, rotate, delete.")
GROUPS = (subscribers,)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

COLUMNS = (
    Column[Subscriber]("NAME", lambda s: s.name),
    Column[Subscriber]("STATE", lambda s: state(s.state)),
    Column[Subscriber]("TENANT", lambda s: s.tenant),
    Column[Subscriber]("BEHIND", lambda s: s.behind, right=True),
    Column[Subscriber]("UNACKED", lambda s: s.unacknowledged, right=True, spare=True),
    Column[Subscriber]("LAST ACK", lambda s: ago(s.last_seen_at) or "never"),
    Column[Subscriber]("PROBLEM", lambda s: _problem(s)),
    Column[Subscriber]("SUBJECTS", lambda s: " ".join(s.subjects), grows=True),
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name or id.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the credentials to this file (JSON, readable by you only).")
]


def _problem(subscriber: Subscriber) -> str:
    return f"lost events before {subscriber.lost_before}" if subscriber.lost_before else ""


def seconds_of(text: str) -> int:
    """The text, such as "90s", "15m", "1h" or "2d" as seconds."""
    if not text[:-1].isdigit() or text[-1:] not in UNITS:
        usage_error(f"{text!r} is no length of time.", "Use a number and s, m, h or d, such as 1h.")
    return int(text[:-1]) * UNITS[text[-1]]


@subscribers.command("list")
def list_subscribers(
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List subscribers: how far behind each is, and when it last acknowledged an event."""
    show_list(lambda client: client.subscribers.pages(door=door, tenant=tenant), COLUMNS, as_json=as_json, limit=limit)


@subscribers.command("show")
def show(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show one subscriber."""
    show_one(lambda client: client.subscribers.get(name, door=door), _render, as_json=as_json)


def _render(subscriber: Subscriber) -> None:
    print_facts(
        (
            ("Name", subscriber.name),
            ("Id", subscriber.id),
            ("State", state(subscriber.state)),
            ("Tenant", subscriber.tenant),
            ("Subjects", " ".join(subscriber.subjects)),
            ("Behind", subscriber.behind),
            ("Unacknowledged", subscriber.unacknowledged),
            ("Given again", subscriber.redelivered),
            ("Last acknowledged", exact(subscriber.last_seen_at) or "never"),
            ("Measured", exact(subscriber.measured_at)),
            ("Problem", _problem(subscriber)),
        )
    )


@subscribers.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a-z, 0-9 and dashes; unique in its tenant.")],
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject", help="evt.<site>.<tenant>.<service>.<entity>.<event>.v<N>; * is any one, > the rest."
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose events; operators: of all when left out.")
    ] = None,
    begin: Annotated[str, typer.Option("--begin", help="now, or start: everything that is still kept.")] = "now",
    since: Since = None,
    max_ack_pending: Annotated[
        int, typer.Option("--max-ack-pending", min=1, max=5000, help="So many unacknowledged at most; 1: in order.")
    ] = 500,
    ack_wait: Annotated[str, typer.Option("--ack-wait", help="Then an unacknowledged event is given again.")] = "30s",
    out: Out = None,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Make a durable consumer of events, and credentials that can do nothing but read it.

    The password is shown this once. Lost it? slipway subscribers rotate NAME
    \b
      slipway subscribers create billing-export --subject 'evt.*.acme-research.cost.>' --out billing.json
      slipway subscribers create everything --begin start --out everything.json
    """
    _check(out)
    if begin not in ("now", "start"):
        usage_error(f"--begin {begin!r}?", "Use now or start; for an instant: --since 2026-11-30T10:00Z.")

    async def make(client: Client) -> Subscriber:
        return await client.subscribers.create(
            name,
            subjects=subject or (),
            tenant=tenant,
            begin=since or begin,
            door=door,
            max_ack_pending=max_ack_pending,
            ack_wait_seconds=seconds_of(ack_wait),
        )

    _hand_over(run(make), out, door, as_json=as_json)


@subscribers.command("rotate")
def rotate(
    name: Name,
    grace: Annotated[str, typer.Option("--grace", help="So long the old password is good, too: 1h, 2d.")] = "0s",
    out: Out = None,
    yes: Yes = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Replace a subscriber's credentials; its place in the stream stays.

    Without --grace whoever has the old ones is cut off at once.
    \b
      slipway subscribers rotate billing-export --grace 1h --out billing.json
    """
    seconds = seconds_of(grace)
    _check(out)
    if not seconds:
        confirm(f"Cut off whoever uses the credentials of {name} now?", yes=yes)

    rotated = run(lambda client: client.subscribers.rotate(name, grace_seconds=seconds, door=door))
    _hand_over(rotated, out, door, as_json=as_json)
    if seconds and not as_json:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        console(stderr=True).print(f"The old password is good until {exact(until)}.")


@subscribers.command("delete")
def delete(name: Name, yes: Yes = False, door: AskedDoor = None, as_json: Json = False) -> None:
    """Delete a subscriber and its place in the stream."""
    confirm(f"Delete {name}, and its place in the stream for good?", yes=yes)
    gone = run(lambda client: client.subscribers.delete(name, door=door))
    if as_json:
        print_json(gone.raw)
    else:
        console().print(f"{name} is deleted.")


def _written(out: Path, credentials: dict[str, str]) -> Path | None:
    """The file; None when it could not be written after all, so that the credentials are shown instead."""
    try:
        write_private(out, credentials)
    except OSError as error:
        console(stderr=True).print(f"{out} could not be written ({error.strerror or error}).")
        return None
    return out


def _check(out: Path | None) -> None:
    """Before there is a password that nobody could be shown."""
    try:
        if out is not None:
            check_writable(out)
    except OSError as error:
        usage_error(f"The credentials can't be written to {out}: {error.strerror or error}.", "Choose another file.")


def _hand_over(subscriber: Subscriber, out: Path | None, door: Door | None, *, as_json: bool) -> None:
    """The credentials, to a file or shown once, before anything else can go wrong; then wait until they work."""
    if subscriber.credentials is None:
        usage_error(
            f"The answer with the credentials of {subscriber.name} was lost on its way.",
            f"Make new ones: slipway subscribers rotate {subscriber.name}",
        )
    credentials = subscriber.credentials.model_dump()
    if out is not None:
        out = _written(out, credentials)
    if as_json:
        shown = {k: v for k, v in subscriber.raw.items() if k != "credentials"} if out else dict(subscriber.raw)
        print_json(shown)
    elif out is not None:
        console().print(f"{subscriber.name} ({subscriber.id}) has its credentials in {out}.")
    else:
        console(stderr=True).print(f"{subscriber.name} ({subscriber.id}) was made. Keep this, it is shown only now:")
        console().print(json.dumps(credentials, indent=2), soft_wrap=True)
    run(lambda client: client.subscribers.usable(subscriber.id, door=door))
