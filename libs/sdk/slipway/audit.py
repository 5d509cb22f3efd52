"""`client.audit`: proofs about what is kept, how long it is kept, and what is held. For operators and auditors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from slipway.collection import Collection, segment
from slipway.doors import BOTH, Door
from slipway.models import Document, Page


class Audit(Collection[Document]):
    """Chains, checkpoints, removals, keys; retention and legal holds."""

    async def gaps(self) -> Any:
        """Missing sequence numbers and entity versions, and how far each service's events go."""
        return await self._read("/audit/gaps", Door.OPERATOR)

    async def chains(self) -> list[dict[str, Any]]:
        """Every service, where its chain ends and up to where it is signed."""
        return list((await self._read("/audit/chain", Door.OPERATOR))["items"])

    async def chain_page(self, service: str, after: int, digest: str, until: int | None, limit: int) -> dict[str, Any]:
        """Have the service walk a stretch of a chain: {checked, sequence, digest, problems, more}."""
        found = await self._read(
            "/audit/chain",
            Door.OPERATOR,
            service=service,
            after=after,
            digest=digest or None,
            until=until,
            limit=limit,
        )
        return dict(found)

    async def checkpoints(self, service: str | None = None) -> AsyncIterator[Page[Document]]:
        """Every signed checkpoint."""
        async for page in self._pages("/audit/checkpoints", service=service, limit=200):
            yield page

    async def removals(self, service: str | None = None) -> AsyncIterator[Page[Document]]:
        """Every signed removal of expired events."""
        async for page in self._pages("/audit/removals", service=service, limit=200):
            yield page

    async def keys(self, *, door: Door | None = None) -> dict[str, Any]:
        """The public keys that ever signed, as a JWK Set."""
        chosen = self._transport.door(BOTH, door)
        return dict((await self._transport.request(chosen, "GET", "/audit/keys")).document)

    async def make_checkpoint(self) -> list[dict[str, Any]]:
        """Sign every chain that has grown since it was signed last."""
        return list((await self._write("POST", "/audit/checkpoints"))["items"])

    async def retention(self) -> dict[str, Any]:
        """{in_force, pending, history}."""
        return dict(await self._read("/audit/retention", Door.OPERATOR))

    async def preview_retention(self, keep_days: int | None = None) -> dict[str, Any]:
        """What would be removed now, by `keep_days` or else by the policy that was set last."""
        return dict(await self._read("/audit/retention/preview", Door.OPERATOR, keep_days=keep_days))

    async def set_retention(self, keep_days: int | None, reason: str) -> Document:
        """Set how long events are kept (None: for ever). The version that is there now is replaced."""
        history = (await self.retention())["history"]
        version = str(history[0]["version"]) if history else "0"
        path = self._transport.request
        body = {"keep_days": keep_days, "reason": reason}
        answer = await path(Door.OPERATOR, "PUT", "/audit/retention", json=body, if_match=version)
        return Document.of(answer.document)

    async def run_retention(self, cursor: str | None = None) -> dict[str, Any]:
        """One bounded step of a round: {removed, held, next_cursor}."""
        return dict(await self._write("POST", "/audit/retention/run", {"cursor": cursor}))

    async def holds(self, *, in_force: bool | None = None) -> AsyncIterator[Page[Document]]:
        """Legal holds, the newest first."""
        async for page in self._pages("/audit/holds", in_force=in_force):
            yield page

    async def place_hold(self, reason: str, **what: str | None) -> Document:
        """Hold events of an `entity_id`, a `tenant` or a `correlation_id`."""
        return Document.of(await self._write("POST", "/audit/holds", {**what, "reason": reason}))

    async def release_hold(self, hold_id: str, reason: str) -> Document:
        """Release a hold; what it kept goes with the next round of retention."""
        path = f"/audit/holds/{segment(hold_id)}/release"
        return Document.of(await self._write("POST", path, {"reason": reason}))

    async def _pages(self, path: str, **query: Any) -> AsyncIterator[Page[Document]]:
        async for page in self._transport.pages(Door.OPERATOR, path, Document, query):
            yield page
