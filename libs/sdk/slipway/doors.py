"""The two doors of an installation, and what a filter of a list may be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

Filter = str | int | bool | datetime | Sequence[str] | None


class Door(StrEnum):
    """The tenant door serves tenants, the operator door the installation's operators."""

    TENANT = "tenant"
    OPERATOR = "operator"


BOTH = (Door.TENANT, Door.OPERATOR)
OPERATOR_ONLY = (Door.OPERATOR,)
TENANT_ONLY = (Door.TENANT,)
