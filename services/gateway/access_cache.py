"""A caller's grants, asked of identity and kept for seconds.

Kept at most `ttl_seconds`, and dropped at once when identity says that anything changed; an answer
that was on its way when that happened is used but not kept. When identity cannot be asked, nobody
is let in on old knowledge.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from libs.contracts.calls import Call
from libs.contracts.identity import GrantFacts, Role
from libs.runtime.tokens import Principal
from services.gateway.access import Access, access_of
from services.gateway.owners import Owners, subject_of
from services.gateway.problems import Refusal, unavailable

TTL_SECONDS = 5.0
MAX_CALLERS = 10_000  # About 10 MB; the least recently seen leave first.
GATEWAY_ACTOR = "system:gateway"
IDENTITY_EVENTS = "evt.*.*.identity.>"


class _Resolved(BaseModel):
    """What identity answers: the caller's grants, and their roles in each tenant that exists for them."""

    model_config = ConfigDict(extra="ignore")
    grants: tuple[GrantFacts, ...]
    roles: dict[str, tuple[Role, ...]]


@dataclass(frozen=True)
class _Kept:
    access: Access
    until: float


class AccessCache:
    """Grants by (issuer, subject). `clock` is monotonic, in seconds."""

    def __init__(
        self, owners: Owners, ttl_seconds: float = TTL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._owners = owners
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._asking: dict[tuple[str, str], asyncio.Task[Access]] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def forget(self, _event: Any = None) -> None:
        """Drop everything: grants, tenants or organizations changed. A bus callback, hence async."""
        self._generation += 1
        self._kept.clear()
        self._asking.clear()

    async def access(self, principal: Principal, correlation_id: str) -> Access:
        """The caller's access. Raises Refusal when identity does not answer."""
        key = (principal.issuer, principal.subject)
        kept = self._kept.get(key)
        if kept is not None and self._clock() < kept.until:
            self._kept.move_to_end(key)
            return kept.access
        task = self._asking.get(key)
        if task is None:
            # One question for all requests of a caller that arrive together.
            task = asyncio.create_task(self._resolve(key, correlation_id))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)

    def _asked(self, key: tuple[str, str], done: asyncio.Task[Access]) -> None:
        if self._asking.get(key) is done:
            del self._asking[key]
        if not done.cancelled():
            done.exception()  # Seen here too, so that an abandoned question is not logged as a bug.

    async def _resolve(self, key: tuple[str, str], correlation_id: str) -> Access:
        generation = self._generation
        issuer, subject = key
        call = Call(
            name="resolve",
            actor=GATEWAY_ACTOR,
            correlation_id=correlation_id,
            params={"issuer": issuer, "subject": subject},
        )
        answer = await self._owners.ask(subject_of("identity", "resolve", writes=False), call)
        if answer.status != 200:
            raise unavailable("gateway.access_unknown", f"Identity answered {answer.status} when asked who you are.")
        try:
            resolved = _Resolved.model_validate(answer.body)
        except ValidationError:
            raise Refusal(
                502,
                "gateway.owner_unreadable",
                "The service identity gave an answer that cannot be read.",
                "Report this with the correlation id.",
            ) from None
        access = access_of(issuer, subject, resolved.grants, resolved.roles)
        if generation == self._generation:
            self._keep(key, access)
        return access

    def _keep(self, key: tuple[str, str], access: Access) -> None:
        self._kept[key] = _Kept(access, self._clock() + self._ttl_seconds)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_CALLERS:
            self._kept.popitem(last=False)
