"""Read values out of raw evidence. Invariant: what is not clearly there is None, and None never passes.

Blank text, vendors' placeholders, error words, sentinels (0, -1) and numbers written as text where a number
belongs are all "not known". What a value means is left to the judges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from libs.contracts.hardware_ids import is_placeholder

# What BIOSes, BMCs and drivers write when they don't know. Compared in lower case, without brackets.
_NO_INFORMATION = frozenset(
    word.strip()
    for word in """
    -|--|?|0|-1|n/a|na|none|null|nil|nan|unknown|unknown error|err!|error|invalid|undefined|unspecified|default
    gpu is lost|not supported|not available|not specified|not present|not applicable|insufficient permissions
    requested functionality has been deprecated
    """.replace("\n", "|").split("|")
)


def text(value: Any) -> str | None:
    """`value` trimmed, when it is text that says something."""
    if not isinstance(value, str):
        return None
    trimmed = value.strip()
    bare = trimmed.strip("[]<>()").strip().casefold()
    if bare in _NO_INFORMATION or is_placeholder(bare) or not bare.strip("0.:- "):
        return None
    return trimmed


def positive(value: Any) -> float | None:
    """`value` when it is a finite number above 0. True is no number, nor is "8"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def whole_positive(value: Any) -> int | None:
    """`value` when it is a whole number above 0."""
    number = positive(value)
    return int(number) if number is not None and number.is_integer() else None


def fields(value: Any) -> Mapping[str, Any] | None:
    """`value` when it is an object."""
    return value if isinstance(value, Mapping) else None


def entries(value: Any) -> list[Mapping[str, Any]] | None:
    """`value` when it is a list of objects, all of them."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return None
    return value


def names(value: Any) -> list[str] | None:
    """`value` when it is a list of texts that say something; an empty list is one."""
    if not isinstance(value, list):
        return None
    found = [text(item) for item in value]
    return None if None in found else [item for item in found if item is not None]
