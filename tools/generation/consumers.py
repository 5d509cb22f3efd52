"""Who reads which message, for the index: services by what they declare, others by schemas/consumers.yaml."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from libs.bus.topology import load_topology
from libs.contracts.message import Kind, MessageType
from libs.contracts.upcasters import UPCASTERS
from libs.projection import Projection

FILE = Path(__file__).resolve().parents[2] / "schemas" / "consumers.yaml"


class Consumer(BaseModel):
    """Somebody outside who reads a version of a message (`<type>.v<N>`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: str = Field(pattern=r"^slipway\..+\.v\d+$")
    who: str = Field(min_length=1)
    until: date


def outside(file: Path = FILE) -> list[Consumer]:
    """schemas/consumers.yaml. Raises pydantic's ValidationError naming the entry and field that is wrong."""
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))["consumers"] if file.exists() else []
    return [Consumer.model_validate(entry) for entry in entries]


def consumers(kind: MessageType, declared: Iterable[Consumer]) -> list[str]:
    """Who reads this version: the owner of a command, services with a copy of the stream, those who say so."""
    known = [f"{each.who} (until {each.until})" for each in declared if each.message == f"{kind.type}.v{kind.version}"]
    if UPCASTERS.leads_on(kind.type, kind.version):
        return known  # Whoever runs this release reads the newer one.
    return [*_inside(kind), *known]


def _inside(kind: MessageType) -> list[str]:
    services: Mapping[str, Mapping[str, list[str]]] = load_topology()["services"]
    match kind.kind:
        case Kind.COMMAND:
            return [kind.group]
        case Kind.SITE_COMMAND:
            return ["satellite"]
        case Kind.EVENT:
            return [service for service in services if kind.group in _streams(service)]
        case Kind.OBSERVATION:
            return [name for name, wants in services.items() if _observes(wants.get("observations", ()), kind.group)]


def _observes(patterns: Iterable[str], adapter: str) -> bool:
    return any(pattern.split(".")[2] == adapter for pattern in patterns)


@cache
def _streams(service: str) -> frozenset[str]:
    path = f"services.{service}.projections"
    if importlib.util.find_spec(path) is None:
        return frozenset()
    projections: Iterable[Projection] = importlib.import_module(path).PROJECTIONS
    return frozenset(stream for projection in projections for stream in projection.streams)
