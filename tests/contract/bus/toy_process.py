"""The toy service as a process, to be killed: python -m tests.contract.bus.toy_process NATS DATABASE HOLDER"""

from __future__ import annotations

import asyncio
import sys

import pytest

from libs.runtime.database import Database
from libs.runtime.service import App
from tests.contract.bus.toy import over_the_bus, toy_service


async def main(nats_url: str, database_url: str, holder: str) -> None:
    app = App(toy_service(nats_url, database_url), Database(database_url, application_name=holder))
    app.holder = holder
    await app.run()


if __name__ == "__main__":
    over_the_bus(pytest.MonkeyPatch())
    asyncio.run(main(*sys.argv[1:]))
