"""The checks, as data: what each proves, what feeds it, who judges it. Change the suites here and nowhere else."""

from __future__ import annotations

from libs.contracts.validation import Suite
from services.validation import judges_on_node as on_node
from services.validation import judges_out_of_band as out_of_band
from services.validation.model import Applies, Check, Severity

_OOB, _NODE = Suite.OUT_OF_BAND, Suite.ON_NODE
_GPU = Applies.GPU_MACHINES
_CRITICAL, _MAJOR = Severity.CRITICAL, Severity.MAJOR

CATALOGUE: tuple[Check, ...] = (
    Check(
        "power.readable", _OOB, "power orders can be verified", "redfish.power", out_of_band.power_readable, _CRITICAL
    ),
    Check("system.health", _OOB, "the BMC finds nothing wrong", "redfish.system", out_of_band.system_health, _CRITICAL),
    Check(
        "system.identity",
        _OOB,
        "the BMC belongs to the machine the inventory means",
        "redfish.system",
        out_of_band.system_identity,
        _CRITICAL,
    ),
    Check(
        "system.memory",
        _OOB,
        "all promised memory is there",
        "redfish.system",
        out_of_band.system_memory,
        _CRITICAL,
    ),
    Check(
        "system.processors",
        _OOB,
        "all promised processors are installed",
        "redfish.system",
        out_of_band.system_processors,
        _CRITICAL,
    ),
    Check("gpu.count", _OOB, "all promised GPUs are present", "redfish.gpus", out_of_band.gpu_count, _CRITICAL, _GPU),
    Check("gpu.model", _OOB, "every GPU is the promised model", "redfish.gpus", out_of_band.gpu_model, _CRITICAL, _GPU),
    Check(
        "gpu.health", _OOB, "the BMC finds every GPU healthy", "redfish.gpus", out_of_band.gpu_health, _CRITICAL, _GPU
    ),
    Check("drive.count", _OOB, "all promised drives are present", "redfish.drives", out_of_band.drives_present, _MAJOR),
    Check(
        "drive.health", _OOB, "the BMC finds every drive healthy", "redfish.drives", out_of_band.drives_health, _MAJOR
    ),
    Check("node.hostname", _NODE, "the meant node can be logged in to", "ssh.hostname", on_node.hostname, _CRITICAL),
    Check("node.gpu_count", _NODE, "the driver sees every GPU", "ssh.nvidia_smi", on_node.gpu_count, _CRITICAL, _GPU),
    Check(
        "node.gpu_model",
        _NODE,
        "it sees the promised model",
        "ssh.nvidia_smi",
        on_node.gpu_model,
        _CRITICAL,
        _GPU,
    ),
    Check(
        "node.gpu_ecc", _NODE, "no uncorrected GPU memory errors", "ssh.nvidia_smi", on_node.gpu_ecc, _CRITICAL, _GPU
    ),
    Check("node.gpu_driver", _NODE, "one driver is loaded", "ssh.nvidia_smi", on_node.gpu_driver, _CRITICAL, _GPU),
    Check(
        "node.cpu_memory",
        _NODE,
        "the operating system sees processors and memory",
        "ssh.cpu_memory",
        on_node.processors_and_memory,
        _CRITICAL,
    ),
    Check("node.disk", _NODE, "the disk can be written and has room", "ssh.disk", on_node.disk_writable, _CRITICAL),
    Check("node.clock", _NODE, "the clock agrees with the site's", "ssh.time", on_node.clock, _MAJOR),
)


def severity_of(check_id: str) -> Severity:
    """CRITICAL for a check that the catalogue no longer has: nobody can say that it is less."""
    return next((check.severity for check in CATALOGUE if check.id == check_id), Severity.CRITICAL)
