"""JSON of a request body, read strictly (RFC 8259, and RFC 7493's advice against surprises).

Refuses what readers disagree about: a key given twice, NaN and Infinity, numbers beyond 64 bits,
nesting without end, text that is no UTF-8. Then two programs never see two requests in one body.
"""

from __future__ import annotations

import json
import math
from typing import Any

from services.gateway.visible_text import complaint

MAX_DEPTH = 16  # Our deepest body has 4 levels.
MAX_INTEGER = 2**63 - 1


class BadJson(ValueError):
    """The body is no JSON that we read; the message says what is wrong."""


class BadText(ValueError):
    """A string has an invisible character; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def parse(payload: bytes) -> Any:
    """The value of `payload`. Raises BadJson, or BadText naming the field."""
    try:
        value = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except BadJson:
        raise
    except UnicodeDecodeError as error:
        raise BadJson(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise BadJson("a number in the body has too many digits") from None
    except RecursionError:
        raise BadJson(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    _inspect(value, (), 0)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise BadJson(f"the key {key[:60]!r} is given twice in one object; give it once")
        keys[key] = value
    return keys


def _no_constant(name: str) -> Any:
    raise BadJson(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadJson(f"the number {text[:40]} is too large")
    return number


def _inspect(value: Any, path: tuple[str, ...], depth: int) -> None:
    """Depth, integer size and characters of everything in `value`."""
    match value:
        case str():
            if wrong := complaint(value):
                raise BadText(".".join(path) or "body", wrong)
        case bool() | None:
            return
        case int():
            if abs(value) > MAX_INTEGER:
                raise BadJson(f"the number at {'.'.join(path) or 'the top'} does not fit 64 bits")
        case dict() | list():
            if depth >= MAX_DEPTH:
                raise BadJson(f"the body is nested deeper than {MAX_DEPTH} levels")
            members = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in members:
                if isinstance(key, str) and (wrong := complaint(key)):
                    raise BadText(".".join((*path, ascii(key[:60]))), f"the name of the field {wrong}")
                _inspect(item, (*path, str(key)), depth + 1)
