"""What every service answers about its projections: how far each is, rebuild one, and how far a rebuild is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found, problem
from libs.projection import Rebuild
from libs.projection.rebuild import CannotSwap
from libs.runtime.params import parse

ANSWER_WITHIN_SECONDS = 8.0  # Most rebuilds take less; what takes longer is followed by asking for its progress.
LOOK_SECONDS = 0.1


class _Rebuild(BaseModel):
    name: str
    swap: bool = False


async def listed(conn: AsyncConnection, service: str) -> Answer:
    """Every projection and stream with its position."""
    query = f"SELECT projection, stream, position, updated_at FROM {service}.projection_position"
    rows = await conn.execute(text(f"{query} ORDER BY projection, stream"))
    items = [
        {
            "service": service,
            "projection": row.projection,
            "stream": row.stream,
            "position": row.position,
            "updated_at": row.updated_at.isoformat(),
        }
        for row in rows
    ]
    return Answer(body={"items": items, "next_cursor": None})


async def rebuild(rebuilds: Mapping[str, Rebuild], call: Call) -> Answer:
    """Begin a rebuild (or join the one that runs). 200 with the result when it is soon done, else 202 with how far."""
    wanted = parse(_Rebuild, call.params)
    if isinstance(wanted, Answer):
        return wanted
    job = rebuilds.get(wanted.name)
    if job is None:
        return not_found("projection", wanted.name)
    try:
        row = await job.start(call.actor, swap=wanted.swap)
    except CannotSwap as error:
        return problem(409, "projection.is_history", str(error), "Rebuild it without swap, and look into a difference.")
    end = asyncio.get_running_loop().time() + ANSWER_WITHIN_SECONDS
    while row["state"] == "running" and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(LOOK_SECONDS)
        row = await job.status() or row
    return Answer(status=202 if row["state"] == "running" else 200, body=body(row))


async def rebuild_progress(rebuilds: Mapping[str, Rebuild], call: Call) -> Answer:
    """How far the newest rebuild is, or what it found."""
    name = str(call.params.get("name", ""))
    row = await rebuilds[name].status() if name in rebuilds else None
    return Answer(body=body(row)) if row is not None else not_found("rebuild", name)


def body(row: Mapping[str, Any]) -> dict[str, Any]:
    """The rebuild as the API shows it. `equal` is null until both digests are known."""
    done, all_ = sum(row["positions"].values()), sum(row["targets"].values())
    compared = row["digest_live"] is not None
    return {
        "projection": row["projection"],
        "state": row["state"],
        "swap": row["swap"],
        "requested_by": row["requested_by"],
        "started_at": row["started_at"].isoformat(),
        "updated_at": row["updated_at"].isoformat(),
        "progress": 1.0 if row["state"] == "done" or not all_ else round(min(done / all_, 1.0), 4),
        "positions": row["positions"],
        "targets": row["targets"],
        "events": row["events"],
        "seconds": round(row["seconds"], 3),
        "digest_live": row["digest_live"],
        "digest_rebuilt": row["digest_rebuilt"],
        "equal": row["digest_live"] == row["digest_rebuilt"] if compared else None,
        "changes": row["changes"],
        "error": row["error"],
    }
