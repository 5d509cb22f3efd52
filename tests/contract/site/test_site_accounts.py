"""The BMC accounts' contract, and a whole rotation: on the simulated site and on real Ironic with Redfish BMCs."""

from __future__ import annotations

import pytest

from libs.contracts.site import SiteCommand
from services.satellite.accounts import Credentials
from services.satellite.errors import Refusal, SiteError, Unanswered
from services.satellite.rotation import PENDING, Rotation
from tests.contract.site.conftest import SiteUnderTest

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    # openstacksdk 4 warns about parts of itself in every call.
    *(
        pytest.mark.filterwarnings(f"ignore::openstack.warnings.{name}")
        for name in ("OpenStackDeprecationWarning", "RemovedInSDK50Warning", "RemovedInSDK60Warning")
    ),
]


async def rotation_of(under_test: SiteUnderTest, rotation: str = "op-1") -> Rotation:
    """A rotation of a machine that no other test has."""
    machine = under_test.machine()
    await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))
    ids = SiteCommand(**under_test.ids(machine))
    site = under_test.site
    assert site.secrets is not None and site.accounts is not None
    return Rotation(site.secrets, site.accounts, ids.machine_id, ids.machine_name, rotation)


async def current(rotation: Rotation) -> Credentials:
    found = (await rotation.secrets.read(await rotation.accounts.ref(rotation.machine_id))).fields
    return Credentials(found["username"], found["password"])


async def test_a_whole_rotation_leaves_one_password_that_opens(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)
    old = await current(rotation)

    await rotation.prepare()
    assert await rotation.apply() is True
    assert await rotation.apply() is False
    # Between the two, reading the BMC goes on: the pending password is tried when the current one is refused.
    await under_test.site.bare_metal.collect(rotation.machine_id, "redfish.power")
    await rotation.prove()
    assert await rotation.promote() == "no"

    new = await current(rotation)
    assert new.password != old.password
    assert await rotation.accounts.opens(rotation.machine_id, new)
    assert not await rotation.accounts.opens(rotation.machine_id, old)
    assert await rotation.secrets.refs(PENDING) == ()
    await under_test.site.bare_metal.collect(rotation.machine_id, "redfish.system")
    state = {node.machine_id: node for node in await under_test.site.bare_metal.nodes()}[rotation.machine_id]
    assert (state.maintenance, state.fault) == (False, "")


async def test_ironic_goes_on_with_the_new_password(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)
    for step in (rotation.prepare, rotation.apply, rotation.prove, rotation.promote):
        await step()

    machine = next(m for m in under_test.fleet if m.name == rotation.name)
    order = under_test.sanitize_order(machine, "after-rotation")
    done = await under_test.site.bare_metal.sanitize(order, resumed=False)
    assert done.power_state == "off"


async def test_the_rules_are_the_bmcs_own(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)

    rules = await rotation.accounts.rules(rotation.machine_id, await current(rotation))
    assert (rules.lockout_after, rules.min_length, rules.max_length) == (5, 8, 20)
    with pytest.raises(SiteError) as failed:
        await rotation.accounts.rules(rotation.machine_id, Credentials("slipway", "wrong"))
    assert failed.value.code == "bmc_denied"


async def test_a_refusal_is_told_without_the_password_and_changes_nothing(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)
    before = await current(rotation)
    await rotation.prepare()
    under_test.lie(rotation.name, "refuse")
    try:
        with pytest.raises(Refusal) as refused:
            await rotation.apply()
    finally:
        under_test.lie(rotation.name, "")

    pending = (await rotation.secrets.read(PENDING + await rotation.accounts.ref(rotation.machine_id))).fields
    assert refused.value.code == "bmc_password_refused"
    assert pending["password"] not in str(refused.value)
    assert await rotation.settle() == "current"
    assert await rotation.accounts.opens(rotation.machine_id, before)


async def test_a_bmc_that_says_yes_and_does_nothing_is_found_out(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)
    before = await current(rotation)
    await rotation.prepare()
    under_test.lie(rotation.name, "ignore")
    try:
        await rotation.apply()
    finally:
        under_test.lie(rotation.name, "")

    with pytest.raises(SiteError) as failed:
        await rotation.prove()
    assert failed.value.code == "bmc_password_not_taken"
    assert await rotation.settle() == "current"
    assert await current(rotation) == before


async def test_a_change_without_an_answer_is_looked_for_at_the_bmc(under_test: SiteUnderTest) -> None:
    rotation = await rotation_of(under_test)
    await rotation.prepare()
    under_test.lie(rotation.name, "lose")
    try:
        with pytest.raises(Unanswered):
            await rotation.apply()
    finally:
        under_test.lie(rotation.name, "")

    assert await rotation.settle() == "pending"
    assert await rotation.accounts.opens(rotation.machine_id, await current(rotation))
