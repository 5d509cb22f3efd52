"""Rotating a BMC's password: whatever is killed or lies, the site's store holds a password that opens the BMC."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.fleet import FLEET_FILE
from libs.contracts.envelope import now_utc
from services.satellite.accounts import AccountRules, Accounts, Credentials
from services.satellite.adapters.secret_file import FileSecrets, create_key
from services.satellite.adapters.simulated_accounts import LOCKOUT_AFTER, SimulatedAccounts, fill_store
from services.satellite.adapters.simulated_fleet import load_hardware
from services.satellite.adapters.simulated_store import SimulatedStore
from services.satellite.errors import Failure, Refusal, SiteError, Unanswered
from services.satellite.ports import Secrets
from services.satellite.rotation import PENDING, Rotation, new_password

NAME = "fra1-r1-gpu-01"
REF = f"bmc/{NAME}"
ID = "m-1"


@dataclass
class Lab:
    store: SimulatedStore
    secrets: FileSecrets
    accounts: SimulatedAccounts
    faults_file: Path

    def rotation(self, number: str = "op-1", **parts: Any) -> Rotation:
        return replace(Rotation(self.secrets, self.accounts, ID, NAME, number), **parts)

    def lie(self, how: str) -> None:
        self.faults_file.write_text(json.dumps({NAME: {"accounts": how}}))

    @property
    def account(self) -> dict[str, Any]:
        return dict(self.store.machine(NAME)["account"])

    async def kept(self, ref: str = REF) -> str | None:
        try:
            return (await self.secrets.read(ref)).fields["password"]
        except Failure:
            return None

    async def working(self) -> list[str]:
        """The references whose password opens the BMC; asked of the BMC's memory, so that it counts as no attempt."""
        found = [(ref, await self.kept(ref)) for ref in (REF, PENDING + REF)]
        return [ref for ref, password in found if password in self.account["passwords"]]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    faults = tmp_path / "faults.json"
    store = SimulatedStore(tmp_path / "site.sqlite", load_hardware(FLEET_FILE), faults, 0.0)
    create_key(tmp_path / "key")
    secrets = FileSecrets(tmp_path / "secrets", tmp_path / "key")
    fill_store(store, secrets)
    store.put({"id": ID, "name": NAME, "bmc_address": "", "step": None})
    return Lab(store, secrets, SimulatedAccounts(store), faults)


def steps(rotation: Rotation) -> list[Callable[[], Awaitable[object]]]:
    return [rotation.prepare, rotation.apply, rotation.prove, rotation.promote]


async def rotate(rotation: Rotation) -> object:
    ended: object = None
    for step in steps(rotation):
        ended = await step()
    return ended


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(SiteError) as failed:
        await asked
    return failed.value.code


async def test_a_rotation_ends_with_a_new_password_that_opens_and_an_old_one_that_does_not(lab: Lab) -> None:
    old = await lab.kept()

    assert await rotate(lab.rotation()) == "no"

    new = await lab.kept()
    assert new != old
    assert lab.account["passwords"] == [new]
    assert await lab.secrets.refs(PENDING) == ()


async def test_every_step_may_come_twice_and_after_the_end(lab: Lab) -> None:
    rotation = lab.rotation()
    for step in steps(rotation):
        await step()
        await step()
    new = await lab.kept()
    for step in steps(rotation)[1:]:
        await step()

    assert (await lab.kept(), lab.account["passwords"]) == (new, [new])
    assert await rotation.settle() == "current"


class Killed(BaseException):
    """The satellite was killed here."""


class Killing:
    """A port whose call number `at`, counted by one `clock`, kills the satellite before or after it has its effect."""

    def __init__(self, port: object, clock: itertools.count[int], at: int, after: bool) -> None:
        self._port, self._clock, self._at, self._after = port, clock, at, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)

        async def call(*given: Any, **named: Any) -> Any:
            now = next(self._clock)
            if now == self._at and not self._after:
                raise Killed
            try:
                return await real(*given, **named)
            finally:
                if now == self._at:
                    raise Killed

        return call


def calls_of_a_rotation() -> int:
    """How many calls of ports one rotation makes; the test below says when this is too few."""
    return 27


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(calls_of_a_rotation()))
async def test_killed_at_any_call_the_store_opens_the_bmc_and_the_rotation_goes_on(
    lab: Lab, at: int, after: bool
) -> None:
    clock = itertools.count()
    secrets: Secrets = Killing(lab.secrets, clock, at, after)  # type: ignore[assignment]
    accounts: Accounts = Killing(lab.accounts, clock, at, after)  # type: ignore[assignment]
    rotation = lab.rotation(secrets=secrets, accounts=accounts)

    for step in steps(rotation):
        try:
            await step()
        except Killed:
            assert await lab.working(), "locked out while the satellite is dead"
            await step()  # The command is resumed by the next satellite.
        assert await lab.working()

    assert next(clock) > at, "the rotation makes fewer calls than this test tries"
    assert await lab.working() == [REF]
    assert await lab.secrets.refs(PENDING) == ()
    assert lab.account["refused"] <= 1


async def test_a_rotation_makes_no_more_calls_than_are_killed_above(lab: Lab) -> None:
    clock = itertools.count()
    ports = {name: Killing(getattr(lab, name), clock, -1, False) for name in ("secrets", "accounts")}
    await rotate(lab.rotation(**ports))

    assert next(clock) == calls_of_a_rotation()


@pytest.mark.parametrize("at", range(calls_of_a_rotation()))
async def test_killed_at_any_call_and_given_up_one_working_password_is_kept(lab: Lab, at: int) -> None:
    clock = itertools.count()
    ports = {name: Killing(getattr(lab, name), clock, at, True) for name in ("secrets", "accounts")}
    with pytest.raises(Killed):
        await rotate(lab.rotation(**ports))

    kept = await lab.rotation().settle()

    assert kept in ("current", "pending")
    assert await lab.working() == [REF]
    # And the next one goes through with nothing left behind, once nothing that was sent can be taken late.
    assert await rotate(lab.rotation("op-2", clock=lambda: now_utc() + timedelta(minutes=6))) == "no"
    assert await lab.working() == [REF]
    assert await lab.secrets.refs(PENDING) == ()


async def test_a_bmc_that_says_yes_and_does_nothing_keeps_the_old_password(lab: Lab) -> None:
    lab.lie("ignore")
    old = await lab.kept()
    rotation = lab.rotation()
    await rotation.prepare()
    await rotation.apply()

    assert await refused(rotation.prove()) == "bmc_password_not_taken"
    assert await refused(rotation.promote()) == "rotation_unproven"
    assert await rotation.settle() == "current"
    assert (await lab.kept(), lab.account["passwords"]) == (old, [old])
    # The BMC might take it yet: the pending one is kept for now, and nobody overwrites it.
    assert await lab.secrets.refs(PENDING) == (PENDING + REF,)
    assert await refused(lab.rotation("op-2").prepare()) == "rotation_too_soon"


async def test_what_a_bmc_took_late_is_found_by_the_next_rotation(lab: Lab) -> None:
    lab.lie("ignore")
    first = lab.rotation()
    await first.prepare()
    await first.apply()
    await refused(first.prove())
    await first.settle()
    pending = await lab.kept(PENDING + REF)
    lab.accounts._change(NAME, passwords=[pending])  # Now it takes it.
    lab.lie("")

    assert await lab.working() == [PENDING + REF]
    assert await rotate(lab.rotation("op-2")) == "no"
    assert await lab.working() == [REF]


async def test_a_bmc_that_refuses_a_password_leaves_nothing_behind(lab: Lab) -> None:
    lab.lie("refuse")
    old = await lab.kept()
    rotation = lab.rotation()
    await rotation.prepare()

    assert await refused(rotation.apply()) == "bmc_password_refused"
    assert await rotation.settle() == "current"
    assert (await lab.kept(), await lab.secrets.refs(PENDING)) == (old, ())
    lab.lie("")
    assert await rotate(lab.rotation("op-2")) == "no"


@pytest.mark.parametrize("how", ["lose", "drop"])
async def test_an_answer_that_never_came_is_found_out_at_the_bmc(lab: Lab, how: str) -> None:
    lab.lie(how)
    rotation = lab.rotation()
    await rotation.prepare()
    with pytest.raises(Unanswered):
        await rotation.apply()
    lab.lie("")

    assert await rotation.apply() is (how == "drop")
    await rotation.prove()
    assert await rotation.promote() == "no"
    assert await lab.working() == [REF]


async def test_a_bmc_that_goes_on_opening_with_the_old_password_is_told(lab: Lab) -> None:
    lab.lie("both")

    assert await rotate(lab.rotation()) == "yes"


async def test_credentials_that_do_not_open_are_not_rotated(lab: Lab) -> None:
    lab.accounts._change(NAME, passwords=["somebody-elses"])

    assert await refused(lab.rotation().prepare()) == "bmc_denied"
    assert await lab.secrets.refs(PENDING) == ()


async def test_however_often_it_is_tried_the_account_is_never_locked(lab: Lab) -> None:
    rotation = lab.rotation()
    await rotation.prepare()
    await rotation.apply()
    lab.accounts._change(NAME, passwords=["somebody-elses"])
    codes = [await refused(step()) for _ in range(6) for step in (rotation.prove, rotation.settle)]

    assert codes[0] == "bmc_password_not_taken"
    assert codes[-1] == "bmc_lockout_near"
    assert lab.account["refused"] < LOCKOUT_AFTER
    assert lab.account["locked_until"] == 0.0
    assert len({await lab.kept(REF), await lab.kept(PENDING + REF)}) == 2, "both are kept for a person"


async def test_when_the_lock_is_over_it_is_tried_again(lab: Lab) -> None:
    rotation = lab.rotation()
    await rotation.prepare()
    await rotation.apply()
    good = lab.account["passwords"]
    lab.accounts._change(NAME, passwords=["somebody-elses"])
    for _ in range(6):
        await refused(rotation.prove())
    lab.accounts._change(NAME, passwords=good)

    assert await refused(rotation.prove()) == "bmc_lockout_near"
    later = replace(rotation, clock=lambda: now_utc() + timedelta(seconds=31))
    await later.prove()
    assert await later.promote() == "no"


async def test_two_rotations_of_one_machine_do_not_mix(lab: Lab) -> None:
    first, second = lab.rotation("op-1"), lab.rotation("op-2")
    await first.prepare()
    await second.prepare()

    with pytest.raises(Refusal) as failed:
        await first.apply()
    assert failed.value.code == "rotation_superseded"
    assert await first.settle() == "current"
    assert await rotate(second) == "no"


@pytest.mark.parametrize(
    ("rules", "length"),
    [
        (AccountRules(), 20),
        (AccountRules(max_length=16), 16),
        (AccountRules(min_length=24, max_length=40), 24),
    ],
    ids=["unknown", "short", "long"],
)
def test_a_new_password_keeps_the_bmcs_rules(rules: AccountRules, length: int) -> None:
    made = {new_password(rules) for _ in range(50)}

    assert len(made) == 50
    assert {len(password) for password in made} == {length}
    assert all(password[0].isalpha() and any(sign in "-_." for sign in password) for password in made)


def test_no_repr_shows_a_password() -> None:
    assert "hobbes" not in repr(Credentials("root", "hobbes"))
