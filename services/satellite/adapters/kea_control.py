"""Kea's control agent: one command, one answer. For Kea 2.2 to 2.6, with the lease commands' hook or without."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from libs.contracts.hardware_ids import known_port
from services.satellite.dhcp import Lease, LeaseState
from services.satellite.errors import Failure, Refusal, SiteError

Document = dict[str, Any]
_SECONDS = 20.0
_PAGE = 1000
_OK, _ERROR, _UNSUPPORTED, _EMPTY = 0, 1, 2, 3
_STATES = {0: LeaseState.ACTIVE, 1: LeaseState.DECLINED, 2: LeaseState.EXPIRED}
# Kea's word for a lease that never ends.
_FOREVER = 0xFFFFFFFF


class KeaRefused(Refusal):
    """Kea answered no (result 1); `said` is its own text."""

    def __init__(self, command: str, said: str) -> None:
        super().__init__(
            "dhcp_refused", f"Kea refuses {command}: {said}", "Correct what Kea names; nothing was changed."
        )
        self.said = said


class KeaControl:
    """The agent at `url`. Raises Failure dhcp_unreachable or dhcp_invalid_answer, KeaRefused for a no."""

    def __init__(self, url: str, user_and_password: tuple[str, str] | None = None) -> None:
        self._client = httpx.AsyncClient(base_url=url, auth=user_and_password, timeout=_SECONDS, trust_env=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def config(self) -> Document:
        """The running configuration, in the form that `set` takes."""
        found = await self._ask("config-get")
        inner = found.get("Dhcp4")
        if not isinstance(inner, dict):
            raise _invalid("config-get", "there is no Dhcp4 in it")
        return {"Dhcp4": inner}  # Kea 2.4 adds a hash beside it that config-set refuses.

    async def test(self, config: Document) -> None:
        await self._ask("config-test", config)

    async def set(self, config: Document) -> None:
        await self._ask("config-set", config)

    async def write(self) -> None:
        """Let Kea write the running configuration into the file that it starts from."""
        await self._ask("config-write")

    async def leases(self) -> list[Lease]:
        """All leases, page by page."""
        found: list[Lease] = []
        start = "start"
        while True:
            page = await self._ask("lease4-get-page", {"from": start, "limit": _PAGE})
            rows = page.get("leases") or []
            found += [lease for row in rows if (lease := _lease(row)) is not None]
            if len(rows) < _PAGE:
                return found
            start = str(rows[-1]["ip-address"])

    async def _ask(self, command: str, arguments: Document | None = None) -> Document:
        body = {"command": command, "service": ["dhcp4"], **({"arguments": arguments} if arguments is not None else {})}
        try:
            answer = await self._client.post("/", json=body)
        except httpx.HTTPError as error:
            raise Failure(
                "dhcp_unreachable",
                f"Kea's control agent does not answer {command}: {str(error) or type(error).__name__}",
                "Start kea-ctrl-agent, or correct SLIPWAY_KEA_URL.",
            ) from error
        return _arguments(command, answer)


def _arguments(command: str, answer: httpx.Response) -> Document:
    if answer.status_code in (401, 403):
        words = f"Kea's control agent refuses our credentials (HTTP {answer.status_code})"
        raise Failure("dhcp_denied", words, "Correct SLIPWAY_KEA_CREDENTIALS_FILE.")
    try:
        document = answer.json()
    except ValueError:
        raise _invalid(command, f"HTTP {answer.status_code} without JSON") from None
    first = document[0] if isinstance(document, list) and document else document
    if answer.status_code != 200 or not isinstance(first, dict) or not isinstance(first.get("result"), int):
        raise _invalid(command, f"HTTP {answer.status_code}: {str(document)[:200]}")
    said = str(first.get("text") or "")
    match first["result"]:
        case result if result in (_OK, _EMPTY):
            found = first.get("arguments")
            return found if isinstance(found, dict) else {}
        case result if result == _UNSUPPORTED:
            raise Failure(
                "no_such_resource",
                f"this Kea has no {command}: {said}",
                "Load libdhcp_lease_cmds.so (hooks-libraries) to let leases be seen.",
            )
        # The agent answers in the server's place when the server is down.
        case _ if "unable to forward command" in said.lower():
            raise Failure("dhcp_unreachable", f"kea-dhcp4 does not answer {command}: {said}", "Start kea-dhcp4.")
    raise KeaRefused(command, said)


def _invalid(command: str, words: str) -> SiteError:
    return Failure("dhcp_invalid_answer", f"Kea's answer to {command} makes no sense: {words}", "Look at Kea's log.")


def _lease(row: Document) -> Lease | None:
    """One lease; None for a row without an address, which tells nothing."""
    address, state = row.get("ip-address"), _STATES.get(row.get("state", 0))
    if not isinstance(address, str) or state is None:
        return None
    lasts, since = row.get("valid-lft"), row.get("cltt")
    end = None
    if isinstance(lasts, int) and isinstance(since, int) and lasts != _FOREVER:
        end = datetime.fromtimestamp(since, UTC) + timedelta(seconds=lasts)
    # Over InfiniBand the hardware address is blank and the client identifier ends with the port's GUID.
    port = known_port(row.get("hw-address")) or known_port(str(row.get("client-id") or "")[-23:])
    return Lease(port, address, state, end, str(row.get("hostname") or ""))
