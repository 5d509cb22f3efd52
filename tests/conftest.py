"""Fixtures for the whole suite: one PostgreSQL and one NATS a session, one fresh database a test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from libs.runtime.migrations import migrate
from libs.runtime.service import Service
from libs.testing.kit import ServiceKit
from libs.testing.servers import postgres_server, shared_nats

# How long one example takes says how busy the computer is. The same examples every time: a failure is never a surprise.
settings.register_profile("slipway", deadline=None, derandomize=True)
settings.load_profile("slipway")

KitFactory = Callable[[Service], Awaitable[ServiceKit]]


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The session's PostgreSQL."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    """The session's NATS hub, with JetStream."""
    with shared_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A program that a test runs in this process sets up its log, on a stream that is closed after the test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


_templates: set[str] = set()
_databases = 0


async def fresh_database(postgres: EmbeddedPostgres, service: str) -> str:
    """A new database with the service's migrated schema; returns its name. Migrations run once a session."""
    global _databases
    template = f"template_{service}"
    admin = await asyncpg.connect(postgres.url())
    try:
        if template not in _templates:
            await admin.execute(f"DROP DATABASE IF EXISTS {template}")
            await admin.execute(f"CREATE DATABASE {template}")
            await migrate(postgres.url(template), service)
            _templates.add(template)
        _databases += 1
        name = f"test_{_databases}"
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    finally:
        await admin.close()
    return name


@pytest.fixture
async def service_kit(postgres: EmbeddedPostgres) -> AsyncIterator[KitFactory]:
    """Make kits: `kit = await service_kit(service)`."""
    opened: list[Database] = []

    async def make(service: Service) -> ServiceKit:
        name = await fresh_database(postgres, service.name)
        database = Database(postgres.url(name), application_name=f"test-{service.name}")
        opened.append(database)
        return ServiceKit(service, database)

    yield make
    for database in opened:
        await database.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]


async def eventually(check: Callable[[], Awaitable[bool]], *, within_seconds: float = 10.0, what: str = "") -> None:
    """Wait until `check` holds; fail naming `what` when it does not in time."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    while not await check():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {what or check}")
        await asyncio.sleep(0.02)


# -- what this machine can't offer ------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that needs what the machine lacks is a skip that says so; tests of containers run on request only."""
    reason = _lab_missing()
    wanted, left_out = [], []
    for item in items:
        if item.get_closest_marker("docker") and not os.environ.get("SLIPWAY_COMPOSE_TEST"):
            left_out.append(item)
            continue
        if reason and item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.skip(reason=reason))
        wanted.append(item)
    items[:] = wanted
    if left_out:
        config.hook.pytest_deselected(items=left_out)


# What starts whole systems: NetBox, Ironic, the stack. One after the other, or they share two cores and time out.
WHOLE_SYSTEMS = (
    "tests/e2e/",
    "tests/chaos/",
    "tests/integration/lab/",
    "tests/contract/inventory/",
    "tests/contract/site/",
)


class ByFile(LoadScopeScheduling):
    """Gives each process of pytest-xdist whole files, whose tests share servers, and all whole systems to one."""

    def _split_scope(self, nodeid: str) -> str:
        return "whole systems" if nodeid.startswith(WHOLE_SYSTEMS) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def _lab_missing() -> str | None:
    """Why the real parts can't run here, None when they can."""
    from deploy.lab.interpreters import find_python
    from libs.runtime.processes import StartError

    try:
        find_python((3, 12))
    except StartError as error:
        return str(error).splitlines()[0]
    return None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With SLIPWAY_NO_SKIPS (CI) a skip is a failure: there nothing may be missing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if os.environ.get("SLIPWAY_NO_SKIPS") and skipped and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
