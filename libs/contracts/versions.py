"""Which version a message has, and how today's code reads it.

A fact that is published in two versions beside one another names the other one in `besideversion`. Each reader takes
exactly one of the two: the newer if it knows it, else the older.
"""

from __future__ import annotations

from functools import lru_cache

from libs.contracts.envelope import Envelope
from libs.contracts.message import Message, message_class, registry
from libs.contracts.upcasters import UPCASTERS


class NewerMessage(LookupError):
    """The message is of a version that this program does not know, and nothing older beside it says the same."""


def parse_version(envelope: Envelope) -> int:
    """The version of the message's schema, from `dataschema` (…v1.json); 1 when absent."""
    return _version(envelope.dataschema)


def known_class(envelope: Envelope) -> type[Message] | None:
    """The message's model in this version of the code."""
    return message_class(envelope.type, parse_version(envelope))


def todays(envelope: Envelope) -> Envelope | None:
    """The message as its newest version says it; None when another message beside it is the one to read.

    A type that nobody declares here is returned as it is. Raises NewerMessage; whoever raises it must not lose the
    message: a newer replica will read it.
    """
    if envelope.besideversion is None and _is_current(envelope.type, envelope.dataschema):
        return envelope
    version, other = _version(envelope.dataschema), envelope.besideversion
    known = _known(envelope.type, version)
    if other is not None and _known(envelope.type, other) and (other > version or not known):
        return None
    if not known:
        if not any(type_ == envelope.type for type_, _ in registry()):
            return envelope
        raise NewerMessage(f"{envelope.type} version {version} is not known here; a newer release reads it")
    reached, data = UPCASTERS.upcast(envelope.type, version, envelope.data)
    if reached == version:
        return envelope
    model = message_class(envelope.type, reached)
    assert model is not None, "checked at start-up"
    return envelope.model_copy(update={"data": data, "dataschema": model.message_type.dataschema})


@lru_cache(maxsize=4096)
def _version(dataschema: str | None) -> int:
    tail = (dataschema or "").removesuffix(".json").rpartition(".v")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else 1


def _known(type_: str, version: int) -> bool:
    return message_class(type_, version) is not None or UPCASTERS.leads_on(type_, version)


@lru_cache(maxsize=4096)
def _is_current(type_: str, dataschema: str | None) -> bool:
    """Whether the message is read as it is: the registry and the upcasters do not change once a program runs."""
    version = _version(dataschema)
    return message_class(type_, version) is not None and not UPCASTERS.leads_on(type_, version)
