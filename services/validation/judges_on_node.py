"""Judges of what the node itself says over SSH. Shapes: docs/architecture/evidence.md.

A GPU that the driver lost is a FAIL even when every other one answers; a value that the driver does not give is
INCONCLUSIVE, whatever its text says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.validation.evidence import fields, positive, text, whole_positive
from services.validation.judges_out_of_band import same_model
from services.validation.model import Expected, Judgement, amount, failed, inconclusive, passed, promised_gpus
from services.validation.nvidia_smi import Smi, parse

_DRIVER = re.compile(r"\d{3}\.\d{1,3}(\.\d{1,3})?")  # e.g. 550.90.07, 580.65
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# The kernel and firmware keep a part of the installed memory; 5 % is more than any of our machines loses.
_VISIBLE_MEMORY_SHARE = 0.95
_KIB_PER_GIB = 1024 * 1024
_FREE_BYTES_NEEDED = 1 << 30  # Less than 1 GiB and neither an image layer nor a log fits.
# NTP keeps nodes within milliseconds; 30 s is the bound at which the site's own clock check refuses to act.
_CLOCK_TOLERANCE_SECONDS = 30.0
_ECC = "ecc.errors.uncorrected.volatile.total"


def hostname(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Someone can log in, and it is the node that was meant."""
    said = text((fields(output) or {}).get("hostname"))
    if said is None or not _HOSTNAME.fullmatch(said):
        return [inconclusive("the node does not say its name", found=said or "")]
    if expected.get("hostname") is None:
        return [passed(said)]
    wanted = text(expected["hostname"])
    if wanted is None:
        return [inconclusive("nobody says what the node is called", found=said)]
    if said.casefold().split(".")[0] != wanted.casefold().split(".")[0]:
        return [failed("another node answered", found=said, expected=wanted)]
    return [passed(said, wanted)]


def gpu_count(output: Any, expected: Expected) -> Sequence[Judgement]:
    """The driver sees exactly the promised GPUs and has lost none."""
    smi, wanted = parse(output), promised_gpus(expected)
    if wanted is None:
        return [inconclusive("nobody says how many GPUs this machine must have")]
    if smi.lost:
        return [failed(f"the driver lost {len(smi.lost)} GPUs: {', '.join(smi.lost)}", expected=str(wanted))]
    if smi.problem:
        return [inconclusive(smi.problem, expected=str(wanted))]
    found = len(smi.gpus)
    if found != wanted:
        return [failed(f"the driver sees {found} of {wanted} GPUs", found=str(found), expected=str(wanted))]
    if wanted == 0:
        return [inconclusive("a machine without GPUs has no GPUs to count")]
    return [passed(str(found), str(wanted))]


def gpu_model(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Every GPU the driver sees is of the promised model, with memory and an identity."""
    wanted = text(expected.get("gpu_model"))
    if wanted is None:
        return [inconclusive("nobody says which GPU model this machine must have")]

    def judge(gpu: Mapping[str, str], component: str) -> Judgement:
        name = text(gpu["name"])
        known = [text(gpu[column]) for column in ("uuid", "serial", "pci.bus_id")]
        if name is None or None in known or _count(gpu["memory.total"]) in (None, 0):
            return inconclusive(f"GPU {component}: name, identity or memory can't be read", component=component)
        if not same_model(name, wanted):
            return failed(f"GPU {component} is another model", found=name, expected=wanted, component=component)
        return passed(name, wanted, component)

    return _each_gpu(parse(output), judge)


def gpu_ecc(output: Any, expected: Expected) -> Sequence[Judgement]:
    """No GPU has had an uncorrected memory error since the driver was loaded."""

    def judge(gpu: Mapping[str, str], component: str) -> Judgement:
        errors = _count(gpu[_ECC])
        if errors is None:
            return inconclusive(
                f"GPU {component}: ECC errors can't be read", found=gpu[_ECC], expected="0", component=component
            )
        if errors:
            message = f"GPU {component} had {errors} uncorrected memory errors"
            return failed(message, found=str(errors), expected="0", component=component)
        return passed("0", "0", component)

    return _each_gpu(parse(output), judge)


def gpu_driver(output: Any, expected: Expected) -> Sequence[Judgement]:
    """One driver version, the same for every GPU."""
    smi = parse(output)
    if smi.problem or not smi.gpus:
        return [inconclusive(smi.problem or "the driver sees no GPUs")]
    versions = sorted({gpu["driver_version"] for gpu in smi.gpus})
    if len(versions) != 1 or not _DRIVER.fullmatch(versions[0]):
        return [inconclusive("there is no one driver version", found=", ".join(versions))]
    return [passed(versions[0])]


def processors_and_memory(output: Any, expected: Expected) -> Sequence[Judgement]:
    """The operating system sees the promised processors and memory."""
    document = fields(output) or {}
    cpus, memory_kib = whole_positive(document.get("cpus")), positive(document.get("memory_kib"))
    memory_gib = memory_kib / _KIB_PER_GIB if memory_kib is not None else None
    # Processors the operating system counts are threads: at least one for each socket.
    return [
        amount(cpus, expected, "cpu_sockets", "processors"),
        _memory(memory_gib, expected),
    ]


def disk_writable(output: Any, expected: Expected) -> Sequence[Judgement]:
    """A file can be written and read back, and there is room for work."""
    document = fields(output) or {}
    written, free = document.get("write_ok"), positive(document.get("free_bytes"))
    if written is False:
        return [failed("the node's disk can't be written", found="not writable", expected="writable")]
    if written is not True or free is None:
        return [inconclusive("whether the disk can be written, or its free space, can't be read")]
    if free < _FREE_BYTES_NEEDED:
        return [
            failed("the node's disk is full", found=f"{free:.0f} bytes free", expected=f"{_FREE_BYTES_NEEDED} bytes")
        ]
    return [passed(f"{free:.0f} bytes free")]


def clock(output: Any, expected: Expected) -> Sequence[Judgement]:
    """The node's clock agrees with its site's."""
    document = fields(output) or {}
    node, site = positive(document.get("epoch_seconds")), positive(document.get("collector_epoch_seconds"))
    if node is None or site is None:
        return [inconclusive("the node's or the site's clock can't be read")]
    off = node - site
    if abs(off) > _CLOCK_TOLERANCE_SECONDS:
        return [failed(f"the node's clock is off by {off:.0f} s", found=f"{off:.0f} s", expected="within 30 s")]
    return [passed(f"{off:.0f} s", "within 30 s")]


def _memory(found_gib: float | None, expected: Expected) -> Judgement:
    promised = positive(expected.get("memory_gib"))
    if found_gib is None or promised is None:
        return amount(found_gib, expected, "memory_gib", "GiB of memory")
    least = {**expected, "memory_gib": promised * _VISIBLE_MEMORY_SHARE}
    return amount(found_gib, least, "memory_gib", "GiB of memory")


def _each_gpu(smi: Smi, judge: Callable[[Mapping[str, str], str], Judgement]) -> Sequence[Judgement]:
    if smi.problem or not smi.gpus:
        return [inconclusive(smi.problem or "the driver sees no GPUs")]
    told = [judge(gpu, text(gpu["pci.bus_id"]) or f"index {gpu['index']}") for gpu in smi.gpus]
    if smi.lost:
        told.append(inconclusive(f"the driver lost {len(smi.lost)} GPUs, of which nothing is known"))
    return told


def _count(value: str) -> int | None:
    """A count as nvidia-smi prints it, e.g. "0" or "81559 MiB"; None for anything else, negative ones included."""
    match = re.fullmatch(r"(\d+)(?: MiB)?", value)
    return int(match.group(1)) if match else None
