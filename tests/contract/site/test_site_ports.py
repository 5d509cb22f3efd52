"""The ports' contract, held by the simulated site and by real Ironic, Redfish and SSH alike."""

from __future__ import annotations

import uuid

import asyncssh
import pytest

from deploy.lab.fleet import Machine
from libs.contracts.site import CheckRequest, CollectEvidence, PowerNode, RunnerNode, RunTemplate
from services.satellite.collectors import ON_NODE, OUT_OF_BAND, collect
from services.satellite.errors import Failure, Refusal
from services.satellite.ports import Host
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


def new_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


def new_claim() -> str:
    return str(uuid.uuid4())


async def test_enrolling_ends_manageable_however_often_it_is_asked(under_test: SiteUnderTest) -> None:
    machine = under_test.machine()

    first = await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))
    again = await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))

    assert (first, again) == ("manageable", "manageable")
    assert await under_test.state(machine) == "manageable"


async def test_a_network_card_that_another_node_has_is_refused_by_both_names(under_test: SiteUnderTest) -> None:
    owner, other = under_test.machine(), under_test.machine()
    await under_test.site.bare_metal.enrol(under_test.enrol_order(owner))

    with pytest.raises(Refusal) as refused:
        await under_test.site.bare_metal.enrol(under_test.enrol_order(other, nic_macs=(owner.nic_macs[0],)))

    assert refused.value.code == "mac_conflict"
    assert owner.name in refused.value.message
    assert other.name in refused.value.message


async def test_a_bmc_that_does_not_answer_is_named(under_test: SiteUnderTest) -> None:
    machine = under_test.machine()

    with pytest.raises(Failure) as failed:
        await under_test.site.bare_metal.enrol(under_test.enrol_order(machine, bmc_address="127.0.0.1"))

    assert failed.value.code == "bmc_unreachable"
    assert machine.name in failed.value.message


async def test_inspection_finds_the_empty_gpu_slot(under_test: SiteUnderTest) -> None:
    machine = under_test.machine(gpus=7)
    await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))

    found = await under_test.site.bare_metal.inspect(under_test.ids(machine)["machine_id"])

    assert found.serial == machine.serial
    assert (len(found.gpus), len(found.gpu_slots_absent)) == (7, 1)
    assert {gpu.model for gpu in found.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert found.cpu_count == 2
    assert found.memory_gib == 2048
    assert found.drives == 8
    assert set(machine.nic_macs) <= set(found.nic_macs)
    assert await under_test.state(machine) == "manageable"


async def test_sanitising_gives_evidence_and_ends_available_and_off(under_test: SiteUnderTest) -> None:
    machine = under_test.machine()
    await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))
    order = under_test.sanitize_order(machine, "run-1")

    done = await under_test.site.bare_metal.sanitize(order, resumed=False)
    again = await under_test.site.bare_metal.sanitize(order, resumed=True)

    assert (done.run_id, done.power_state) == ("run-1", "off")
    assert done.steps
    assert done.started_at < done.finished_at
    assert again == done
    assert await under_test.state(machine) == "available"


async def test_a_failed_clean_is_a_failure_until_a_clean_has_ended_well(under_test: SiteUnderTest) -> None:
    machine = under_test.machine()
    await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))
    under_test.break_step(machine.name, "clean", "drive nvme3 does not answer")

    with pytest.raises(Failure) as failed:
        await under_test.site.bare_metal.sanitize(under_test.sanitize_order(machine, "bad"), resumed=False)
    under_test.mend(machine.name)
    with pytest.raises(Failure):
        await under_test.site.bare_metal.sanitize(under_test.sanitize_order(machine, "bad"), resumed=True)
    done = await under_test.site.bare_metal.sanitize(under_test.sanitize_order(machine, "good"), resumed=False)

    assert failed.value.code == "clean_failed"
    assert "nvme3" in failed.value.message
    assert done.run_id == "good"


async def test_a_machine_is_deployed_once_for_one_claim_and_given_back_observed_off(under_test: SiteUnderTest) -> None:
    bare_metal, access = under_test.site.bare_metal, under_test.site.access
    machine = await under_test.available(under_test.machine(gpus=8))
    machine_id, claim, key = under_test.ids(machine)["machine_id"], new_claim(), new_key()
    order = under_test.deploy_order(machine, claim, "train-1", key)

    deployed = await bare_metal.deploy(order, extra_keys=[access.public_key()], resumed=False)
    installed = under_test.deployment(machine)
    await _power_obeys_its_claim_alone(under_test, machine, claim)
    again = await bare_metal.deploy(order, extra_keys=[access.public_key()], resumed=True)

    assert deployed.provision_state == "active"
    assert again == deployed
    assert under_test.deployment(machine) == installed != ""
    await _everything_else_is_refused(under_test, machine, machine_id)
    await _evidence_is_collected(under_test, machine_id, deployed.host, claim)
    prints = await access.deliver_keys(deployed.host, [key, new_key()])
    assert len(prints) == 2
    assert all(text.startswith("SHA256:") for text in prints)
    assert (await access.run(deployed.host, "hostname", limit_seconds=30)).stdout.strip() == "train-1"

    await bare_metal.release(under_test.release_order(machine, claim))
    await bare_metal.release(under_test.release_order(machine, claim))

    assert await bare_metal.collect(machine_id, "redfish.power") == {"power_state": "Off"}
    assert await under_test.state(machine) == "available"
    with pytest.raises(Failure):
        await access.run(deployed.host, "hostname", limit_seconds=30)


async def _power_obeys_its_claim_alone(under_test: SiteUnderTest, machine: Machine, claim: str) -> None:
    order = PowerNode(**under_test.ids(machine), claim_id=claim, power="off")
    with pytest.raises(Refusal) as refused:
        await under_test.site.bare_metal.power(order.model_copy(update={"claim_id": new_claim()}))
    assert refused.value.code == "node_held_by_other"
    for power in ("off", "on"):
        await under_test.site.bare_metal.power(order.model_copy(update={"power": power}))
        seen = await under_test.site.bare_metal.collect(under_test.ids(machine)["machine_id"], "redfish.power")
        assert seen == {"power_state": power.capitalize()}


async def test_what_is_not_deployed_is_not_switched_on(under_test: SiteUnderTest) -> None:
    machine = await under_test.available(under_test.machine())
    with pytest.raises(Refusal) as refused:
        await under_test.site.bare_metal.power(PowerNode(**under_test.ids(machine), power="on"))
    assert refused.value.code == "node_not_deployed"
    assert await under_test.site.bare_metal.power(PowerNode(**under_test.ids(machine), power="off"))


async def _everything_else_is_refused(under_test: SiteUnderTest, machine: object, machine_id: str) -> None:
    bare_metal = under_test.site.bare_metal
    other = new_claim()
    with pytest.raises(Refusal) as deploy:
        await bare_metal.deploy(under_test.deploy_order(machine, other, "x"), extra_keys=[], resumed=False)  # type: ignore[arg-type]
    assert deploy.value.code == "node_held_by_other"
    with pytest.raises(Refusal) as release:
        await bare_metal.release(under_test.release_order(machine, other))  # type: ignore[arg-type]
    assert release.value.code == "node_held_by_other"
    with pytest.raises(Refusal) as sanitize:
        await bare_metal.sanitize(under_test.sanitize_order(machine, "late"), resumed=False)  # type: ignore[arg-type]
    assert sanitize.value.code == "node_in_use"
    with pytest.raises(Refusal) as remove:
        await bare_metal.remove(machine_id)
    assert remove.value.code == "node_in_use"


async def _evidence_is_collected(under_test: SiteUnderTest, machine_id: str, host: Host, claim: str) -> None:
    wanted = [*OUT_OF_BAND, *ON_NODE, "no.such"]
    command = CollectEvidence(
        machine_id=machine_id,
        machine_name="",
        claim_id=claim,
        run_id="run",
        suite="on_node",
        checks=tuple(CheckRequest(check=how, how=how, limit_seconds=60) for how in wanted),
        address=host.address,
        ssh_port=host.ssh_port,
        ssh_host_key=host.ssh_host_key,
    )
    found = {evidence.check: evidence for evidence in await collect(under_test.site, command)}

    assert {check: evidence.status for check, evidence in found.items()} == {
        **dict.fromkeys((*OUT_OF_BAND, *ON_NODE), "ran"),
        "no.such": "unsupported",
    }
    output = {check: evidence.output for check, evidence in found.items()}
    assert output["ssh.hostname"] == {"hostname": "train-1"}
    assert len(str(output["ssh.nvidia_smi"]["csv"]).strip().splitlines()) == 9  # type: ignore[index]
    assert output["ssh.disk"]["write_ok"] is True  # type: ignore[index]
    assert output["ssh.cpu_memory"]["memory_kib"] > 0  # type: ignore[index]
    assert abs(output["ssh.time"]["epoch_seconds"] - output["ssh.time"]["collector_epoch_seconds"]) <= 2  # type: ignore[index]
    gpus = [gpu for gpu in output["redfish.gpus"]["gpus"] if gpu["view"] == "processors"]  # type: ignore[index]
    assert len(gpus) == 8


async def test_a_failed_deploy_says_why_and_can_be_given_back(under_test: SiteUnderTest) -> None:
    machine = await under_test.available(under_test.machine())
    claim = new_claim()
    order = under_test.deploy_order(machine, claim, "train-2", new_key())
    under_test.break_step(machine.name, "deploy", "disk I/O error on nvme0")

    with pytest.raises(Failure) as failed:
        await under_test.site.bare_metal.deploy(order, extra_keys=[], resumed=False)
    under_test.mend(machine.name)
    with pytest.raises(Failure):
        await under_test.site.bare_metal.deploy(order, extra_keys=[], resumed=True)

    assert failed.value.code == "deploy_failed"
    assert "disk I/O error on nvme0" in failed.value.message
    await under_test.site.bare_metal.release(under_test.release_order(machine, claim))
    assert await under_test.state(machine) == "available"


async def test_what_others_set_on_a_node_is_seen_told_apart_and_respected(under_test: SiteUnderTest) -> None:
    machine, bare_metal = under_test.machine(), under_test.site.bare_metal
    machine_id = under_test.ids(machine)["machine_id"]
    await bare_metal.enrol(under_test.enrol_order(machine))
    plain = await under_test.node(machine)
    await under_test.edit_node(machine_id, {"maintenance": True})
    in_maintenance = await under_test.node(machine)
    with pytest.raises(Refusal) as not_ours:
        await bare_metal.sanitize(under_test.sanitize_order(machine, "run-m"), resumed=False)
    await under_test.edit_node(machine_id, {"maintenance": False, "retired": True})
    retired = await under_test.node(machine)
    with pytest.raises(Failure) as never_available:
        await bare_metal.sanitize(under_test.sanitize_order(machine, "run-r"), resumed=False)
    await under_test.edit_node(machine_id, {"retired": False})

    assert (plain.maintenance_owner, plain.retired, plain.protected) == ("", False, False)
    assert plain.resource_class == "baremetal"
    assert plain.reservation == ""
    assert (in_maintenance.maintenance, in_maintenance.maintenance_owner) == (True, "other")
    assert not_ours.value.code == "node_in_maintenance"
    assert retired.retired is True
    assert never_available.value.code == "node_retired"


async def test_a_node_that_somebody_protects_is_not_undeployed(under_test: SiteUnderTest) -> None:
    machine, bare_metal = await under_test.available(under_test.machine()), under_test.site.bare_metal
    machine_id, claim = under_test.ids(machine)["machine_id"], new_claim()
    await bare_metal.deploy(under_test.deploy_order(machine, claim, "x", new_key()), extra_keys=[], resumed=False)
    await under_test.edit_node(machine_id, {"protected": True})

    with pytest.raises(Failure) as kept:
        await bare_metal.release(under_test.release_order(machine, claim))
    seen = await under_test.node(machine)
    await under_test.edit_node(machine_id, {"protected": False})
    await bare_metal.release(under_test.release_order(machine, claim))

    assert kept.value.code == "node_protected"
    assert (seen.protected, seen.provision_state, seen.instance_uuid) == (True, "active", claim)
    assert await under_test.state(machine) == "available"


async def test_an_unknown_node_is_an_error_and_removing_it_is_not(under_test: SiteUnderTest) -> None:
    unknown = new_claim()

    with pytest.raises(Failure) as failed:
        await under_test.site.bare_metal.inspect(unknown)
    await under_test.site.bare_metal.remove(unknown)

    assert failed.value.code == "node_unknown"


async def test_a_removed_node_is_gone_and_can_be_enrolled_again(under_test: SiteUnderTest) -> None:
    machine = under_test.machine()
    await under_test.site.bare_metal.enrol(under_test.enrol_order(machine))

    await under_test.site.bare_metal.remove(under_test.ids(machine)["machine_id"])

    assert machine.name not in {node.name for node in await under_test.site.bare_metal.nodes()}
    assert await under_test.site.bare_metal.enrol(under_test.enrol_order(machine)) == "manageable"
    under_test.give_back(machine)


async def test_a_template_runs_on_every_node_and_its_log_comes_line_by_line(under_test: SiteUnderTest) -> None:
    machine = await under_test.available(under_test.machine())
    key = under_test.site.access.public_key()
    order = under_test.deploy_order(machine, new_claim(), "acme-1", new_key())
    host = (await under_test.site.bare_metal.deploy(order, extra_keys=[key], resumed=False)).host
    lines: list[str] = []

    async def log(said: object) -> None:
        lines.extend(said)  # type: ignore[arg-type]

    run = RunTemplate(
        run_id=f"run-{machine.name}",
        cluster_id="clu-1",
        operation_id="op-1",
        playbook="plain",
        nodes=(RunnerNode(name="acme-1", **host.__dict__),),
        variables={"cluster_name": "acme"},
    )
    stats = await under_test.site.runner.run_template(run, log)

    assert stats.by_node["acme-1"]["ok"] == 3
    assert stats.by_node["acme-1"]["failures"] == 0
    assert any(line.startswith("TASK [") for line in lines)

    with pytest.raises(Failure) as failed:
        await under_test.site.runner.run_template(run.model_copy(update={"playbook": "no-such"}), log)
    assert failed.value.code == "playbook_unknown"
