"""What rotating a BMC's password needs of a site, as a port: signing in once, changing a password, telling Ironic.

Adapters raise only SiteErrors and put no password into an error, not even when the BMC quotes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Credentials:
    """A BMC account. The password is left out of `repr`."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class AccountRules:
    """What the BMC says of its accounts; None: it does not say. `lockout_after` 0: an account is never locked."""

    lockout_after: int | None = None
    lockout_seconds: float | None = None
    min_length: int | None = None
    max_length: int | None = None


class Accounts(Protocol):
    """The BMC accounts of enrolled machines."""

    async def ref(self, machine_id: str) -> str:
        """The reference of the machine's credentials. Raises Failure for a machine that is not enrolled."""
        ...

    async def rules(self, machine_id: str, by: Credentials) -> AccountRules:
        """The BMC's account rules."""
        ...

    async def opens(self, machine_id: str, by: Credentials) -> bool:
        """Sign in exactly once. False: the BMC refused; Failure: it was not asked; Unanswered: nobody knows."""
        ...

    async def set_password(self, machine_id: str, by: Credentials, password: str) -> None:
        """Give `by`'s account another password. Failure: the BMC refused; Unanswered: it may have taken it."""
        ...

    async def adopt(self, machine_id: str, credentials: Credentials) -> None:
        """Let what else signs in to this BMC (Ironic) use `credentials` from now on."""
        ...
