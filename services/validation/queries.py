"""Answers about runs, findings and the check catalogue, for the operator door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from services.validation import store
from services.validation.catalogue import CATALOGUE

# Findings and runs tell about hardware, not about a tenant: only the operator door shows them in this step.
_NOBODYS: dict[str, Any] = {"items": [], "next_cursor": None, "as_of": None}


def _run_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return store.run_facts(row).model_dump(mode="json")


def _finding_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return store.finding_facts(row).model_dump(mode="json")


RUNS = Listing(
    table=store.run,
    filters={
        "machine_id": store.run.c.machine_id,
        "suite": store.run.c.suite,
        "verdict": store.run.c.verdict,
        "site": store.run.c.site,
        "requested_for": store.run.c.requested_for,
    },
    sorts={"started_at": store.run.c.started_at},
    default_sort="-started_at",
    key=store.run.c.id,
    row=_run_body,
)
FINDINGS = Listing(
    table=store.finding,
    filters={
        "machine_id": store.finding.c.machine_id,
        "check": store.finding.c["check"],
        "severity": store.finding.c.severity,
        "run_id": store.finding.c.run_id,
    },
    sorts={"last_seen_at": store.finding.c.last_seen_at, "first_seen_at": store.finding.c.first_seen_at},
    default_sort="-last_seen_at",
    key=store.finding.c.id,
    row=_finding_body,
)
OPEN_WORDS = {"true": True, "1": True, "false": False, "0": False}


async def list_runs(conn: AsyncConnection, call: Call) -> Answer:
    return Answer(body=_NOBODYS) if call.tenants is not None else await list_page(conn, RUNS, call)


async def list_findings(conn: AsyncConnection, call: Call) -> Answer:
    """`open` true or false; both when it is left out."""
    if call.tenants is not None:
        return Answer(body=_NOBODYS)
    wanted = OPEN_WORDS.get(str(call.params.get("open", "")).casefold())
    if wanted is None:
        return await list_page(conn, FINDINGS, call)
    filters = {**FINDINGS.filters, "open": store.finding.c.open}
    listing = Listing(**{**FINDINGS.__dict__, "filters": filters})
    return await list_page(conn, listing, call.model_copy(update={"params": {**call.params, "open": wanted}}))


async def get_run(conn: AsyncConnection, call: Call) -> Answer:
    id_ = str(call.params.get("id") or call.params.get("run_id") or "")
    facts = await store.get_run(conn, id_)
    if facts is None or call.tenants is not None:
        return not_found("run", id_)
    return Answer(body=facts.model_dump(mode="json"), etag=str(facts.version))


async def list_checks(conn: AsyncConnection, call: Call) -> Answer:
    """The catalogue: what each check proves."""
    items = [
        {
            "id": check.id,
            "suite": check.suite,
            "proves": check.proves,
            "how": check.how,
            "severity": check.severity,
            "applies": check.applies,
            "limit_seconds": check.limit_seconds,
        }
        for check in CATALOGUE
    ]
    return Answer(body={"items": items, "next_cursor": None, "as_of": None})


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_runs": list_runs,
    "get_run": get_run,
    "list_findings": list_findings,
    "list_checks": list_checks,
}
