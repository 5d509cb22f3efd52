"""Validation's tables and the only SQL on them: runs and findings. Updates are guarded by version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.replies import Problem
from libs.contracts.validation import CheckResult, FindingFacts, RunFacts, Suite, Verdict

metadata = sa.MetaData(schema="validation")
_Time = sa.TIMESTAMP(timezone=True)

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("machine_id", sa.Text, nullable=False),
    sa.Column("site", sa.Text, nullable=False),
    sa.Column("suite", sa.Text, nullable=False),
    sa.Column("verdict", sa.Text),
    sa.Column("checks", JSONB, nullable=False),
    sa.Column("requested_for", sa.Text, nullable=False),
    sa.Column("problem", JSONB),
    sa.Column("started_at", _Time, nullable=False),
    sa.Column("finished_at", _Time),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Index("run_machine", "machine_id", "started_at"),
)
finding = sa.Table(
    "finding",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("machine_id", sa.Text, nullable=False),
    sa.Column("check", sa.Text, nullable=False),
    sa.Column("component", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("expected", sa.Text, nullable=False),
    sa.Column("found", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("first_seen_at", _Time, nullable=False),
    sa.Column("last_seen_at", _Time, nullable=False),
    sa.Column("seen_count", sa.Integer, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Index("finding_open", "machine_id", "check", "component", unique=True, postgresql_where=sa.text("open")),
)


def run_facts(row: Mapping[Any, Any]) -> RunFacts:
    return RunFacts(
        id=row["id"],
        machine_id=row["machine_id"],
        site=row["site"],
        suite=Suite(row["suite"]),
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
        checks=tuple(CheckResult.model_validate(check) for check in row["checks"]),
        requested_for=row["requested_for"],
        problem=Problem.model_validate(row["problem"]) if row["problem"] else None,
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        version=row["version"],
    )


def finding_facts(row: Mapping[Any, Any]) -> FindingFacts:
    return FindingFacts.model_validate({name: row[name] for name in FindingFacts.model_fields})


def _run_row(facts: RunFacts) -> dict[str, Any]:
    row = facts.model_dump(mode="python")
    row["checks"] = [check.model_dump(mode="json") for check in facts.checks]
    row["problem"] = facts.problem.model_dump(mode="json") if facts.problem else None
    return row


async def add_run(conn: AsyncConnection, facts: RunFacts) -> bool:
    """Insert it; False when its id is taken."""
    statement = insert(run).values(_run_row(facts)).on_conflict_do_nothing().returning(run.c.id)
    return (await conn.execute(statement)).first() is not None


async def get_run(conn: AsyncConnection, id_: str, *, lock: bool = False) -> RunFacts | None:
    statement = sa.select(run).where(run.c.id == id_)
    row = (await conn.execute(statement.with_for_update() if lock else statement)).mappings().first()
    return run_facts(row) if row else None


async def save_run(conn: AsyncConnection, facts: RunFacts) -> bool:
    """Write the run over the version before; False when somebody was faster."""
    statement = sa.update(run).where(run.c.id == facts.id, run.c.version == facts.version - 1).values(_run_row(facts))
    return (await conn.execute(statement)).rowcount == 1


async def open_findings(conn: AsyncConnection, machine_id: str) -> tuple[FindingFacts, ...]:
    """The machine's open findings, locked, oldest first."""
    statement = (
        sa.select(finding)
        .where(finding.c.machine_id == machine_id, finding.c.open)
        .order_by(finding.c.first_seen_at, finding.c.id)
        .with_for_update()
    )
    return tuple(finding_facts(row) for row in (await conn.execute(statement)).mappings())


async def add_findings(conn: AsyncConnection, new: Iterable[FindingFacts]) -> None:
    rows = [facts.model_dump(mode="python") for facts in new]
    if rows:
        await conn.execute(sa.insert(finding), rows)


async def save_finding(conn: AsyncConnection, facts: FindingFacts) -> bool:
    """Write the finding over the version before; False when somebody was faster."""
    row = facts.model_dump(mode="python")
    statement = sa.update(finding).where(finding.c.id == facts.id, finding.c.version == facts.version - 1).values(row)
    return (await conn.execute(statement)).rowcount == 1
