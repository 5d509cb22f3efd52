"""`slipway machines import | scan | discovered | approve | ignore` and `slipway dhcp`: how machines become known."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from slipway.cli import progress
from slipway.cli.exits import Exit
from slipway.cli.machines import machines
from slipway.cli.output import Column, ago, console, print_json, print_table, state
from slipway.cli.session import DEFAULT_LIMIT, Json, Limit, Wait, group, run, show_list, usage_error
from slipway.client import Client
from slipway.doors import Door
from slipway.models import Candidate, DhcpServer, Document, Operation, Started

dhcp = group("dhcp", "The sites' DHCP servers: what is wrong there, who has which address. (operators)")
GROUPS = (dhcp,)

FORMS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".yaml": "yaml", ".yml": "yaml"}
# One request carries 256 KiB; a row is some 150 bytes, and the body around it is JSON.
ROWS_AT_ONCE = 500
MOST_CHARACTERS = 180_000
OUTCOMES = ("new", "changed", "unchanged", "known", "bad")

CandidateId = Annotated[str, typer.Argument(metavar="CANDIDATE", help="Its id, see 'machines discovered'.")]
SiteName = Annotated[str, typer.Option("--site", help="At this site.")]
Sites = Annotated[list[str] | None, typer.Option("--site", help="At this site; may be repeated.")]


# -- a manifest -------------------------------------------------------------------------------------


@machines.command("import")
def import_machines(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A manifest, .csv or .yaml.", exists=True, dir_okay=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Tell of expected machines by a manifest. Every row that is right is taken in, every other one is reported.

    Columns: name, site, rack, position, device_type, role, serial, asset_tag, bmc_mac, bmc_address, nic_macs. The same
    file again changes nothing. Ends with exit code 1 when a row is bad.
    \b
      slipway machines import rack-r12.csv --dry-run
      slipway machines import rack-r12.csv && slipway machines enrol --rack r12 --wait
    """
    form = FORMS.get(file.suffix.lower())
    if form is None:
        usage_error(f"{file.name}: is it CSV or YAML?", "Name it .csv or .yaml.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        usage_error(f"{file} can't be read: {error}", "Save it as UTF-8 text.")
    report = run(lambda client: _send(client, text, form, dry_run, quiet=as_json))
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["bad"]:
        raise typer.Exit(Exit.FAILED)


async def _send(client: Client, text: str, form: str, dry_run: bool, *, quiet: bool) -> dict[str, Any]:
    """One report of all parts. A part that was taken in stays so when a later one can't be sent: send it again."""
    parts = list(_parts(text) if form == "csv" else [(1, text)])
    total: Counter[str] = Counter()
    problems: list[Any] = []
    with Progress(console=console(stderr=True), disable=quiet or len(parts) < 2, transient=True) as bar:
        task = bar.add_task("rows", total=len(parts))
        for first_row, part in parts:
            answer = (await client.machines.import_(part, form, dry_run=dry_run, first_row=first_row)).raw
            total.update({name: int(answer.get(name, 0)) for name in ("rows", "problems_left_out", *OUTCOMES)})
            problems += answer.get("problems", [])
            bar.advance(task)
    counts = {name: total[name] for name in ("rows", *OUTCOMES, "problems_left_out")}
    return {"dry_run": dry_run, **counts, "problems": problems}


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first row, CSV text with the heading) in pieces that a request can carry."""
    if len(text) <= MOST_CHARACTERS:
        yield 1, text
        return
    heading = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=heading.count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    for first in range(1, len(rows), ROWS_AT_ONCE):
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=delimiter).writerows([rows[0], *rows[first : first + ROWS_AT_ONCE]])
        yield first, out.getvalue()


def _show(report: dict[str, Any]) -> None:
    columns = (
        Column[dict[str, Any]]("ROW", lambda p: str(p.get("row", "")), right=True),
        Column[dict[str, Any]]("COLUMN", lambda p: str(p.get("column", ""))),
        Column[dict[str, Any]]("VALUE", lambda p: str(p.get("value", "")), spare=True),
        Column[dict[str, Any]]("WHY", lambda p: str(p.get("why", "")), grows=True),
        Column[dict[str, Any]]("REMEDY", lambda p: str(p.get("remedy", "")), grows=True),
    )
    if report["problems"]:
        print_table(columns, report["problems"])
    words = ", ".join(f"{report[name]} {name}" for name in OUTCOMES if report[name] or name in ("new", "bad"))
    tense = "would be taken in; nothing was changed" if report["dry_run"] else "done"
    console().print(f"{report['rows']} rows: {words} ({tense}).")
    if report["problems_left_out"]:
        console().print(f"{report['problems_left_out']} more problems are not shown; correct these and try again.")


# -- what was seen on the wire ----------------------------------------------------------------------

COLUMNS = (
    Column[Candidate]("CANDIDATE", lambda c: c.id, is_id=True),
    Column[Candidate]("SITE", lambda c: c.site),
    Column[Candidate]("ADDRESS", lambda c: c.address),
    Column[Candidate]("MAC", lambda c: c.bmc_mac),
    Column[Candidate](
        "BMC", lambda c: " ".join(filter(None, (c.vendor, c.product))) or ("yes" if c.redfish else "silent")
    ),
    Column[Candidate]("BY", lambda c: "+".join(c.via), spare=True),
    Column[Candidate]("STATE", lambda c: state(c.state)),
    Column[Candidate]("SEEN", lambda c: ago(c.last_seen_at), right=True),
    Column[Candidate]("NOTE", lambda c: c.reason or c.note, grows=True),
)


@machines.command("discovered")
def discovered(
    state_: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="NEW, IGNORED, APPROVED, KNOWN; may be repeated.")
    ] = None,
    site: Sites = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in address, MAC, id.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List BMCs that nobody expected: seen in DHCP leases or by a scan. New ones only, unless --state says otherwise.

    \b
      slipway machines discovered
      slipway machines discovered --state IGNORED --json
    """
    show_list(
        lambda client: client.candidates.pages(state=state_ or ["NEW"], site=site, q=search),
        COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No unknown BMC. Look for some: slipway machines scan --site SITE",
    )


@machines.command("scan")
def scan(
    site: SiteName,
    network: Annotated[list[str] | None, typer.Option("--network", "-n", help="Only this network, in CIDR.")] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Let a site ask the addresses of its BMC ranges who is there, without signing in to anybody.

    \b
      slipway machines scan --site fra1 --wait
      slipway machines scan --site fra1 --network 10.20.1.0/24
    """

    async def start(client: Client) -> tuple[Started, Operation | None]:
        started = await client.machines.scan(site, network or ())
        if not wait:
            return started, None
        return started, await progress.watch(client, started.operation_id, door=Door.OPERATOR, quiet=as_json)

    progress.end(*run(start), as_json=as_json)


@machines.command("approve")
def approve(
    candidate: CandidateId,
    name: Annotated[str, typer.Option("--name", help="The machine's name, a host name.")],
    rack: Annotated[str, typer.Option("--rack", help="Where it is.")],
    device_type: Annotated[str, typer.Option("--device-type", "-t", help="What it is, see 'profiles list'.")],
    serial: Annotated[str, typer.Option("--serial", help="Serial number, from its label.")],
    position: Annotated[float | None, typer.Option("--position", help="Lowest rack unit it fills.")] = None,
    nic: Annotated[list[str] | None, typer.Option("--nic", help="MAC of a network port; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Make the machine that a candidate is. It is EXPECTED then; enrolment looks inside.

    \b
      slipway machines approve cnd-0190… --name fra1-r1-gpu-07 --rack r1 -t nvidia-dgx-h100 --serial 1660223969975
    """
    fields = {"name": name, "rack": rack, "device_type": device_type, "serial": serial, "position": position}
    document = run(lambda client: client.candidates.approve(candidate, **fields, nic_macs=nic))
    _said(document, f"{name} is EXPECTED; enrol it: slipway machines enrol --machine {name}", as_json)


@machines.command("ignore")
def ignore(
    candidate: CandidateId,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; kept with it.")],
    as_json: Json = False,
) -> None:
    """Keep a candidate out of the list, also when it is seen again.

    \b
      slipway machines ignore cnd-0190… --reason "the building's UPS"
    """
    _said(run(lambda client: client.candidates.ignore(candidate, reason)), f"{candidate} is ignored.", as_json)


def _said(document: Document, words: str, as_json: bool) -> None:
    if as_json:
        print_json(document.raw)
    else:
        console().print(words)


# -- DHCP -------------------------------------------------------------------------------------------


@dhcp.command("problems")
def dhcp_problems(site: Sites = None, as_json: Json = False) -> None:
    """Show what is wrong at the sites' DHCP servers: declined, taken and doubly given addresses, and what to do.

    \b
      slipway dhcp problems --site fra1
    """

    async def collect(client: Client) -> list[DhcpServer]:
        return [server async for server in client.dhcp.list(site=site)]

    servers = run(collect)
    if as_json:
        print_json({"items": [server.raw for server in servers]})
        return
    if not servers:
        console().print("No site has told of a DHCP server.")
    for server in servers:
        seen = f"{server.reservations} reservations, {server.leases} leases, seen {ago(server.observed_at)} ago"
        console().print(f"{server.site}: {server.error or seen}")
        for problem in server.problems or ():
            console().print(f"  {problem.get('message', '')}\n    {problem.get('next_step', '')}")


LEASE_COLUMNS = (
    Column[Document]("SITE", lambda one: one.raw.get("site")),
    Column[Document]("ADDRESS", lambda one: one.raw.get("ip_address")),
    Column[Document]("PORT", lambda one: one.raw.get("hw_address")),
    Column[Document]("STATE", lambda one: one.raw.get("state")),
    Column[Document]("NAME", lambda one: one.raw.get("hostname"), spare=True),
    Column[Document]("MACHINE", lambda one: one.raw.get("machine_id"), is_id=True),
    Column[Document]("UNTIL", lambda one: one.raw.get("expires_at"), spare=True),
)


@dhcp.command("leases")
def dhcp_leases(
    site: Sites = None,
    state_: Annotated[list[str] | None, typer.Option("--state", help="active, declined, expired.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in address or MAC.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List leases as the sites saw them. A lease says that somebody was given an address, not that a machine is up.

    \b
      slipway dhcp leases --state declined
    """
    show_list(
        lambda client: client.leases.pages(site=site, state=state_, q=search),
        LEASE_COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No lease is known.",
    )


RESERVATION_COLUMNS = (
    Column[Document]("MACHINE", lambda one: one.raw.get("name")),
    Column[Document]("SITE", lambda one: one.raw.get("site")),
    Column[Document]("STATE", lambda one: state(str(one.raw.get("state") or ""))),
    Column[Document]("ADDRESSES", lambda one: " ".join(_addresses(one.raw))),
    Column[Document]("WHY", lambda one: _why_not(one.raw), grows=True),
)


def _addresses(row: Mapping[str, Any]) -> list[str]:
    found = [entry.get("ip_address") for entry in row.get("reservations") or [] if isinstance(entry, dict)]
    return [str(address) for address in found if address]


def _why_not(row: Mapping[str, Any]) -> str:
    refused = [entry for entry in row.get("refused") or [] if isinstance(entry, dict)]
    words = [f"{entry.get('ip_address') or entry.get('hw_address')}: {entry.get('problem')}" for entry in refused]
    return "; ".join([*words, *filter(None, [str(row.get("error") or "")])])


@dhcp.command("reservations")
def dhcp_reservations(
    site: Sites = None,
    state_: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="PENDING, DONE, REFUSED, FAILED, UNMANAGED.")
    ] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in the machine's name.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List machines' DHCP reservations, and why some can't be made.

    \b
      slipway dhcp reservations --state REFUSED
    """
    show_list(
        lambda client: client.dhcp_reservations.pages(site=site, state=state_, q=search),
        RESERVATION_COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No reservation. Has a site told of its DHCP server? See: slipway dhcp problems",
    )


# -- what is not as promised ------------------------------------------------------------------------

MISMATCH_COLUMNS = (
    Column[dict[str, Any]]("WHERE", lambda one: str(one.get("where", ""))),
    Column[dict[str, Any]]("EXPECTED", lambda one: str(one.get("expected", ""))),
    Column[dict[str, Any]]("FOUND", lambda one: str(one.get("found", "")), grows=True),
)


@machines.command("mismatches")
def mismatches(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Name or id of the machine.")], as_json: Json = False
) -> None:
    """Show what of a machine is not as promised: slot, expected, found. For whoever goes there with a screwdriver.

    \b
      slipway machines mismatches fra1-r1-gpu-04
    """
    found = run(lambda client: client.machines.get(machine))
    details = (found.raw.get("reason") or {}).get("details") or {}
    listed = details.get("mismatches") or []
    if as_json:
        print_json({"machine": found.name, "state": found.state, "rack": found.rack, "mismatches": listed})
        return
    position = found.raw.get("position")
    unit = f", unit {position:g}" if isinstance(position, int | float) else ""
    console().print(f"{found.name}, rack {found.rack}{unit}, serial {found.serial}")
    print_table(MISMATCH_COLUMNS, listed, "Nothing is known to differ.")
