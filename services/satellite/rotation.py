"""Give a BMC a new password without ever being locked out: prepare, apply, prove, promote; settle when given up.

Invariant: whatever is killed or lies, a password that opens the BMC is in the site's secret store, under the machine's
own reference or under "pending/…". The pending one is written before the BMC hears of it, replaces the current one only
after it has opened the BMC, and is kept while the BMC may still take it. Each step looks first and can be repeated.

Attempts that may fail are counted in the pending secret before they are made: a BMC that locks an account after N
failures never gets that many from a rotation, over crashes too.
"""

from __future__ import annotations

import secrets as random
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.envelope import now_utc
from services.satellite.accounts import AccountRules, Accounts, Credentials
from services.satellite.errors import Failure, Refusal
from services.satellite.ports import Secret, Secrets

PENDING = "pending/"
# IPMI 2.0 allows 20 bytes (§22.30), and BMCs share one password between IPMI and Redfish.
_LENGTH = 20
_SIGNS = "-_."  # Password rules ask for a sign; these need no quoting in any shell, URL or vendor tool.
# When a BMC does not say: iDRAC, iLO and Supermicro lock or delay after 3 failures by default.
_LOCKOUT_AFTER = 3
_LOCKOUT_SECONDS = 600.0
# A change that was sent may be taken this much later; until then nobody overwrites the pending secret.
_LATE = timedelta(minutes=5)


@dataclass(frozen=True)
class Pending:
    """The new credentials, how far they got, and which failed attempts the BMC may have counted.

    `sent`: "no", "refused" (the BMC said no), "unanswered" (it may have taken it), "accepted".
    """

    credentials: Credentials
    rotation: str
    version: str | None
    sent: str
    proven: bool
    at: datetime
    refused: int
    refused_at: datetime
    lockout_after: int
    lockout_seconds: float

    def fields(self) -> dict[str, str]:
        """As texts, for the secret store."""
        return {
            "username": self.credentials.username,
            "password": self.credentials.password,
            "rotation": self.rotation,
            "sent": self.sent,
            "proven": "yes" if self.proven else "no",
            "at": self.at.isoformat(),
            "refused": str(self.refused),
            "refused_at": self.refused_at.isoformat(),
            "lockout_after": str(self.lockout_after),
            "lockout_seconds": str(self.lockout_seconds),
        }


def pending_of(ref: str, secret: Secret) -> Pending:
    """Read back what `Pending.fields` wrote. Raises Failure "secret_unreadable"."""
    found = secret.fields
    try:
        return Pending(
            credentials=Credentials(found["username"], found["password"]),
            rotation=found["rotation"],
            version=secret.version,
            sent=found["sent"],
            proven=found["proven"] == "yes",
            at=datetime.fromisoformat(found["at"]),
            refused=int(found["refused"]),
            refused_at=datetime.fromisoformat(found["refused_at"]),
            lockout_after=int(found["lockout_after"]),
            lockout_seconds=float(found["lockout_seconds"]),
        )
    except (KeyError, ValueError):
        raise Failure(
            "secret_unreadable",
            f"The secret {PENDING + ref!r} was not written by a rotation.",
            "Look which password opens the BMC, store it under the machine's own reference, remove this one.",
        ) from None


def new_password(rules: AccountRules) -> str:
    """A random password of letters, digits and a sign, as long as the BMC takes, 20 at most unless it wants more."""
    length = max(rules.min_length or 0, min(_LENGTH, rules.max_length or _LENGTH))
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits, _SIGNS)
    while True:
        found = "".join(random.choice("".join(kinds)) for _ in range(length))
        # A letter first: some vendors' tools take a leading sign for an option.
        if found[0].isalpha() and all(any(sign in kind for sign in found) for kind in kinds):
            return found


@dataclass(frozen=True)
class Rotation:
    """One machine's rotation `rotation` (the operation's id); `name` is for messages."""

    secrets: Secrets
    accounts: Accounts
    machine_id: str
    name: str
    rotation: str
    clock: Callable[[], datetime] = now_utc

    async def prepare(self) -> None:
        """Prove the current password and store a new one as pending."""
        ref, current = await self._current()
        pending = await self._pending(ref)
        if pending is not None and pending.rotation == self.rotation:
            return
        if pending is not None:
            await self._end_other(ref, current, pending)
            ref, current = await self._current()
            pending = await self._pending(ref)
        by = _credentials(ref, current)
        if not await self.accounts.opens(self.machine_id, by):
            raise Failure(
                "bmc_denied",
                f"{self.name}: the BMC refuses the current credentials {ref!r}; there is nothing to change them with.",
                "Store the right ones at the site, or reset the account at the BMC.",
            )
        rules = await self.accounts.rules(self.machine_id, by)
        await self._keep(ref, self._new(by, rules, pending))

    def _new(self, by: Credentials, rules: AccountRules, replaced: Pending | None) -> Pending:
        after, seconds = rules.lockout_after, rules.lockout_seconds
        return Pending(
            credentials=Credentials(by.username, new_password(rules)),
            rotation=self.rotation,
            version=replaced.version if replaced else None,
            sent="no",
            proven=False,
            at=self.clock(),
            refused=0,
            refused_at=self.clock(),
            lockout_after=_LOCKOUT_AFTER if after is None else after,
            lockout_seconds=_LOCKOUT_SECONDS if seconds is None else seconds,
        )

    async def _end_other(self, ref: str, current: Secret, other: Pending) -> None:
        """An earlier rotation was given up; find out what it left, and refuse while it may still change something."""
        kept, other = await self._which(ref, current, other)
        if kept == "pending":
            await self._make_current(ref, current, other)
            await self.secrets.remove(PENDING + ref)
        elif other.sent in ("unanswered", "accepted") and self.clock() - other.at < _LATE:
            raise Failure(
                "rotation_too_soon",
                f"{self.name}: an earlier change of its password may still take effect.",
                f"Wait until {(other.at + _LATE).isoformat()}, then rotate again.",
            )

    async def apply(self) -> bool:
        """Set the pending password at the BMC; False when it had been set before."""
        ref, current = await self._current()
        pending = await self._ours(ref, current)
        if pending is None or pending.sent == "accepted":
            return False
        if pending.sent == "unanswered":
            kept, pending = await self._which(ref, current, pending)
            if kept == "pending":
                await self._keep(ref, replace(pending, sent="accepted", proven=True))
                return False
        pending = await self._keep(ref, replace(pending, sent="unanswered", at=self.clock()))
        by = _credentials(ref, current)
        try:
            await self.accounts.set_password(self.machine_id, by, pending.credentials.password)
        except (Failure, Refusal):
            await self._keep(ref, replace(pending, sent="refused"))
            raise
        await self._keep(ref, replace(pending, sent="accepted"))
        return True

    async def prove(self) -> None:
        """Sign in with the pending password. Raises Failure when the BMC said yes to it and does not take it."""
        ref, current = await self._current()
        pending = await self._ours(ref, current)
        if pending is None or pending.proven:
            return
        # What is left over of the BMC's patience is for `settle`, which must find out what opens it.
        opened, pending = await self._opens(ref, pending, pending.credentials, spare=2)
        if not opened:
            raise Failure(
                "bmc_password_not_taken",
                f"{self.name}: the BMC accepted a new password and does not open with it.",
                "The old one is kept. Look at the BMC's password rules and firmware, then rotate again.",
            )
        await self._keep(ref, replace(pending, sent="accepted", proven=True))

    async def promote(self) -> str:
        """Make the proven password the current one; whether the old one still opens: "yes", "no" or "not_tried"."""
        ref, current = await self._current()
        pending = await self._ours(ref, current)
        if pending is None:
            return "not_tried"
        if not pending.proven:
            raise Failure("rotation_unproven", f"{self.name}: the new password was never proven.", "Rotate again.")
        await self._make_current(ref, current, pending)
        old = await self._old_opens(ref, current, pending)
        await self.secrets.remove(PENDING + ref)
        return old

    async def settle(self) -> str:
        """After a failure: which password opens the BMC, "current" or "pending"; the latter is made the current one.

        Raises Failure "bmc_neither_opens" when none does; both are kept then.
        """
        ref, current = await self._current()
        pending = await self._pending(ref)
        if pending is None or pending.rotation != self.rotation:
            return "current"
        kept, pending = await self._which(ref, current, pending)
        if kept == "pending":
            await self._make_current(ref, current, pending)
        if kept == "pending" or pending.sent in ("no", "refused"):
            await self.secrets.remove(PENDING + ref)
        return kept

    # -- parts -----------------------------------------------------------------------------------

    async def _current(self) -> tuple[str, Secret]:
        ref = await self.accounts.ref(self.machine_id)
        return ref, await self.secrets.read(ref)

    async def _pending(self, ref: str) -> Pending | None:
        try:
            return pending_of(ref, await self.secrets.read(PENDING + ref))
        except Failure as failure:
            if failure.code == "secret_missing":
                return None
            raise

    async def _ours(self, ref: str, current: Secret) -> Pending | None:
        """Our pending secret; None when it was promoted already. Raises Refusal when another rotation took over."""
        pending = await self._pending(ref)
        if pending is not None and pending.rotation == self.rotation:
            return pending
        if pending is None and current.fields.get("rotation") == self.rotation:
            return None
        raise Refusal(
            "rotation_superseded", f"{self.name}: this rotation is no longer the machine's newest.", "Nothing to do."
        )

    async def _keep(self, ref: str, pending: Pending) -> Pending:
        version = await self.secrets.write(PENDING + ref, pending.fields(), replaces=pending.version)
        return replace(pending, version=version)

    async def _make_current(self, ref: str, current: Secret, pending: Pending) -> None:
        """Ironic first: until it knows, every look of its at the BMC is a failed attempt."""
        await self.accounts.adopt(self.machine_id, pending.credentials)
        if current.fields.get("rotation") == pending.rotation:
            return
        new = {"username": pending.credentials.username, "password": pending.credentials.password}
        fields = {**current.fields, **new, "rotation": pending.rotation}
        await self.secrets.write(ref, fields, replaces=current.version)

    async def _which(self, ref: str, current: Secret, pending: Pending) -> tuple[str, Pending]:
        """Which of the two opens the BMC. What was never sent can't be it, so it is not tried."""
        if current.fields.get("rotation") == pending.rotation:
            return "pending", pending
        tries = [("current", _credentials(ref, current)), ("pending", pending.credentials)]
        if pending.sent == "no":
            return "current", pending
        if pending.sent == "accepted" and not pending.refused:  # Likely the new one.
            tries.reverse()
        for kept, credentials in tries:
            opened, pending = await self._opens(ref, pending, credentials)
            if opened:
                return kept, pending
        raise Failure(
            "bmc_neither_opens",
            f"{self.name}: the BMC opens with neither {ref!r} nor {PENDING + ref!r}; both are kept.",
            "When it has locked the account, wait and resume the operation; else reset the account at the BMC.",
        )

    async def _opens(
        self, ref: str, pending: Pending, credentials: Credentials, *, spare: int = 1
    ) -> tuple[bool, Pending]:
        """One attempt, counted before it is made; `spare` failures are left over before the BMC would lock."""
        quiet = (self.clock() - pending.refused_at).total_seconds()
        if quiet > pending.lockout_seconds:
            pending = replace(pending, refused=0)
        if pending.lockout_after and pending.refused >= max(1, pending.lockout_after - spare):
            raise Failure(
                "bmc_lockout_near",
                f"{self.name}: one more failed attempt may lock the BMC's account; nothing was tried.",
                f"Resume in {pending.lockout_seconds - quiet:.0f} s.",
            )
        before = pending.refused
        pending = await self._keep(ref, replace(pending, refused=before + 1, refused_at=self.clock()))
        try:
            opened = await self.accounts.opens(self.machine_id, credentials)
        except Failure:
            await self._keep(ref, replace(pending, refused=before))  # The BMC was not asked.
            raise
        return opened, await self._keep(ref, replace(pending, refused=0)) if opened else pending

    async def _old_opens(self, ref: str, old: Secret, pending: Pending) -> str:
        """A BMC that opens with the old password, too, has not retired it. Not tried where one failure may lock."""
        if old.fields.get("rotation") == pending.rotation or 0 < pending.lockout_after < _LOCKOUT_AFTER:
            return "not_tried"
        try:
            opened, _ = await self._opens(ref, pending, _credentials(ref, old))
        except Failure:
            return "not_tried"
        return "yes" if opened else "no"


def _credentials(ref: str, secret: Secret) -> Credentials:
    found = secret.fields
    if not found.get("username") or not found.get("password"):
        raise Failure(
            "secret_unreadable", f"The secret {ref!r} does not hold username and password.", "Store it again."
        )
    return Credentials(found["username"], found["password"])
