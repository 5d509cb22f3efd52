"""Python's collector of cycles, set for programs that make and drop many objects at once.

A batch of a few hundred messages is tens of thousands of dictionaries and lists, and no cycle among them. By default
Python looks for cycles after every 700 of them and now and then through everything that was ever imported: a sixth to
a quarter of the CPU of consuming events, and pauses in between. https://docs.python.org/3/library/gc.html
"""

from __future__ import annotations

import gc

# More than a batch makes, so that most of it is gone before anybody looks; some ten MiB of garbage at the very most.
YOUNG = 50_000
YOUNG_BEFORE_MIDDLE, MIDDLE_BEFORE_OLD = 10, 10


def ease_collector() -> None:
    """Call once, when everything is imported: what is there by then is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_BEFORE_MIDDLE, MIDDLE_BEFORE_OLD)
