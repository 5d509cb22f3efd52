"""Apply the file of first prices: only profiles that never had a price get one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from libs.bus.context import Context
from services.cost import store
from services.cost.handlers import add_price
from services.cost.requests import PriceFile


class BootstrapError(ValueError):
    """The file can't be applied; says where and what to change."""


def read_prices(path: Path) -> PriceFile:
    """Parse the file. Raises BootstrapError naming the file and the first thing that is wrong."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return PriceFile.model_validate(content if content is not None else {})
    except OSError as error:
        raise BootstrapError(f"{path}: can't be read: {error.strerror}. Correct SLIPWAY_BOOTSTRAP_PRICES.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BootstrapError(f"{path}: is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BootstrapError(f"{path}: {where}: {first['msg']}") from error


async def apply_prices(ctx: Context, content: PriceFile) -> int:
    """Add prices of profiles that have none; answers how many."""
    added = 0
    for wanted in content.prices:
        if await store.latest_price(ctx.conn, wanted.profile) is None:
            added += await add_price(ctx, wanted, None) is not None
    return added
