"""The simulated site's hosts and runner: log-ins, commands and playbooks that leave the same traces as real ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
import time
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from libs.contracts.site import RunTemplate
from services.satellite.adapters.keys import fingerprint
from services.satellite.adapters.playbook_files import playbook_file
from services.satellite.adapters.simulated_fleet import Hardware
from services.satellite.adapters.simulated_store import Record, SimulatedStore
from services.satellite.errors import Failure
from services.satellite.ports import CommandOutput, Host, LogSink, RunStats

_POLL_SECONDS = 0.02
_TASKS = (
    "Read the node's own name",
    "Check that the node is the one it was deployed as",
    "Write who belongs to the cluster",
)


def host_key(name: str) -> str:
    """The SSH host key of the machine's system: a valid ed25519 key that follows from its name."""
    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"host key/{name}".encode()).digest())
    raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    kind = b"ssh-ed25519"
    blob = struct.pack(">I", len(kind)) + kind + struct.pack(">I", len(raw)) + raw
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


class SimulatedAccess:
    """Hosts answer only while their machine is on and has a system, to whom the deployed keys admit."""

    def __init__(self, store: SimulatedStore, public_key: str) -> None:
        self._store = store
        self._public_key = public_key

    def public_key(self) -> str:
        return self._public_key

    async def deliver_keys(self, host: Host, keys: Sequence[str]) -> tuple[str, ...]:
        prints = tuple(fingerprint(key) for key in keys)
        machine, _ = await self._log_in(host)
        self._store.change(machine.name, keys=[*keys, self._public_key])
        return prints

    async def run(self, host: Host, command: str, *, limit_seconds: float) -> CommandOutput:
        async with asyncio.timeout(limit_seconds):
            machine, system = await self._log_in(host)
            return self._output(machine, system, command)

    async def _log_in(self, host: Host) -> tuple[Hardware, Record]:
        machine = self._store.by_address(host.address)
        if machine is None:
            raise Failure("ssh_unreachable", f"Nothing answers at {host.address}:{host.ssh_port}.")
        started = time.monotonic()
        while time.monotonic() - started < self._delay(machine.name):  # noqa: ASYNC110 (time is the condition)
            await asyncio.sleep(_POLL_SECONDS)
        # A look at the node lets a step whose time has come take its effect on the machine.
        self._store.nodes()
        state = self._store.machine(machine.name)
        down = self._store.faults(machine.name).get("ssh") == "down" or self._store.failure(machine.name, "ssh")
        if down or state["power"] != "on" or state["system"] is None:
            raise Failure("ssh_unreachable", f"{machine.name}: nothing answers at {host.address}:{host.ssh_port}.")
        if host.ssh_host_key != host_key(machine.name):
            raise Failure(
                "host_key_differs",
                f"{machine.name}: the host at {host.address}:{host.ssh_port} shows another key than the deployed one.",
                "Do not log in; find out which host answers there.",
            )
        if self._public_key not in state["keys"]:
            raise Failure("ssh_denied", f"{machine.name}: the host does not admit the management key.")
        return machine, state["system"]

    def _delay(self, name: str) -> float:
        return float(self._store.faults(name).get("delay", {}).get("ssh", 0.0))

    def _output(self, machine: Hardware, system: Record, command: str) -> CommandOutput:
        kind = machine.kind
        if command.startswith("nvidia-smi"):
            return self._nvidia_smi(machine)
        if command == "hostname":
            return CommandOutput(0, f"{system['hostname']}\n", "")
        if command.startswith("date"):
            return CommandOutput(0, f"{int(time.time())}\n", "")
        if command.startswith("nproc"):
            # The kernel keeps some of the installed memory for itself.
            total = int(kind.memory_gib * 1024 * 1024 * 0.985)
            return CommandOutput(
                0, f"{kind.cpu_threads}\n               total\nMem:   {total}  1000000  {total - 1000000}\n", ""
            )
        if "df -Pk" in command:
            return CommandOutput(
                0,
                "path /home/slipway\nwrite yes\nFilesystem 1024-blocks Used Available Capacity Mounted on\n"
                "/dev/nvme0n1p2 3750000000 250000000 3500000000 7% /\n",
                "",
            )
        return CommandOutput(127, "", f"sh: {command.split()[0]}: not found\n")

    def _nvidia_smi(self, machine: Hardware) -> CommandOutput:
        if machine.kind.gpu_count == 0:
            return CommandOutput(127, "", "sh: 1: nvidia-smi: not found\n")
        faults = self._store.faults(machine.name).get("gpu", {})
        header = (
            "index, uuid, serial, name, pci.bus_id, memory.total [MiB], driver_version, "
            "ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.total"
        )
        lines = [header]
        for gpu in machine.gpus():
            if not gpu.installed or gpu.number in faults.get("missing", []):
                continue
            errors = int(faults.get("ecc_uncorrected", {}).get(str(gpu.number), 0))
            lines.append(
                f"{len(lines) - 1}, {gpu.uuid}, {gpu.serial}, {gpu.model}, {gpu.pci_bus_id}, 81559, 550.90.07, "
                f"{errors}, {errors}"
            )
        return CommandOutput(0, "\n".join(lines) + "\n", "")


class SimulatedRunner:
    """Plays a playbook's tasks on the nodes and tells them in Ansible's words."""

    def __init__(self, store: SimulatedStore, access: SimulatedAccess) -> None:
        self._store = store
        self._access = access

    async def run_template(self, order: RunTemplate, log: LogSink) -> RunStats:
        playbook_file(order.playbook)
        await log([f"PLAY [{order.playbook}] ****"])
        stats = {node.name: {"ok": 0, "changed": 0, "unreachable": 0, "failures": 0} for node in order.nodes}
        for task in _TASKS:
            lines = ["", f"TASK [{task}] ****"]
            for node in order.nodes:
                lines.append(await self._play(order, node.address, node.ssh_port, node.ssh_host_key, node.name, stats))
            await log(lines)
        recap = [f"{name} : " + " ".join(f"{key}={value}" for key, value in by.items()) for name, by in stats.items()]
        await log(["", "PLAY RECAP ****", *recap])
        bad = [name for name, by in stats.items() if by["unreachable"] or by["failures"]]
        if bad:
            raise Failure(
                "template_failed",
                f"The playbook {order.playbook} failed on {', '.join(bad)}.",
                "The run's log says which task failed.",
                nodes=bad,
            )
        return RunStats(stats)

    async def _play(
        self, order: RunTemplate, address: str, port: int, key: str, name: str, stats: dict[str, dict[str, int]]
    ) -> str:
        if stats[name]["unreachable"] or stats[name]["failures"]:
            return f"skipping: [{name}]"
        try:
            await self._access.run(Host(address, port, key), "hostname", limit_seconds=10)
        except (Failure, TimeoutError) as error:
            stats[name]["unreachable"] = 1
            return f"fatal: [{name}]: UNREACHABLE! => {error}"
        machine = self._store.by_address(address)
        assert machine is not None  # The log-in above found it.
        await asyncio.sleep(self._store.seconds(machine.name, "run_template") / len(_TASKS))
        message = self._store.failure(machine.name, "run_template")
        if message is not None:
            stats[name]["failures"] = 1
            return f"fatal: [{name}]: FAILED! => {message}"
        stats[name]["ok"] += 1
        return f"ok: [{name}]"
