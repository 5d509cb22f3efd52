"""The log of a template's run, line by line as the site's runner sends it, kept beside the operation it belongs to.

Lines are numbered by the site, so that a repeat or another order changes nothing. A log that never ends is cut: what is
beyond the limits is counted by its line numbers, not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context, ObservationHandlers
from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.site import RunnerLog
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.provisioning.store import cluster_table, run_line_table

MAX_LINES = 20_000  # An hour of ansible over sixty-four nodes writes about half of that.
MAX_LINE_LENGTH = 4000


async def runner_log(ctx: Context, seen: RunnerLog) -> None:
    """Keep the lines. A log of a cluster that we do not know is not ours to show.

    The cluster's operation may be another by now: its last lines may come after its deletion was asked for.
    """
    statement = select(cluster_table.c.id).where(cluster_table.c.id == seen.cluster_id)
    if (await ctx.conn.execute(statement)).one_or_none() is None:
        return
    rows = [
        {
            "run_id": seen.run_id,
            "line": seen.first_line + offset,
            "operation_id": seen.operation_id,
            "cluster_id": seen.cluster_id,
            "content": content[:MAX_LINE_LENGTH],
            "received_at": ctx.now,
        }
        for offset, content in enumerate(seen.lines)
        if 0 <= seen.first_line + offset <= MAX_LINES
    ]
    if rows:
        await ctx.conn.execute(insert(run_line_table).on_conflict_do_nothing(), rows)


def _line_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run_id": row["run_id"],
        "line": row["line"],
        "content": row["content"],
        "received_at": row["received_at"].isoformat(),
    }


class _OfOperation(BaseModel):
    operation_id: str = Field(min_length=1, max_length=200)


async def list_run_lines(conn: AsyncConnection, call: Call) -> Answer:
    """The log lines of one operation in their order, for those who may see its cluster."""
    wanted = parse(_OfOperation, call.params)
    if isinstance(wanted, Answer):
        return wanted
    lines = (
        select(run_line_table, cluster_table.c.tenant)
        .join(cluster_table, cluster_table.c.id == run_line_table.c.cluster_id)
        .where(run_line_table.c.operation_id == wanted.operation_id)
        .subquery("lines")
    )
    listing = Listing(
        table=lines,
        key=lines.c.line,
        row=_line_body,
        sorts={"line": lines.c.line},
        default_sort="line",
        tenant=lines.c.tenant,
        search=(lines.c.content,),
    )
    answer = await list_page(conn, listing, call)
    known = answer.status != 200 or answer.body["items"] or await _visible(conn, call, wanted.operation_id)
    return answer if known else not_found("operation", wanted.operation_id)


async def _visible(conn: AsyncConnection, call: Call, operation_id: str) -> bool:
    """Whether there is a cluster with that operation which the caller may see; its log is only empty then."""
    statement = select(cluster_table.c.tenant).where(cluster_table.c.operation_id == operation_id)
    tenant = (await conn.execute(statement)).scalars().first()
    return tenant is not None and call.may_see(tenant)


OBSERVATIONS: ObservationHandlers = {RunnerLog: runner_log}
