"""The BMC accounts of the simulated site: a password for each machine, a lock after five failures.

A machine's fault "accounts" makes its BMC lie: "ignore" says yes and does nothing, "refuse" says no, "lose" takes the
password and does not answer, "drop" does neither, "both" goes on opening with the old one.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from services.satellite.accounts import AccountRules, Credentials
from services.satellite.adapters.secret_file import FileSecrets
from services.satellite.adapters.simulated_store import SimulatedStore
from services.satellite.errors import Failure, Refusal, Unanswered

USER = "slipway"
LOCKOUT_AFTER, LOCKOUT_SECONDS = 5, 30
_NEVER: dict[str, Any] = {"passwords": [], "refused": 0, "locked_until": 0.0}


class SimulatedAccounts:
    """See `services.satellite.accounts.Accounts`."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store

    async def ref(self, machine_id: str) -> str:
        return f"bmc/{self._name(machine_id)}"

    async def rules(self, machine_id: str, by: Credentials) -> AccountRules:
        await self._signed_in(machine_id, by)
        return AccountRules(LOCKOUT_AFTER, LOCKOUT_SECONDS, 8, 20)

    async def opens(self, machine_id: str, by: Credentials) -> bool:
        name = self._name(machine_id)
        account = self._account(name)
        if account["locked_until"] > time.time():
            return False
        if by.username == USER and by.password in account["passwords"]:
            self._change(name, refused=0)
            return True
        refused = account["refused"] + 1
        locked = time.time() + LOCKOUT_SECONDS if refused >= LOCKOUT_AFTER else 0.0
        self._change(name, refused=refused, locked_until=locked)
        return False

    async def set_password(self, machine_id: str, by: Credentials, password: str) -> None:
        name = self._name(machine_id)
        await self._signed_in(machine_id, by)
        fault = self._store.faults(name).get("accounts", "")
        if fault == "refuse":
            raise Refusal(
                "bmc_password_refused", f"{name}: its BMC refuses a new password: used before.", "Rotate again."
            )
        if fault not in ("ignore", "drop"):
            kept = self._account(name)["passwords"][-1:] if fault == "both" else []
            self._change(name, passwords=[*kept, password])
        if fault in ("lose", "drop"):
            raise Unanswered("bmc_unanswered", f"{name}: its BMC did not say whether it took a new password.", "Look.")

    async def adopt(self, machine_id: str, credentials: Credentials) -> None:
        self._name(machine_id)

    async def _signed_in(self, machine_id: str, by: Credentials) -> None:
        if not await self.opens(machine_id, by):
            raise Failure("bmc_denied", f"{self._name(machine_id)}: the BMC refuses our credentials", "Look at it.")

    def _name(self, machine_id: str) -> str:
        node = self._store.node(machine_id)
        if node is None:
            raise Failure("node_unknown", f"Ironic has no node {machine_id}.", "Enrol the machine first.")
        return str(node["name"])

    def _account(self, name: str) -> dict[str, Any]:
        return {**_NEVER, **(self._store.machine(name).get("account") or {})}

    def _change(self, name: str, **changes: object) -> None:
        self._store.change(name, account={**self._account(name), **changes})


def fill_store(store: SimulatedStore, kept: FileSecrets) -> None:
    """Give every machine that has none a password at its BMC and in the site's secret store."""
    for machine in store.hardware.values():
        if store.machine(machine.name).get("account"):
            continue
        password = secrets.token_urlsafe(12)
        kept.put(f"bmc/{machine.name}", json.dumps({"username": USER, "password": password}).encode())
        store.change(machine.name, account={**_NEVER, "passwords": [password]})
