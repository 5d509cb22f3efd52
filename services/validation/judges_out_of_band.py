"""Judges of what the BMC says (Redfish). Shapes: docs/architecture/evidence.md.

Absent slots are no GPUs; two views of one card are one card; a missing, blank or unknown value is INCONCLUSIVE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from services.validation.evidence import entries, fields, names, positive, text, whole_positive
from services.validation.model import Expected, Judgement, amount, failed, inconclusive, passed, promised_gpus

_ABSENT = "absent"
# DMTF Status.State values of a part that is there and usable once the host is on.
_USABLE_STATES = frozenset({"enabled", "standbyoffline", "standbyspare"})
_SICK_HEALTH = frozenset({"warning", "critical"})
_UNREADABLE = "the BMC's answer has no such document"


def power_readable(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Power orders can be verified: the BMC says On or Off. Anything between is not an answer."""
    said = text((fields(output) or {}).get("power_state"))
    if said is None or said.casefold() not in ("on", "off"):
        return [
            inconclusive(
                "the BMC does not say whether the machine is on or off", found=said or "", expected="On or Off"
            )
        ]
    return [passed(said, "On or Off")]


def system_health(output: Any, expected: Expected) -> Sequence[Judgement]:
    """The BMC's own summary of the whole machine."""
    return [_health_judgement(text((fields(output) or {}).get("health")), "the system")]


def system_identity(output: Any, expected: Expected) -> Sequence[Judgement]:
    """The machine at this BMC is the one the inventory means, by serial number; and it says what it is."""
    system = fields(output) or {}
    serial, model, manufacturer = (text(system.get(key)) for key in ("serial", "model", "manufacturer"))
    if serial is None or model is None or manufacturer is None:
        return [
            inconclusive("the BMC does not give serial, model and manufacturer", found=str(system.get("serial", "")))
        ]
    if expected.get("serial") is None:
        return [passed(serial)]
    wanted = text(expected["serial"])
    if wanted is None:
        return [inconclusive("the inventory's serial is blank: record it there", found=serial)]
    if wanted.casefold() != serial.casefold():
        return [failed("another machine is at this BMC than the inventory says", found=serial, expected=wanted)]
    return [passed(serial, wanted)]


def system_memory(output: Any, expected: Expected) -> Sequence[Judgement]:
    """All promised memory is seen by the BMC."""
    return [amount(positive((fields(output) or {}).get("memory_gib")), expected, "memory_gib", "GiB of memory")]


def system_processors(output: Any, expected: Expected) -> Sequence[Judgement]:
    """All promised processors are seen by the BMC."""
    return [amount(whole_positive((fields(output) or {}).get("cpu_count")), expected, "cpu_sockets", "processors")]


def gpu_count(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Exactly as many GPUs are present as the profile promises. A part that is present but sick counts here."""
    wanted = promised_gpus(expected)
    if wanted is None:
        return [inconclusive("nobody says how many GPUs this machine must have")]
    view = _largest_view(output)
    if isinstance(view, str):
        return [inconclusive(view, expected=str(wanted))]
    present, absent = view
    if not present and not absent:
        return [inconclusive("the BMC lists no GPU slots at all", found="0", expected=str(wanted))]
    if len(present) != wanted:
        missing = f"; empty: {', '.join(absent)}" if absent else ""
        return [
            failed(
                f"{len(present)} of {wanted} GPUs are present{missing}", found=str(len(present)), expected=str(wanted)
            )
        ]
    return [passed(str(len(present)), str(wanted))]


def gpu_model(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Every GPU is of the promised model and has a serial number to track it by."""
    wanted = text(expected.get("gpu_model"))
    view = _largest_view(output)
    if wanted is None or isinstance(view, str):
        return [inconclusive(view if isinstance(view, str) else "nobody says which GPU model this machine must have")]
    present, _ = view
    if not present:
        return [inconclusive("the BMC lists no GPUs", expected=wanted)]
    return [_model_judgement(slot, gpu, wanted) for slot, gpu in present.items()]


def _model_judgement(slot: str, gpu: Mapping[str, Any], wanted: str) -> Judgement:
    model = text(gpu.get("model"))
    if model is None or text(gpu.get("serial")) is None:
        return inconclusive(
            f"GPU {slot} has no model or no serial number", found=model or "", expected=wanted, component=slot
        )
    if not same_model(model, wanted):
        return failed(f"GPU {slot} is another model", found=model, expected=wanted, component=slot)
    return passed(model, wanted, slot)


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one GPU model: vendors put their name before it or leave it out."""
    plain = [" ".join(name.casefold().removeprefix("nvidia").split()) for name in (one, other)]
    return plain[0] == plain[1]


def gpu_health(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Every GPU is enabled and healthy by the BMC's word."""
    view = _largest_view(output)
    if isinstance(view, str):
        return [inconclusive(view)]
    present, _ = view
    if not present:
        return [inconclusive("the BMC lists no GPUs")]
    return [_part_judgement(f"GPU {slot}", slot, gpu) for slot, gpu in present.items()]


def drives_present(output: Any, expected: Expected) -> Sequence[Judgement]:
    """All promised drives are present."""
    found = _drives(output)
    if isinstance(found, str):
        return [inconclusive(found)]
    return [amount(whole_positive(len(found)), expected, "drives", "drives", exact=True)]


def drives_health(output: Any, expected: Expected) -> Sequence[Judgement]:
    """Every drive has a size, is enabled and healthy by the BMC's word."""
    found = _drives(output)
    if isinstance(found, str) or not found:
        return [inconclusive(found if isinstance(found, str) and found else "the BMC lists no drives")]
    return [
        _part_judgement(f"drive {id_}", id_, drive)
        if positive(drive.get("capacity_bytes")) is not None
        else inconclusive(f"drive {id_} does not say its size", component=id_)
        for id_, drive in found.items()
    ]


def _health_judgement(health: str | None, what: str, component: str = "") -> Judgement:
    if health is None:
        return inconclusive(f"the BMC does not say how {what} is", component=component, expected="OK")
    if health.casefold() == "ok":
        return passed(health, "OK", component)
    if health.casefold() in _SICK_HEALTH:
        return failed(f"the BMC says {what} is {health}", found=health, expected="OK", component=component)
    return inconclusive(f"the BMC says {what} is {health!r}", found=health, expected="OK", component=component)


def _part_judgement(what: str, component: str, part: Mapping[str, Any]) -> Judgement:
    state = text(part.get("state"))
    if state is None:
        return inconclusive(f"the BMC does not say what state {what} is in", component=component, expected="Enabled")
    if state.casefold() not in _USABLE_STATES:
        return failed(f"{what} is present but {state}", found=state, expected="Enabled", component=component)
    return _health_judgement(text(part.get("health")), what, component)


def _drives(output: Any) -> dict[str, Mapping[str, Any]] | str:
    """Drives by id, without empty bays; or why that can't be said."""
    drives = entries((fields(output) or {}).get("drives"))
    if drives is None:
        return _UNREADABLE
    found: dict[str, Mapping[str, Any]] = {}
    for drive in drives:
        id_, state = text(drive.get("id")), text(drive.get("state"))
        if id_ is None or state is None or id_ in found:
            return "a drive has no id or no state, or two have one id"
        if state.casefold() != _ABSENT:
            found[id_] = drive
    return found


def _largest_view(output: Any) -> tuple[dict[str, Mapping[str, Any]], list[str]] | str:
    """(present by slot, absent slots) of the view with the most cards; or why that can't be said.

    A BMC shows one card in several collections. Adding them would hide a missing card, so the larger view counts.
    """
    document = fields(output) or {}
    gpus, absent = entries(document.get("gpus")), names(document.get("absent", []))
    if gpus is None or absent is None:
        return _UNREADABLE
    missing = dict.fromkeys(absent)
    views: dict[str, dict[str, Mapping[str, Any]]] = {}
    for gpu in gpus:
        slot, state = text(gpu.get("slot")), text(gpu.get("state"))
        view = views.setdefault(text(gpu.get("view")) or "processors", {})
        if slot is None or state is None or slot in view:
            return "a GPU has no slot or no state, or two are in one slot"
        if state.casefold() == _ABSENT:
            missing[slot] = None
        else:
            view[slot] = gpu
    sizes = Counter({name: len(view) for name, view in views.items()})
    largest = views[sizes.most_common(1)[0][0]] if views else {}
    if any(slot in largest for slot in missing):
        return "a GPU slot is said to be both present and empty"
    return largest, list(missing)
