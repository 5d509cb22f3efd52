"""Message types: which service owns a message, its subject, stream and version.

Declared by the decorators `event`, `command`, `site_command` and `observation` on frozen pydantic
models. The registry refuses two models for one type, so a name is never re-used by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict


class Kind(StrEnum):
    EVENT = "event"
    COMMAND = "command"
    SITE_COMMAND = "site_command"
    OBSERVATION = "observation"


@dataclass(frozen=True)
class MessageType:
    """`group` is the owning service (events, commands) or the adapter (site commands, observations)."""

    kind: Kind
    group: str
    entity: str
    name: str
    version: int

    @property
    def type(self) -> str:
        """The CloudEvents type, e.g. slipway.inventory.machine.state_changed."""
        middle = f"{self.entity}." if self.entity else ""
        head = {Kind.EVENT: "", Kind.COMMAND: "command.", Kind.SITE_COMMAND: "site.", Kind.OBSERVATION: "observation."}
        return f"slipway.{head[self.kind]}{self.group}.{middle}{self.name}"

    @property
    def dataschema(self) -> str:
        folder = {
            Kind.EVENT: "events",
            Kind.COMMAND: "commands",
            Kind.SITE_COMMAND: "commands",
            Kind.OBSERVATION: "events",
        }[self.kind]
        return f"/schemas/{folder}/{self.type}.v{self.version}.json"

    def subject(self, *, site: str = "-", tenant: str = "-") -> str:
        """The NATS subject."""
        match self.kind:
            case Kind.EVENT:
                return f"evt.{site}.{tenant}.{self.group}.{self.entity}.{self.name}.v{self.version}"
            case Kind.COMMAND:
                return f"cmd.{self.group}.{self.name}.v{self.version}"
            case Kind.SITE_COMMAND:
                return f"site.{site}.{self.group}.{self.name}.v{self.version}"
            case Kind.OBSERVATION:
                return f"obs.{site}.{self.group}.{self.name}.v{self.version}"


class Message(BaseModel):
    """Base of every payload. Unknown fields are ignored: adding one is a compatible change."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    message_type: ClassVar[MessageType]

    def key(self) -> str:
        """What must stay in order: messages with one key are handled one after the other.

        Commands override it with the id of the thing they are about; "" means no order is needed.
        """
        return ""


M = TypeVar("M", bound=type[Message])
_REGISTRY: dict[tuple[str, int], type[Message]] = {}


def registry() -> dict[tuple[str, int], type[Message]]:
    """Every declared message by (CloudEvents type, version). Import `libs.contracts.all` first."""
    return dict(_REGISTRY)


def message_class(type_: str, version: int) -> type[Message] | None:
    return _REGISTRY.get((type_, version))


def _declare(message_type: MessageType) -> Callable[[M], M]:
    def register(cls: M) -> M:
        key = (message_type.type, message_type.version)
        if key in _REGISTRY:
            raise TypeError(f"{key} is declared twice: {_REGISTRY[key].__name__} and {cls.__name__}")
        cls.message_type = message_type
        _REGISTRY[key] = cls
        return cls

    return register


def event(service: str, entity: str, name: str, version: int = 1) -> Callable[[M], M]:
    """Declare a fact, past tense, emitted by `service` about one `entity`."""
    return _declare(MessageType(Kind.EVENT, service, entity, name, version))


def command(service: str, name: str, version: int = 1) -> Callable[[M], M]:
    """Declare an imperative that `service` obeys or refuses."""
    return _declare(MessageType(Kind.COMMAND, service, "", name, version))


def site_command(adapter: str, name: str, version: int = 1) -> Callable[[M], M]:
    """Declare an imperative for one adapter of a site's satellite."""
    return _declare(MessageType(Kind.SITE_COMMAND, adapter, "", name, version))


def observation(adapter: str, name: str, version: int = 1) -> Callable[[M], M]:
    """Declare what a site saw."""
    return _declare(MessageType(Kind.OBSERVATION, adapter, "", name, version))


def json_data(message: Message) -> dict[str, Any]:
    """The payload as JSON-ready data."""
    return message.model_dump(mode="json")
