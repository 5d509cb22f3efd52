"""How statements on queues are planned while there is a backlog.

A queue's table is nearly empty most of the time and its statistics say so. When a backlog comes, the planner would
then read and sort all of it for every batch, and the time to work it off grows with its square.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

# For this transaction. Only statements with parameters are planned anew, so a batch's limit is one.
_KEEP_TO_INDEXES = """SELECT set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)"""


async def keep_to_indexes(conn: AsyncConnection) -> None:
    """Have the statements of this transaction walk indexes in order and stop at their limit."""
    await conn.exec_driver_sql(_KEEP_TO_INDEXES)
