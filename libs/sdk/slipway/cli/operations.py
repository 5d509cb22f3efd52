"""`slipway operations`: long-running work, step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from slipway.cli import progress
from slipway.cli.output import Column, ago, console, print_json, state
from slipway.cli.session import AskedDoor, Json, Limit, Sort, group, run, show_list, show_one
from slipway.models import Operation

operations = group("operations", "Long-running work: list, show, watch, cancel, resume.")
GROUPS = (operations,)
Id = Annotated[str, typer.Argument(metavar="OPERATION", help="Id of the operation (op-…).")]


def _doing(operation: Operation) -> str:
    if operation.waiting_for:
        return f"waiting for {operation.waiting_for}"
    if operation.problem:
        return operation.problem.message
    running = [step.name.replace("_", " ") for step in operation.steps if step.status in ("RUNNING", "UNDOING")]
    return ", ".join(running)


COLUMNS = (
    Column[Operation]("ID", lambda o: o.id),
    Column[Operation]("KIND", lambda o: o.kind),
    Column[Operation]("STATUS", lambda o: state(o.status)),
    Column[Operation]("DONE", lambda o: f"{o.progress:.0%}" if not o.final else "", right=True),
    Column[Operation]("AGE", lambda o: ago(o.created_at), right=True),
    Column[Operation]("BY", lambda o: o.actor, spare=True),
    Column[Operation]("NOW", _doing, grows=True),
)


@operations.command("list")
def list_operations(
    kind: Annotated[list[str] | None, typer.Option("--kind", help="Such as create_cluster; may be repeated.")] = None,
    status: Annotated[list[str] | None, typer.Option("--status", "-s", help="RUNNING, SUCCEEDED, FAILED, ….")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="About this cluster or machine (id).")] = None,
    service: Annotated[list[str] | None, typer.Option("--service", help="Run by this service.")] = None,
    sort: Sort = "-created_at",
    limit: Limit = 50,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List operations, newest first.

    \b
      slipway operations list --status RUNNING
      slipway operations list --kind create_cluster --status FAILED
    """
    show_list(
        lambda client: client.operations.pages(
            door=door, kind=kind, status=status, target_id=target, service=service, sort=sort
        ),
        COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@operations.command("show")
def show(operation: Id, door: AskedDoor = None, as_json: Json = False) -> None:
    """Show an operation: its steps, times, and why it failed if it did.

    \b
      slipway operations show op-prv-0190…
    """
    show_one(lambda client: client.operations.get(operation, door=door), _render, as_json=as_json)


def _render(operation: Operation) -> None:
    out = console()
    out.print(progress.render(operation, datetime.now(UTC)))
    if operation.problem:
        progress.show_problem(operation.problem, out)
    out.print(f"Correlation id: {operation.correlation_id}", style="dim")


@operations.command("watch")
def watch(operation: Id, door: AskedDoor = None, as_json: Json = False) -> None:
    """Follow an operation until it has ended, each step with its time. Ends with 1 when the operation failed.

    \b
      slipway operations watch op-prv-0190…
    """
    ended = run(lambda client: progress.watch(client, operation, door=door, quiet=as_json))
    if as_json:
        print_json(ended.raw)
    raise typer.Exit(progress.exit_code(ended))


@operations.command("cancel")
def cancel(
    operation: Id,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why; kept in its history.")] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Stay until everything is given back.")] = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Cancel an operation at any step; what it took is given back.

    \b
      slipway operations cancel op-prv-0190… --reason "wrong profile" --wait
    """
    document = run(lambda client: client.operations.cancel(operation, reason, door=door))
    if wait:
        ended = run(lambda client: progress.watch(client, operation, door=door, quiet=as_json))
        if as_json:
            print_json(ended.raw)
        return
    if as_json:
        print_json(document.raw)
    else:
        console().print(f"Cancelling. Follow it with: slipway operations watch {operation}")


@operations.command("resume")
def resume(operation: Id, as_json: Json = False) -> None:
    """Go on with an operation that waits for a human. (operators)

    \b
      slipway operations resume op-inv-0190…
    """
    document = run(lambda client: client.operations.resume(operation))
    if as_json:
        print_json(document.raw)
    else:
        console().print(f"Going on. Follow it with: slipway operations watch {operation}")
