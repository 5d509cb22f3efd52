"""`slipway runs | findings | reservations | claims`: is it fit, what is wrong, and who may have it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from slipway.cli.output import Column, ago, console, exact, print_facts, print_table, span, state
from slipway.cli.session import DEFAULT_LIMIT, AskedDoor, Json, Limit, group, show_list, show_one
from slipway.models import CheckResult, Claim, Finding, Reservation, Run

runs = group("runs", "Validation runs: is a machine fit? (operators)")
findings = group("findings", "What checks found wrong with machines. (operators)")
reservations = group("reservations", "Who may have which machines.")
GROUPS = (runs, findings, reservations)

Machine = Annotated[list[str] | None, typer.Option("--machine", "-m", help="About this machine (id).")]


def _took(run: Run) -> str:
    if run.started_at is None or run.finished_at is None:
        return ""
    return span((run.finished_at - run.started_at).total_seconds())


def _failed(run: Run) -> str:
    return ", ".join(
        f"{check.check}: {check.message or check.found}" for check in run.checks if check.verdict != "PASS"
    )


RUN_COLUMNS = (
    Column[Run]("ID", lambda r: r.id),
    Column[Run]("MACHINE", lambda r: r.machine_id, is_id=True),
    Column[Run]("SUITE", lambda r: r.suite),
    Column[Run]("VERDICT", lambda r: state(r.verdict or "RUNNING")),
    Column[Run]("TOOK", _took, right=True, spare=True),
    Column[Run]("AGE", lambda r: ago(r.started_at), right=True, spare=True),
    Column[Run]("NOT PASSED", _failed, grows=True),
)
CHECK_COLUMNS = (
    Column[CheckResult]("CHECK", lambda c: c.check),
    Column[CheckResult]("COMPONENT", lambda c: c.component),
    Column[CheckResult]("VERDICT", lambda c: state(c.verdict)),
    Column[CheckResult]("EXPECTED", lambda c: c.expected, grows=True),
    Column[CheckResult]("FOUND", lambda c: c.found, grows=True),
    Column[CheckResult]("MESSAGE", lambda c: c.message, grows=True),
)
FINDING_COLUMNS = (
    Column[Finding]("MACHINE", lambda f: f.machine_id, is_id=True),
    Column[Finding]("SEVERITY", lambda f: state(f.severity)),
    Column[Finding]("CHECK", lambda f: f.check),
    Column[Finding]("COMPONENT", lambda f: f.component),
    Column[Finding]("SEEN", lambda f: f"{f.seen_count} ×, {ago(f.last_seen_at)} ago"),
    Column[Finding]("OPEN", lambda f: "yes" if f.open else "no"),
    Column[Finding]("MESSAGE", lambda f: f.message, grows=True),
)
RESERVATION_COLUMNS = (
    Column[Reservation]("ID", lambda r: r.id),
    Column[Reservation]("TENANT", lambda r: r.tenant),
    Column[Reservation]("STATE", lambda r: state(r.state)),
    Column[Reservation]("MACHINES", lambda r: f"{r.count} × {r.profile}"),
    Column[Reservation]("EXPIRES", lambda r: ago(r.expires_at), spare=True),
    Column[Reservation]("AGE", lambda r: ago(r.created_at), right=True),
    Column[Reservation]("WHY", lambda r: r.refusal.message if r.refusal else "", grows=True),
)
CLAIM_COLUMNS = (
    Column[Claim]("MACHINE", lambda c: c.machine_name),
    Column[Claim]("STATE", lambda c: state(c.state)),
    Column[Claim]("CLAIM", lambda c: c.id, is_id=True),
    Column[Claim]("ENDED BECAUSE", lambda c: c.ended_because, grows=True),
)


@runs.command("list")
def list_runs(
    machine: Machine = None,
    suite: Annotated[list[str] | None, typer.Option("--suite", help="out_of_band, on_node, cluster.")] = None,
    verdict: Annotated[list[str] | None, typer.Option("--verdict", help="PASS, FAIL, INCONCLUSIVE.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List validation runs, newest first. Only PASS passes.

    \b
      slipway runs list --verdict FAIL --verdict INCONCLUSIVE
    """
    show_list(
        lambda client: client.runs.pages(machine_id=machine, suite=suite, verdict=verdict),
        RUN_COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@runs.command("show")
def show_run(run: Annotated[str, typer.Argument(help="Id of the run.")], as_json: Json = False) -> None:
    """Show a run: each check with what was expected and what was found."""
    show_one(lambda client: client.runs.get(run), _render_run, as_json=as_json)


def _render_run(run: Run) -> None:
    print_facts(
        [
            ("Run", run.id),
            ("Machine", run.machine_id),
            ("Suite", run.suite),
            ("Verdict", state(run.verdict or "RUNNING")),
            ("Started", exact(run.started_at)),
            ("Took", _took(run)),
            ("Why", Text(run.problem.message, "red") if run.problem else None),
        ]
    )
    console().print()
    print_table(CHECK_COLUMNS, run.checks, "No check has run yet.")


@findings.command("list")
def list_findings(
    machine: Machine = None,
    severity: Annotated[list[str] | None, typer.Option("--severity", help="May be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Cleared ones too.")] = False,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List open findings about machines.

    \b
      slipway findings list --severity critical
    """
    show_list(
        lambda client: client.findings.pages(machine_id=machine, severity=severity, open=None if everything else True),
        FINDING_COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No open findings. That says nothing about machines that were never checked.",
    )


@reservations.command("list")
def list_reservations(
    state_: Annotated[list[str] | None, typer.Option("--state", "-s", help="HELD, CLAIMED, RETURNING, ….")] = None,
    cluster: Annotated[list[str] | None, typer.Option("--cluster", help="For this cluster (id).")] = None,
    limit: Limit = 50,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List reservations, newest first.

    \b
      slipway reservations list --state HELD
    """
    show_list(
        lambda client: client.reservations.pages(door=door, state=state_, cluster_id=cluster),
        RESERVATION_COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@reservations.command("show")
def show_reservation(
    reservation: Annotated[str, typer.Argument(help="Id of the reservation.")],
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Show a reservation with its claims, one a machine."""
    show_one(lambda client: client.reservations.get(reservation, door=door), _render_reservation, as_json=as_json)


def _render_reservation(reservation: Reservation) -> None:
    print_facts(
        [
            ("Reservation", reservation.id),
            ("State", state(reservation.state)),
            ("Why", Text(reservation.refusal.message, "red") if reservation.refusal else None),
            ("Next", reservation.refusal.next_step if reservation.refusal else None),
            ("Tenant", reservation.tenant),
            ("Machines", f"{reservation.count} × {reservation.profile} at {reservation.site}"),
            ("Cluster", reservation.cluster_id),
            ("Created", exact(reservation.created_at)),
            ("Expires", exact(reservation.expires_at)),
        ]
    )
    console().print()
    print_table(CLAIM_COLUMNS, reservation.claims, "It has no claims.")
