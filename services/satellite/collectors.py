"""The evidence collectors: raw outputs by name, judged nowhere here (docs/architecture/evidence.md).

Each one is bounded by its own limit and fails alone. What a source did not say stays null or blank.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from libs.contracts.site import CheckRequest, CollectEvidence, Evidence
from services.satellite.errors import SiteError
from services.satellite.ports import CommandOutput, Host, NodeAccess, Site

OUT_OF_BAND = ("redfish.system", "redfish.gpus", "redfish.power", "redfish.drives")
NVIDIA_SMI = (
    "nvidia-smi --query-gpu=index,uuid,serial,name,pci.bus_id,memory.total,driver_version,"
    "ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total --format=csv,nounits"
)
CPU_MEMORY = "nproc --all; free -k"
# The file goes to the login user's home, which is where a tenant's first write would go.
DISK = (
    'path="$HOME"; file="$path/.slipway-disk-check.$$"; wrote=no; '
    'if printf slipway > "$file" && [ "$(cat "$file")" = slipway ] && rm "$file"; then wrote=yes; fi; '
    'echo "path $path"; echo "write $wrote"; df -Pk "$path"'
)
Output = dict[str, object]


async def collect(site: Site, command: CollectEvidence) -> list[Evidence]:
    """One Evidence for each request, in the order asked."""
    host = Host(command.address, command.ssh_port, command.ssh_host_key)
    return list(await asyncio.gather(*(_collect_one(site, command.machine_id, host, ask) for ask in command.checks)))


async def _collect_one(site: Site, machine_id: str, host: Host, ask: CheckRequest) -> Evidence:
    started = time.monotonic()
    status, output, message = "ran", None, ""
    try:
        async with asyncio.timeout(ask.limit_seconds):
            output = await _output(site, machine_id, host, ask)
    except KeyError:
        status, message = "unsupported", f"this site has no collector {ask.how!r}"
    except TimeoutError:
        status, message = "timeout", f"no answer within {ask.limit_seconds:g} s"
    except SiteError as error:
        status, message = ("unsupported" if error.code == "no_such_resource" else "error"), error.message
    return Evidence.model_validate(
        {
            "check": ask.check,
            "status": status,
            "output": output,
            "message": message,
            "seconds": round(time.monotonic() - started, 3),
        }
    )


async def _output(site: Site, machine_id: str, host: Host, ask: CheckRequest) -> Output:
    if ask.how in OUT_OF_BAND:
        return await site.bare_metal.collect(machine_id, ask.how)
    return await ON_NODE[ask.how](site.access, host, ask.limit_seconds)


async def _hostname(access: NodeAccess, host: Host, limit_seconds: float) -> Output:
    answer = await access.run(host, "hostname", limit_seconds=limit_seconds)
    return {"hostname": answer.stdout.strip()}


async def _nvidia_smi(access: NodeAccess, host: Host, limit_seconds: float) -> Output:
    answer = await access.run(host, NVIDIA_SMI, limit_seconds=limit_seconds)
    return {"csv": answer.stdout, "stderr": answer.stderr, "exit_code": answer.exit_code}


async def _cpu_memory(access: NodeAccess, host: Host, limit_seconds: float) -> Output:
    answer = await access.run(host, CPU_MEMORY, limit_seconds=limit_seconds)
    return read_cpu_memory(answer)


async def _disk(access: NodeAccess, host: Host, limit_seconds: float) -> Output:
    answer = await access.run(host, DISK, limit_seconds=limit_seconds)
    return read_disk(answer)


async def _time(access: NodeAccess, host: Host, limit_seconds: float) -> Output:
    before = time.time()
    answer = await access.run(host, "date +%s", limit_seconds=limit_seconds)
    # The node looked at its clock somewhere between sending and receiving; the middle is the best guess.
    return {
        "epoch_seconds": _number(answer.stdout.strip()),
        "collector_epoch_seconds": round((before + time.time()) / 2),
    }


ON_NODE: dict[str, Callable[[NodeAccess, Host, float], Awaitable[Output]]] = {
    "ssh.hostname": _hostname,
    "ssh.nvidia_smi": _nvidia_smi,
    "ssh.cpu_memory": _cpu_memory,
    "ssh.disk": _disk,
    "ssh.time": _time,
}


def read_cpu_memory(answer: CommandOutput) -> Output:
    """`nproc --all` and the "Mem:" line of `free -k` → {cpus, memory_kib}, null for what is not there."""
    cpus = re.search(r"^\s*(\d+)\s*$", answer.stdout, re.MULTILINE)
    memory = re.search(r"^Mem:\s+(\d+)\b", answer.stdout, re.MULTILINE)
    return {
        "cpus": _number(cpus.group(1) if cpus else ""),
        "memory_kib": _number(memory.group(1) if memory else ""),
        "stderr": answer.stderr,
    }


def read_disk(answer: CommandOutput) -> Output:
    """The disk script's lines → {path, free_bytes, write_ok}, null for what is not there."""
    path = re.search(r"^path (.+)$", answer.stdout, re.MULTILINE)
    wrote = re.search(r"^write (yes|no)$", answer.stdout, re.MULTILINE)
    # POSIX `df -P`: name, blocks, used, available, capacity, mount point. The name may hold blanks.
    free = re.search(r"\s\d+\s+\d+\s+(\d+)\s+\d+%\s", answer.stdout)
    return {
        "path": path.group(1) if path else "",
        "free_bytes": int(free.group(1)) * 1024 if free else None,
        "write_ok": wrote.group(1) == "yes" if wrote else None,
        "stderr": answer.stderr,
    }


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None
