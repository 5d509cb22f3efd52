"""Reservations in a running Kea, through config-get, config-test and config-set (reservation-add is a paid hook).

Invariants: nothing is set that did not pass Kea's own test; the configuration before it is kept on disk and set again
when setting fails half-way; orders that wait for one another go in with one set. What was asked for is kept, too, so
that a Kea that was started with an older file gets it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from services.satellite.adapters.kea_config import Document, Planned, Wanted, owner, plan, read_reservations, subnets
from services.satellite.adapters.kea_control import KeaControl, KeaRefused
from services.satellite.dhcp import Lease, Refused, Reservation, Reserved
from services.satellite.errors import Failure, SiteError

log = structlog.get_logger(__name__)
# How often to begin anew when somebody else changed the configuration between our look and our change.
_ATTEMPTS = 3


@dataclass
class _Waiting:
    wanted: Wanted
    done: asyncio.Future[Reserved]


class KeaDhcp:
    """`folder` keeps the last good configuration and what was asked for, readable by its owner only."""

    def __init__(self, control: KeaControl, folder: Path) -> None:
        self._control = control
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._last_good, self._asked_file = folder / "kea-last-good.json", folder / "kea-asked.json"
        self._asked = _read_asked(self._asked_file)
        self._waiting: list[_Waiting] = []
        self._turn = asyncio.Lock()

    async def reserve(self, machine_id: str, machine_name: str, wanted: Sequence[Reservation]) -> Reserved:
        """Set the machine's reservations, together with those that others ask for meanwhile."""
        mine = _Waiting(Wanted(machine_id, machine_name, tuple(wanted)), asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        async with self._turn:
            if not mine.done.done():
                await self._serve()
        return await mine.done

    async def reservations(self) -> list[Reservation]:
        return read_reservations(await self._control.config())

    async def leases(self) -> list[Lease]:
        return await self._control.leases()

    async def put_back(self) -> int:
        """Make again what Kea lost."""
        async with self._turn:
            if not self._asked:
                return 0
            there = {owner(e) for s in subnets(await self._control.config()) for e in s.get("reservations") or []}
            gone = [w for key, w in self._asked.items() if key not in there and w.reservations]
            if not gone:
                return 0
            planned, _ = await self._apply(gone)
            back = sum(bool(applied) for applied in planned.applied.values())
            if back:
                log.warning("dhcp_reservations_put_back", machines=back)
            return back

    async def _serve(self) -> None:
        """Do everything that waits; each one gets its answer or the error."""
        batch, self._waiting = self._waiting, []
        newest = {waiting.wanted.machine_id: waiting.wanted for waiting in batch}
        try:
            planned, lasting = await self._apply(list(newest.values()))
        except BaseException as error:
            for waiting in batch:
                if not waiting.done.done():
                    cause = error if isinstance(error, SiteError) else _interrupted(error)
                    waiting.done.set_exception(cause)
                    waiting.done.exception()  # Its caller may be gone; that is no news.
            if not isinstance(error, SiteError):
                raise
            return
        self._keep(newest)
        for waiting in batch:
            key = waiting.wanted.machine_id
            answer = Reserved(tuple(planned.applied[key]), tuple(planned.refused[key]), lasting)
            if not waiting.done.done():
                waiting.done.set_result(answer)

    async def _apply(self, machines: list[Wanted]) -> tuple[Planned, bool]:
        """The plan that was set, and whether it outlives a restart of Kea."""
        for _ in range(_ATTEMPTS):
            before = await self._control.config()
            planned = await self._passing(before, machines)
            if planned.config == before:
                return planned, True
            if await self._control.config() != before:
                continue  # Somebody else changed it; their change must not be lost.
            await self._set(planned.config, before)
            return planned, await self._write()
        raise Failure(
            "dhcp_busy",
            f"Kea's configuration was changed by somebody else {_ATTEMPTS} times while we changed it.",
            "Find out which other program writes Kea's configuration; try again.",
        )

    async def _passing(self, before: Document, machines: list[Wanted]) -> Planned:
        """A plan that Kea's own test accepts: machines that it objects to are left as they were."""
        planned = plan(before, machines)
        if planned.config == before:
            return planned
        try:
            await self._control.test(planned.config)
        except KeaRefused as error:
            if len(machines) == 1:
                await self._blameless(before)
                return _unchanged(before, machines[0], error.said)
        else:
            return planned
        half = len(machines) // 2
        first = await self._passing(before, machines[:half])
        rest = await self._passing(first.config, machines[half:])
        return Planned(rest.config, first.applied | rest.applied, first.refused | rest.refused)

    async def _blameless(self, before: Document) -> None:
        """Raise when Kea's own configuration fails its test as it is: then no machine is to blame."""
        try:
            await self._control.test(before)
        except KeaRefused as error:
            raise Failure(
                "dhcp_configuration_broken",
                f"Kea's running configuration does not pass its own test: {error.said}",
                "Correct Kea's configuration; reservations are made after that.",
            ) from error

    async def _set(self, config: Document, before: Document) -> None:
        """Set, with the way back kept on disk first. Raises after the last good one is in force again."""
        _write_private(self._last_good, json.dumps(before))
        try:
            await self._control.set(config)
            return
        except SiteError as error:
            log.error("dhcp_set_failed", error=error.message)
            failed = error
        try:
            await self._control.set(before)
        except SiteError as error:
            raise Failure(
                "dhcp_not_restored",
                f"{failed.message}; and the last good configuration could not be set again: {error.message}",
                f"Restart kea-dhcp4 from its file; the last good configuration is in {self._last_good.name} below "
                "the satellite's state folder.",
            ) from error
        raise Failure("dhcp_set_failed", f"{failed.message}; the last good configuration is in force.", "Try again.")

    async def _write(self) -> bool:
        try:
            await self._control.write()
        except SiteError as error:
            log.warning("dhcp_not_written", error=error.message)
            return False
        return True

    def _keep(self, newest: dict[str, Wanted]) -> None:
        self._asked |= newest
        self._asked = {key: wanted for key, wanted in self._asked.items() if wanted.reservations}
        _write_private(self._asked_file, json.dumps([asdict(wanted) for wanted in self._asked.values()]))


def _unchanged(before: Document, machine: Wanted, said: str) -> Planned:
    refused = [Refused(w.hw_address, w.ip_address, f"Kea refuses it: {said}") for w in machine.reservations]
    kept = [found for found in read_reservations(before) if found.machine_id == machine.machine_id]
    return Planned(before, {machine.machine_id: kept}, {machine.machine_id: refused})


def _interrupted(error: BaseException) -> SiteError:
    return Failure("dhcp_interrupted", f"the change was broken off ({type(error).__name__})", "Try again.")


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all; Kea's configuration may hold the password of its lease database."""
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


def _read_asked(path: Path) -> dict[str, Wanted]:
    try:
        kept = json.loads(path.read_text())
        found = [Wanted(k["machine_id"], k["name"], tuple(Reservation(**r) for r in k["reservations"])) for k in kept]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        # The hub asks again for what matters; a file that a full disk cut short must not stop the satellite.
        log.warning("dhcp_asked_unreadable", path=str(path), error=str(error))
        return {}
    return {wanted.machine_id: wanted for wanted in found}
