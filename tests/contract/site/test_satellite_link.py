"""The satellite's link and journal on two real NATS servers: a hub and a site's leaf with its own domain."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncssh
import nats as broker
import pytest
import pytest_asyncio

from deploy.lab.fleet import load_fleet
from libs.bus.topology import SOURCING_CONSUMER
from libs.contracts.envelope import now_utc
from libs.contracts.replies import Outcome
from libs.contracts.site import DeployNode, EnrolNode, InspectNode, ReleaseNode, SanitizeNode
from libs.runtime.processes import Process
from tests.contract.site.hub_side import HubSide, deployments, eventually, simulated_satellite, write_faults
from tests.contract.site.nats_pair import SITE, NatsPair, declare, nats_pair

MACHINES = load_fleet().machines
KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
CLAIM = "0190a000-0000-7000-8000-00000000000a"
OTHER_CLAIM = "0190a000-0000-7000-8000-00000000000b"


class World:
    """One hub, one leaf, one satellite on the simulated site."""

    def __init__(self, folder: Path, nats: NatsPair, hub: HubSide, satellite: Process) -> None:
        self.folder, self.nats, self.hub, self.satellite = folder, nats, hub, satellite

    def ids(self, number: int = 0) -> dict[str, str]:
        name = MACHINES[number].name
        return {"machine_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "machine_name": name}

    def enrol(self, number: int = 0) -> EnrolNode:
        machine = MACHINES[number]
        return EnrolNode(
            **self.ids(number),
            bmc_address=str(machine.bmc_ip),
            bmc_credentials_ref=f"bmc/{machine.name}",
            resource_class="gpu",
            nic_macs=tuple(machine.nic_macs),
        )

    def deploy(self, claim: str, version: int = 0, number: int = 0) -> DeployNode:
        return DeployNode(
            **self.ids(number),
            claim_id=claim,
            machine_version=version,
            image_url="http://images.example/golden.qcow2",
            image_checksum="0" * 64,
            hostname="train-1",
            ssh_authorized_keys=(KEY,),
        )

    async def make_available(self, number: int = 0) -> None:
        assert (await self.hub.ask(self.enrol(number))).ok
        assert (await self.hub.ask(SanitizeNode(**self.ids(number), run_id="run-1"))).ok


# One world for all tests of this file, because servers and processes take seconds to start; so each test has
# machines of its own, and the one after which another satellite holds the lease comes last.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    tmp_path = tmp_path_factory.mktemp("link")
    pair = nats_pair(tmp_path / "nats")
    pair.hub.start()
    pair.leaf.start()
    hub: HubSide | None = None
    satellite = simulated_satellite(tmp_path, pair.leaf_url)
    try:
        await declare(pair)
        hub = await HubSide.open(pair.hub_url)
        satellite.start()
        yield World(tmp_path, pair, hub, satellite)
    finally:
        if hub is not None:
            await hub.close()
        satellite.stop()
        pair.stop()


async def test_a_command_is_worked_on_and_answered_through_the_leaf(world: World) -> None:
    reply = await world.hub.ask(world.enrol(0))

    assert reply.ok
    assert reply.data == {"provision_state": "manageable"}
    await eventually(lambda: bool(world.hub.observed("ironic.node")), "the node is observed")
    assert {node["provision_state"] for node in world.hub.observed("ironic.node")} == {"manageable"}
    await eventually(lambda: bool(world.hub.observed("satellite.heartbeat")), "a heartbeat")


async def test_a_command_that_comes_again_is_answered_again_and_done_once(world: World) -> None:
    await world.make_available(1)
    command_id = await world.hub.send(world.deploy(CLAIM, number=1))
    assert (await world.hub.reply(command_id)).ok

    # Another message with the same command in it, so that the broker's own duplicate window does not catch it; the
    # inspection after it is answered only when the repeated command has been dealt with.
    await world.hub.send(world.deploy(CLAIM, number=1), command_id=command_id)
    assert (await world.hub.ask(InspectNode(**world.ids(1)))).ok

    assert deployments(world.folder, MACHINES[1].name) == [CLAIM]


async def test_a_command_begun_before_a_crash_is_resumed_and_not_done_twice(world: World) -> None:
    await world.make_available(2)
    write_faults(world.folder, {MACHINES[2].name: {"delay": {"deploy": 1.5}}})
    command_id = await world.hub.send(world.deploy(CLAIM, number=2))
    await eventually(lambda: deployments(world.folder, MACHINES[2].name) == [CLAIM], "the deployment has begun")

    world.satellite.kill()
    world.satellite.start()

    reply = await world.hub.reply(command_id)
    assert reply.ok
    assert deployments(world.folder, MACHINES[2].name) == [CLAIM]
    assert len(world.hub.replies(command_id)) == 1


@pytest.mark.slow
async def test_work_goes_on_while_the_hub_is_away_and_the_answer_arrives_after(world: World) -> None:
    await world.make_available(4)
    write_faults(world.folder, {MACHINES[4].name: {"delay": {"deploy": 2.0}}})
    command_id = await world.hub.send(world.deploy(CLAIM, number=4))
    await eventually(lambda: deployments(world.folder, MACHINES[4].name) == [CLAIM], "the deployment has begun")

    world.nats.hub.stop()
    await asyncio.sleep(2.5)  # The deployment ends during the cut; nothing can be seen of it from the hub.
    world.nats.hub.start()

    # JetStream takes up to a minute to source a site's stream again after its own restart.
    assert (await world.hub.reply(command_id, 90)).ok


async def test_after_a_cut_only_the_newest_claim_of_a_machine_is_worked_on(world: World) -> None:
    await world.make_available(5)
    world.satellite.stop()
    late = await world.hub.send(world.deploy(CLAIM, 10, 5), deadline=now_utc() - timedelta(seconds=1))
    old = await world.hub.send(world.deploy(CLAIM, 10, 5))
    new = await world.hub.send(world.deploy(OTHER_CLAIM, 14, 5))

    world.satellite.start()

    assert (await world.hub.reply(new)).ok
    assert (await world.hub.reply(old)).outcome is Outcome.STALE
    assert (await world.hub.reply(late)).outcome is Outcome.EXPIRED
    assert deployments(world.folder, MACHINES[5].name) == [OTHER_CLAIM]


async def test_an_older_claim_is_stale_for_good_once_a_newer_one_was_seen(world: World) -> None:
    await world.make_available(6)
    assert (await world.hub.ask(world.deploy(CLAIM, 10, 6))).ok
    assert (await world.hub.ask(ReleaseNode(**world.ids(6), claim_id=CLAIM, machine_version=11))).ok
    assert (await world.hub.ask(world.deploy(OTHER_CLAIM, 14, 6))).ok

    reply = await world.hub.ask(ReleaseNode(**world.ids(6), claim_id=CLAIM, machine_version=11))

    assert reply.outcome is Outcome.STALE
    assert reply.problem is not None
    assert reply.problem.code == "claim_stale"


async def test_bytes_that_are_no_command_are_reported_and_hold_nothing_up(world: World) -> None:
    await world.hub.send_bytes(b"\xff not json")
    await world.hub.send_bytes(b'{"id": ""}')
    enrol = world.enrol(9)
    for wrong in ({"site": "ber2"}, {"source": "/slipway/satellite"}, {"type": "slipway.site.ironic.deploy"}):
        await world.hub.send_bytes(world.hub.envelope(enrol).model_copy(update=wrong).encode())

    assert (await world.hub.ask(world.enrol(7))).ok

    def reported() -> bool:
        beats = world.hub.observed("satellite.heartbeat")
        return any("5 message(s) that are no commands" in str(beat["problems"]) for beat in beats)

    await eventually(reported, "a heartbeat that names the problem")


@pytest.mark.slow
async def test_a_durable_that_hands_the_sites_words_over_is_made_again_when_somebody_deleted_it(world: World) -> None:
    client = await broker.connect(world.nats.leaf_url)
    try:
        assert await client.jetstream().delete_consumer(f"SAT_{SITE}", SOURCING_CONSUMER)
    finally:
        await client.close()

    # The satellite looks every 30 s, and the hub notices by the durable's heartbeat.
    assert (await world.hub.reply(await world.hub.send(world.enrol(9)), limit_seconds=120)).ok


@pytest.mark.slow
async def test_a_second_satellite_waits_and_takes_over_when_the_first_is_gone(world: World) -> None:
    assert (await world.hub.ask(world.enrol(8))).ok
    second = simulated_satellite(world.folder, world.nats.leaf_url, name="second")
    second.start()
    try:
        await eventually(lambda: "lease_held_by_other" in second.log_file.read_text(), "the second one waits")

        world.satellite.kill()

        reply = await world.hub.ask(world.enrol(12))
        assert reply.ok
        await eventually(lambda: "lease_taken" in second.log_file.read_text(), "the second one took the lease")
    finally:
        second.stop()
