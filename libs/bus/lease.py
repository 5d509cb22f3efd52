"""Leases by the database's clock, with a fencing token that rises at every change of holder."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True)
class Lease:
    """`name` in `schema`, held by `holder` for `ttl_seconds` at a time."""

    schema: str
    name: str
    holder: str
    ttl_seconds: float = 4.0

    async def take(self, conn: AsyncConnection) -> int | None:
        """Take or renew it. Returns the fencing token, None while somebody else holds it.

        The row stays locked until the transaction ends, so work in the same transaction is fenced.
        """
        row = (
            await conn.execute(
                text(
                    f"""INSERT INTO {self.schema}.lease AS l (name, holder, token, expires_at)
                    VALUES (:name, :holder, 1, clock_timestamp() + make_interval(secs => :ttl))
                    ON CONFLICT (name) DO UPDATE SET
                        holder = :holder,
                        token = l.token + CASE WHEN l.holder = :holder THEN 0 ELSE 1 END,
                        expires_at = clock_timestamp() + make_interval(secs => :ttl)
                    WHERE l.holder = :holder OR l.expires_at < clock_timestamp()
                    RETURNING token"""
                ),
                {"name": self.name, "holder": self.holder, "ttl": self.ttl_seconds},
            )
        ).first()
        return int(row[0]) if row else None

    async def seize(self, conn: AsyncConnection) -> None:
        """Take it from whoever has it: they find out with their next renewal, and what they do meanwhile is fenced."""
        await conn.execute(
            text(
                f"""INSERT INTO {self.schema}.lease AS l (name, holder, token, expires_at)
                VALUES (:name, :holder, 1, clock_timestamp() + make_interval(secs => :ttl))
                ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = l.token + 1,
                    expires_at = excluded.expires_at"""
            ),
            {"name": self.name, "holder": self.holder, "ttl": self.ttl_seconds},
        )

    async def give_back(self, conn: AsyncConnection) -> None:
        """Let the next one have it at once."""
        await conn.execute(
            text(f"UPDATE {self.schema}.lease SET expires_at = '-infinity' WHERE name = :name AND holder = :holder"),
            {"name": self.name, "holder": self.holder},
        )
