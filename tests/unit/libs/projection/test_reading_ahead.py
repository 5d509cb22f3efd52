"""Batches are fetched while others are applied: bounded, in order, and a fault comes after what was found before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from libs.projection import rebuild


class Reader:
    """Stands in for a puller: says what it is told, then that it is silent, or fails."""

    def __init__(self, *batches: Sequence[Any] | Exception) -> None:
        self.left = list(batches)

    async def next_batch(self, timeout: float) -> list[Any]:
        del timeout
        found = self.left.pop(0) if self.left else []
        if isinstance(found, Exception):
            raise found
        return list(found)


async def read(reader: Any) -> list[list[Any]]:
    async with rebuild._ahead(reader) as batches:
        found = []
        async for batch in batches:
            found.append(list(batch))
            await asyncio.sleep(0)  # Applying it takes a while.
        return found


async def test_what_came_meanwhile_is_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "ENOUGH", 4)
    found = await read(Reader([1, 2, 3], [4, 5, 6], [7], [8]))
    assert [number for batch in found for number in batch] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert max(len(batch) for batch in found) >= 4, "batches are put together"
    assert max(len(batch) for batch in found) <= 4 - 1 + 3, "no more than enough and one more batch"


async def test_it_never_reads_further_ahead_than_it_may() -> None:
    reader = Reader(*([number] for number in range(20)))
    async with rebuild._ahead(reader) as batches:  # type: ignore[arg-type]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(reader.left) >= 20 - rebuild.BATCHES_AHEAD - 1
        assert [number async for batch in batches for number in batch] == list(range(20))


async def test_a_fault_comes_after_what_was_found_before_it() -> None:
    found = []
    with pytest.raises(ConnectionError):
        async with rebuild._ahead(Reader([1], [2], ConnectionError("gone"), [3])) as batches:  # type: ignore[arg-type]
            async for batch in batches:
                found += batch
    assert found == [1, 2]
