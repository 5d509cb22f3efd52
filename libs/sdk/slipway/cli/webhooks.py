"""`slipway webhooks`: events sent to a URL."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.text import Text

from slipway.cli.exits import Exit
from slipway.cli.history import Entity, Service, Type
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
from slipway.cli.subscribers import seconds_of
from slipway.webhooks import Delivery, Webhook

webhooks = group("webhooks", "Events sent to a URL, signed: create, test, list, pause, replay, rotate, ….")
GROUPS = (webhooks,)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name or id.")]

COLUMNS = (
    Column[Webhook]("NAME", lambda w: w.name),
    Column[Webhook]("STATE", lambda w: Text("FAILING", "yellow") if _fails(w) else state(w.state)),
    Column[Webhook]("TENANT", lambda w: w.tenant, spare=True),
    Column[Webhook]("DELIVERED", lambda w: w.delivered, right=True),
    Column[Webhook]("WAITING", lambda w: w.waiting or "", right=True),
    Column[Webhook]("GIVEN UP", lambda w: w.given_up or "", right=True),
    Column[Webhook]("LAST", lambda w: ago(w.last_delivered_at), spare=True),
    Column[Webhook]("URL", lambda w: w.url, grows=True),
    Column[Webhook]("PROBLEM", lambda w: w.problem or (w.last_error if _fails(w) else ""), grows=True),
)
DELIVERY_COLUMNS = (
    Column[Delivery]("ID", lambda d: d.id, right=True),
    Column[Delivery]("STATE", lambda d: state(d.state)),
    Column[Delivery]("EVENT", lambda d: d.type.removeprefix("slipway.")),
    Column[Delivery]("ENTITY", lambda d: d.entity_id, is_id=True),
    Column[Delivery]("TRIES", lambda d: d.attempts, right=True),
    Column[Delivery]("NEXT", lambda d: ago(d.due_at) if d.state == "WAITING" else ""),
    Column[Delivery]("ANSWER", lambda d: d.error, grows=True),
)


def _fails(webhook: Webhook) -> bool:
    return webhook.state == "ACTIVE" and webhook.failures > 0


@webhooks.command("list")
def list_webhooks(
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List webhooks and what is wrong with them."""
    show_list(lambda client: client.webhooks.pages(door=door, tenant=tenant), COLUMNS, as_json=as_json, limit=limit)


@webhooks.command("show")
def show(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show one webhook."""
    show_one(lambda client: client.webhooks.get(name, door=door), _render, as_json=as_json)


def _render(webhook: Webhook) -> None:
    failing = f"{webhook.failures} in a row since {exact(webhook.failing_since)}" if webhook.failures else ""
    print_facts(
        (
            ("Name", webhook.name),
            ("Id", webhook.id),
            ("State", state(webhook.state)),
            ("Problem", webhook.problem),
            ("URL", webhook.url),
            ("Tenant", webhook.tenant),
            ("Services", " ".join(webhook.services)),
            ("Types", " ".join(webhook.types)),
            ("Entities", " ".join(webhook.entities)),
            ("Signature", webhook.signature),
            ("Delivered", webhook.delivered),
            ("Last", exact(webhook.last_delivered_at)),
            ("Waiting", webhook.waiting or ""),
            ("Given up", webhook.given_up or ""),
            ("Failures", failing),
            ("Last error", webhook.last_error),
        )
    )


@webhooks.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a-z, 0-9 and dashes; unique in its tenant.")],
    url: Annotated[str, typer.Option("--url", help="https://…, at a public address.")],
    service: Service = None,
    type_: Type = None,
    entity: Entity = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose events; operators: of all when left out.")
    ] = None,
    signature: Annotated[
        Literal["hmac", "ed25519"], typer.Option("--signature", help="A shared secret, or a public key for you.")
    ] = "hmac",
    begin: Annotated[str, typer.Option("--begin", help="now, or start: everything that is still kept.")] = "now",
    since: Since = None,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Have events sent to a URL. The key that checks their signatures is shown this once.

    \b
      slipway webhooks create billing --url https://billing.example.com/slipway --service cost
      slipway webhooks test billing
    """
    if begin not in ("now", "start"):
        usage_error(f"--begin {begin!r}?", "Use now or start; for an instant: --since 2026-11-30T10:00Z.")
    made = run(
        lambda client: client.webhooks.create(
            name,
            url,
            tenant=tenant,
            services=service or (),
            types=type_ or (),
            entities=entity or (),
            signature=signature,
            begin=since or begin,
            door=door,
        )
    )
    _hand_over(made, as_json=as_json)


def _hand_over(webhook: Webhook, *, as_json: bool) -> None:
    if webhook.signing_key is None:
        usage_error(
            f"The answer with the signing key of {webhook.name} was lost on its way.",
            f"Make a new one: slipway webhooks rotate {webhook.name}",
        )
    if as_json:
        print_json(webhook.raw)
        return
    console(stderr=True).print(f"{webhook.name} ({webhook.id}). Its signing key, shown only now:")
    console().print(webhook.signing_key, soft_wrap=True)


@webhooks.command("change")
def change(
    name: Name,
    url: Annotated[str | None, typer.Option("--url", help="Where to send.")] = None,
    service: Service = None,
    type_: Type = None,
    entity: Entity = None,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Change where a webhook sends, or what. What you leave out stays."""
    values = {"url": url, "services": service, "types": type_, "entities": entity}
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        usage_error("Nothing to change was named.", "Use --url, --service, --type or --entity.")
    _say(run(lambda client: client.webhooks.change(name, door=door, **given)), "changed", as_json)


@webhooks.command("pause")
def pause(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Send nothing until it is enabled again; nothing is lost."""
    _say(run(lambda client: client.webhooks.pause(name, door=door)), "paused", as_json)


@webhooks.command("enable")
def enable(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Go on where a paused or disabled webhook stopped."""
    _say(run(lambda client: client.webhooks.enable(name, door=door)), "enabled", as_json)


def _say(webhook: Webhook, done: str, as_json: bool) -> None:
    if as_json:
        print_json(webhook.raw)
    else:
        console().print(f"{webhook.name} is {done}.")


@webhooks.command("test")
def test(name: Name, door: AskedDoor = None, as_json: Json = False) -> None:
    """Send a ping and say what the receiver answered. Ends with 1 when it did not get through."""
    ping = run(lambda client: client.webhooks.test(name, door=door))
    if as_json:
        print_json(ping.raw)
    elif ping.state == "DELIVERED":
        console().print(f"The receiver answered {ping.status}.")
    else:
        console(stderr=True).print(f"The ping did not get through: {ping.error}", soft_wrap=True)
    if ping.state != "DELIVERED":
        raise typer.Exit(Exit.FAILED)


@webhooks.command("rotate")
def rotate(
    name: Name,
    grace: Annotated[str, typer.Option("--grace", help="So long requests carry both signatures: 1h, 2d.")] = "0s",
    yes: Yes = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Replace a webhook's signing key.

    \b
      slipway webhooks rotate billing --grace 1d
    """
    seconds = seconds_of(grace)
    if not seconds:
        confirm(f"Sign with a new key from now on? Receivers of {name} that do not have it yet will refuse.", yes=yes)
    rotated = run(lambda client: client.webhooks.rotate(name, grace_seconds=seconds, door=door))
    _hand_over(rotated, as_json=as_json)


@webhooks.command("replay")
def replay(
    name: Name,
    since: Since = None,
    begin: Annotated[str | None, typer.Option("--begin", help="start: everything that is still kept.")] = None,
    service: Annotated[str | None, typer.Option("--service", help="Of this service, behind --after.")] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, help="A tenantsequence (operators: sequence).")] = None,
    yes: Yes = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Send events again, with the ids that they had.

    \b
      slipway webhooks replay billing --since 2026-11-30T10:00Z
      slipway webhooks replay billing --service cost --after 1200
    """
    if (since is None) + (begin is None) + (service is None) != 2 or (service is None) != (after is None):
        usage_error("From where?", "Give --since, --begin start, or --service with --after.")
    confirm(f"Send the events of {name} again?", yes=yes)
    started = run(
        lambda client: client.webhooks.replay(name, begin=since or begin, service=service, after=after, door=door)
    )
    if as_json:
        print_json(started.raw)
    else:
        console().print(f"Sending again. Follow it with: slipway webhooks show {name}")


@webhooks.command("deliveries")
def deliveries(
    name: Name,
    wanted: Annotated[list[str] | None, typer.Option("--state", help="WAITING, GIVEN_UP or DELIVERED.")] = None,
    limit: Limit = 50,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List what waits, was given up, or got through after waiting. What got through at once is only counted."""
    show_list(
        lambda client: client.webhooks.deliveries(name, door=door, state=wanted),
        DELIVERY_COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@webhooks.command("retry")
def retry(
    name: Name,
    delivery: Annotated[int, typer.Argument(metavar="DELIVERY", help="Id in `slipway webhooks deliveries`.")],
    door: AskedDoor = None,
) -> None:
    """Try a delivery that was given up again."""
    run(lambda client: client.webhooks.retry(name, delivery, door=door))
    console().print(f"Delivery {delivery} is tried again.")


@webhooks.command("delete")
def delete(name: Name, yes: Yes = False, door: AskedDoor = None, as_json: Json = False) -> None:
    """Delete a webhook; what waits for it is dropped."""
    confirm(f"Delete {name} and drop what waits for it?", yes=yes)
    gone = run(lambda client: client.webhooks.delete(name, door=door))
    if as_json:
        print_json(gone.raw)
    else:
        console().print(f"{name} is deleted.")
