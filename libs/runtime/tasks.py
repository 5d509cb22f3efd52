"""A set of background tasks that ends as one: when any ends, all are cancelled until they are really gone.

asyncio.TaskGroup cancels its tasks once; in Python 3.11 `asyncio.wait_for` (which libraries use) can swallow a
cancellation that races with its result, and the group then waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any

CANCEL_AGAIN_SECONDS = 0.5


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks until every one has ended; once is not enough (https://github.com/python/cpython/issues/86296)."""
    waiting = {task for task in tasks if not task.done()}
    interrupted: asyncio.CancelledError | None = None
    while waiting:
        for task in waiting:
            task.cancel()
        try:
            _, waiting = await asyncio.wait(waiting, timeout=CANCEL_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            # Sets are nested, and the outer one cancels us again, too: none of ours may be left behind for that.
            interrupted = error
            waiting = {task for task in waiting if not task.done()}
    if interrupted is not None:
        raise interrupted


class TaskSet:
    """Use as an async context manager; `first_end` waits until one task ends and raises what it raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> TaskSet:
        return self

    def add(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._tasks.add(asyncio.create_task(coroutine))

    async def first_end(self) -> None:
        """These tasks are meant to run for ever: the first that ends is a fault, and its exception is raised."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError(f"a background task ended: {done}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await end_all(self._tasks)
