"""The accounts of real BMCs: Redfish's AccountService (DSP0266 §13, AccountService 1.10, ManagerAccount 1.8).

An attempt to sign in is one request for the machine's system, never repeated: a failed one may count towards a
lock-out. The new password is passed on to Ironic, which keeps the BMC's credentials on the node.
"""

from __future__ import annotations

from typing import Any

import httpx

from services.satellite.accounts import AccountRules, Credentials
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal
from services.satellite.adapters.ironic_loop import IronicSite, for_good, patiently
from services.satellite.adapters.machine_reads import CREDENTIALS_REF
from services.satellite.adapters.redfish import Document, RedfishSystem
from services.satellite.errors import Failure, Refusal, Unanswered

SERVICE = "/redfish/v1/AccountService"
_SECONDS = 20.0


class RedfishAccounts:
    """See `services.satellite.accounts.Accounts`."""

    def __init__(self, site: IronicSite) -> None:
        self._site = site

    async def ref(self, machine_id: str) -> str:
        """See the port: kept on the node since enrolment."""
        node = await self._node(machine_id)
        ref = node.extra.get(CREDENTIALS_REF)
        if not isinstance(ref, str):
            raise Failure("node_foreign", f"{node.name}: the node was not enrolled by Slipway.", "Enrol it.")
        return ref

    async def rules(self, machine_id: str, by: Credentials) -> AccountRules:
        """See the port. What is missing or no number is not known."""
        async with await self._documents(machine_id, by) as bmc:
            service = await bmc.get(SERVICE)
        return AccountRules(
            lockout_after=_whole(service.get("AccountLockoutThreshold")),
            lockout_seconds=_whole(service.get("AccountLockoutDuration")),
            min_length=_whole(service.get("MinPasswordLength")),
            max_length=_whole(service.get("MaxPasswordLength")),
        )

    async def opens(self, machine_id: str, by: Credentials) -> bool:
        """See the port."""
        node = await self._node(machine_id)
        path = str(node.driver_info.get("redfish_system_id", ""))
        async with self._client(node, by) as client:
            try:
                answer = await client.get(path)
            except httpx.ConnectError as error:
                raise Failure("bmc_unreachable", f"{node.name}: its BMC can't be reached.", _LOOK) from error
            except httpx.HTTPError as error:
                raise Unanswered("bmc_unanswered", f"{node.name}: its BMC did not answer.", _LOOK) from error
        if answer.status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED):
            return answer.status_code == httpx.codes.OK
        raise Failure("bmc_invalid_answer", f"{node.name}: {path}: HTTP {answer.status_code}", _LOOK)

    async def set_password(self, machine_id: str, by: Credentials, password: str) -> None:
        """See the port."""
        node = await self._node(machine_id)
        async with await self._documents(machine_id, by) as bmc:
            account = await _account(bmc, node.name, by.username)
        async with self._client(node, by) as client:
            path = str(account["@odata.id"])
            try:
                headers = await _match(client, path)
            except httpx.HTTPError as error:
                raise Failure("bmc_unreachable", f"{node.name}: {path} can't be read.", _LOOK) from error
            try:
                answer = await client.patch(path, json={"Password": password}, headers=headers)
            except httpx.HTTPError as error:
                raise Unanswered(
                    "bmc_unanswered", f"{node.name}: its BMC did not say whether it took a new password.", _LOOK
                ) from error
        _judge(node.name, answer, (by.password, password))

    async def adopt(self, machine_id: str, credentials: Credentials) -> None:
        """See the port: the node's own copy."""
        changes = {
            "/driver_info/redfish_username": credentials.username,
            "/driver_info/redfish_password": credentials.password,
        }
        try:
            await patiently(machine_id, lambda: self._site.client.patch(machine_id, changes))
        except IronicRefusal as error:
            raise for_good(machine_id, machine_id, error) from error

    async def _node(self, machine_id: str) -> Node:
        try:
            return await patiently(machine_id, lambda: self._site.client.node(machine_id))
        except IronicRefusal as error:
            raise for_good(machine_id, machine_id, error) from error

    async def _documents(self, machine_id: str, by: Credentials) -> RedfishSystem:
        node = await self._node(machine_id)
        url = f"{node.driver_info.get('redfish_address', '')}{node.driver_info.get('redfish_system_id', '')}"
        return RedfishSystem(node.name, url, by.username, by.password, verify=self._site.reads.verify)

    def _client(self, node: Node, by: Credentials) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=str(node.driver_info.get("redfish_address", "")),
            auth=(by.username, by.password),
            timeout=_SECONDS,
            verify=self._site.reads.verify,
            headers={"Accept": "application/json"},
        )


_LOOK = "Look at the machine's BMC; reset it when it stays like this."


async def _account(bmc: RedfishSystem, name: str, username: str) -> Document:
    """The one account of this user name; empty slots have blank names."""
    service = await bmc.get(SERVICE)
    link = service.get("Accounts")
    path = link.get("@odata.id") if isinstance(link, dict) else None
    if not isinstance(path, str):
        raise Failure("bmc_invalid_answer", f"{name}: its AccountService shows no accounts.", _LOOK)
    same = [account for account in await bmc.collection(path) if account.get("UserName") == username]
    if len(same) != 1 or not isinstance(same[0].get("@odata.id"), str):
        raise Failure(
            "bmc_invalid_answer",
            f"{name}: its BMC shows {len(same)} accounts called {username!r}, not one.",
            "Correct the account at the BMC, or the user name in the site's secret store.",
        )
    return same[0]


async def _match(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """If-Match for BMCs that ask for it (DSP0266 §6.5); those that give no ETag get "*", which all understand."""
    etag = (await client.get(path)).headers.get("ETag")
    return {"If-Match": etag or "*"}


def _judge(name: str, answer: httpx.Response, words: tuple[str, ...]) -> None:
    """2xx is a yes that must still be proven. 5xx may have been a yes, too."""
    if answer.is_success:
        return
    said = _said(answer)
    for word in words:
        said = said.replace(word, "…")  # Some BMCs quote the value they refuse.
    if answer.status_code >= 500:
        raise Unanswered("bmc_unanswered", f"{name}: setting a password: HTTP {answer.status_code}{said}", _LOOK)
    raise Refusal(
        "bmc_password_refused",
        f"{name}: its BMC refuses a new password: HTTP {answer.status_code}{said}",
        "Look at the BMC's password rules and at the account's privileges, then rotate again.",
    )


def _said(answer: httpx.Response) -> str:
    try:
        found: Any = answer.json()["error"]
        said = found.get("@Message.ExtendedInfo") or [{}]
        return f" ({str(said[0].get('Message') or found.get('message') or '')[:200]})"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
