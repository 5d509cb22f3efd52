"""Ends tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

_CANCEL_AGAIN_SECONDS = 1.0


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks until every one has ended.

    Once is not enough: asyncio.wait_for of Python 3.11 loses a cancellation that meets an answer, and then the task
    goes on for ever (https://github.com/python/cpython/issues/86296).
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_SECONDS)
