"""Permanent codes of cost's refusals."""

from __future__ import annotations

PRICE_CHANGED = "price.changed_meanwhile"
PRICE_VERSION_NEEDED = "price.version_needed"
PRICE_IN_THE_PAST = "price.in_the_past"
RANGE_TOO_LONG = "cost.range_too_long"
TOO_MANY_ROWS = "cost.too_many_rows"
