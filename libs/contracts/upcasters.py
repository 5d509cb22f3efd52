"""Upcasters: how a message of an older version is read today. Pure, dict to dict, one step a version.

A message type may have several versions. Code handles the newest only; an older one is brought up, step by step, before
anybody looks at it. While two versions are published beside one another each says the same once: the older one names
the newer in `besideversion`, so that who reads the newer leaves the older out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from libs.contracts.message import Message, registry

Data = dict[str, Any]
Upcast = Callable[[Data], Data]


class BrokenChain(TypeError):
    """An older version of a message can't be brought to the newest. The message names every missing step."""


class Upcasters:
    """A set of upcasters. The process has one, `UPCASTERS`; tests make their own."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], Upcast] = {}

    def register(self, type_: str, version: int) -> Callable[[Upcast], Upcast]:
        """Decorate the function that makes version + 1 of `version`'s data. Raises TypeError when there is one."""

        def keep(upcast: Upcast) -> Upcast:
            if (type_, version) in self._steps:
                raise TypeError(f"{type_} has two upcasters from version {version}")
            self._steps[(type_, version)] = upcast
            return upcast

        return keep

    def leads_on(self, type_: str, version: int) -> bool:
        """Whether data of this version can be brought to a later one."""
        return (type_, version) in self._steps

    def newest(self, type_: str, version: int) -> int:
        """The version that `version` is brought to."""
        while (type_, version) in self._steps:
            version += 1
        return version

    def upcast(self, type_: str, version: int, data: Data) -> tuple[int, Data]:
        """The newest version and the data as that version says it; `data` itself is left as it is."""
        while (step := self._steps.get((type_, version))) is not None:
            version, data = version + 1, step(data)
        return version, data

    def check(self, messages: Iterable[type[Message]] | None = None, released: Iterable[tuple[str, int]] = ()) -> None:
        """Every older version, registered or `released`, leads to a registered newest one. Raises BrokenChain."""
        declared = registry().values() if messages is None else messages
        newest: dict[str, int] = {}
        known: set[tuple[str, int]] = set(released)
        for kind in (message.message_type for message in declared):
            newest[kind.type] = max(kind.version, newest.get(kind.type, 0))
            known.add((kind.type, kind.version))
        broken = [
            f"{type_} version {version} ends at version {end}, and the newest is {newest.get(type_, 'gone')}"
            for type_, version in sorted(known | set(self._steps))
            if (end := self.newest(type_, version)) != newest.get(type_)
        ]
        if broken:
            raise BrokenChain("; ".join(broken) + ". Register an upcaster for each step (libs/contracts/upcasters.py).")

    def check_examples(
        self, examples: Iterable[tuple[str, int, Data]], messages: Mapping[tuple[str, int], type[Message]]
    ) -> None:
        """Every example is readable today. Raises BrokenChain or the model's ValidationError."""
        for type_, version, data in examples:
            reached, today = self.upcast(type_, version, data)
            model = messages.get((type_, reached))
            if model is None:
                raise BrokenChain(f"{type_} version {version} is brought to version {reached}, which no model reads")
            model.model_validate(today)


UPCASTERS = Upcasters()
upcaster = UPCASTERS.register
