"""The collector of cycles leaves a batch of messages alone, and still collects cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from libs.runtime.collector import YOUNG, ease_collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Node:
    """A cycle with itself."""

    def __init__(self) -> None:
        self.me = self


def test_a_batch_is_not_looked_through() -> None:
    ease_collector()
    before = [generation["collections"] for generation in gc.get_stats()]
    batch = [{"number": number, "of": []} for number in range(YOUNG // 4)]
    assert [generation["collections"] for generation in gc.get_stats()] == before
    assert gc.get_freeze_count() > 0 and len(batch) == YOUNG // 4


def test_cycles_are_still_collected() -> None:
    ease_collector()
    gone = weakref.ref(Node())
    kept = [[] for _ in range(2 * YOUNG)]  # type: ignore[var-annotated]
    assert gone() is None and len(kept) == 2 * YOUNG
