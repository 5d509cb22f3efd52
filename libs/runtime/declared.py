"""What a service can do, as it hands it to the shell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import MetaData, Table

from libs.bus.context import CommandHandlers, ObservationHandlers
from libs.projection import Projection
from libs.runtime.calls import CallHandlers, QueryHandlers
from libs.runtime.settings import ServiceSettings
from libs.saga.dsl import Saga
from libs.saga.engine import OperationEvents

if TYPE_CHECKING:
    from libs.runtime.service import App


@dataclass(frozen=True)
class Periodic:
    """`run` is called every `every_seconds`, one at a time; a failure is logged and the next time comes."""

    name: str
    every_seconds: float
    run: Callable[[App], Awaitable[None]]


@dataclass(frozen=True)
class Service:
    """What a service can do. See docs/architecture for what each part promises."""

    name: str
    metadata: MetaData
    settings: ServiceSettings
    commands: CommandHandlers = field(default_factory=dict)
    observations: ObservationHandlers = field(default_factory=dict)
    sagas: Sequence[Saga] = ()
    operation_events: OperationEvents | None = None
    projections: Sequence[Projection] = ()
    queries: QueryHandlers = field(default_factory=dict)
    calls: CallHandlers = field(default_factory=dict)
    periodic: Sequence[Periodic] = ()
    entities: Mapping[str, Table] = field(default_factory=dict)  # Tables that are not named as their kind (restore.py).
    on_start: Callable[[App], Awaitable[None]] | None = None
