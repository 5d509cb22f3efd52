"""One readable line for an event. Pure; never fails: what it does not know it names by type and id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.audit.record import type_of

Data = Mapping[str, Any]
MAX_CHARACTERS = 300


def summarize(type_: str, entity_id: str, data: Data) -> str:
    """What happened to what, e.g. "fra1-r1-gpu-04: ENROLLING → FAILED (7 of 8 GPUs are present)"."""
    kind = type_of(type_)
    line = _LINES.get((kind.service, kind.entity))
    try:
        told = line(kind.name, data) if line is not None else ""
    except (KeyError, TypeError, AttributeError, ValueError):
        told = ""
    told = told or f"{kind.entity} {entity_id}: {kind.name.replace('_', ' ')}"
    return told if len(told) <= MAX_CHARACTERS else told[: MAX_CHARACTERS - 1] + "…"


def _because(problem: Any) -> str:
    message = problem.get("message") if isinstance(problem, Mapping) else problem
    return f" ({message})" if message else ""


def _machine(name: str, data: Data) -> str:
    machine = data["machine"]
    who = machine["name"]
    match name:
        case "registered":
            return f"{who}: known from NetBox, {machine['device_type']} in rack {machine['rack']}"
        case "state_changed":
            step = f" at {machine['failed_step']}" if machine.get("failed_step") else ""
            return f"{who}: {data['from_state']} → {data['to_state']}{step}{_because(machine.get('reason'))}"
        case "updated":
            return f"{who}: {', '.join(data['changed'])} changed"
        case "sanitised":
            return f"{who}: wiped, run {data['run_id']}"
        case "validated":
            return f"{who}: passed {data['suite']}, run {data['run_id']}"
        case "drifted":
            values = f"{data['theirs']!r} elsewhere, {data['ours']!r} here"
            return f"{who}: {data['field']} is {values}; owner: {data['owner']}"
        case _:
            return f"{who}: {name.replace('_', ' ')}"


def _cluster(name: str, data: Data) -> str:
    cluster = data["cluster"]
    who = f"cluster {cluster['name']}"
    match name:
        case "requested":
            return f"{who}: {cluster['node_count']} nodes of {cluster['profile']} requested by {cluster['tenant']}"
        case "state_changed":
            return f"{who}: {data['from_state']} → {data['to_state']}{_because(cluster.get('problem'))}"
        case "node_started":
            return f"{who}: machine {data['machine_id']} is billed from {data['at']}"
        case "node_stopped":
            return f"{who}: machine {data['machine_id']} is billed until {data['at']} ({data['reason']})"
        case _:
            return f"{who}: {name.replace('_', ' ')}"


def _operation(name: str, data: Data) -> str:
    operation = data["operation"]
    who = f"{operation['kind']} of {operation['target_kind']} {operation['target_id']}"
    running = [step["name"] for step in operation["steps"] if step["status"] in ("RUNNING", "UNDOING")]
    if name == "progressed":
        waiting = f", waiting for {operation['waiting_for']}" if operation.get("waiting_for") else ""
        return f"{who}: {operation['status']}{', at ' + ', '.join(running) if running else ''}{waiting}"
    return f"{who}: {operation['status'] if name == 'finished' else name}{_because(operation.get('problem'))}"


def _run(name: str, data: Data) -> str:
    run = data["run"]
    verdict = f": {run['verdict']}" if run.get("verdict") else " started"
    return f"{run['suite']} checks of machine {run['machine_id']}{verdict}{_because(run.get('problem'))}"


def _finding(name: str, data: Data) -> str:
    finding = data["finding"]
    part = f" {finding['component']}" if finding.get("component") else ""
    told = f": {finding['message']}" if finding.get("message") and name != "cleared" else ""
    return f"finding {finding['check']}{part} {name.replace('_', ' ')}{told}"


def _price(name: str, data: Data) -> str:
    price = data["price"]
    amount = f"{price['price_per_machine_hour']} {price['currency']}"
    return f"price of {price['profile']}: {amount} per machine-hour from {price['valid_from']}"


def _usage(name: str, data: Data) -> str:
    usage = data["usage"]
    kind = "corrected by" if usage.get("correction_of") else "used for"
    return f"machine {usage['machine_id']} in cluster {usage['cluster_id']} {kind} {usage['seconds']} s"


def _grant(name: str, data: Data) -> str:
    grant = data["grant"]
    where = "the installation" if grant["scope_id"] == "-" else f"{grant['scope_kind']} {grant['scope_id']}"
    return f"{grant['role']} of {where} {'given to' if name == 'given' else 'revoked from'} {grant['subject']}"


def _reservation(name: str, data: Data) -> str:
    reservation = data["reservation"]
    names = ", ".join(claim["machine_name"] for claim in reservation["claims"][:8])
    who = f"reservation of {reservation['count']} {reservation['profile']} for {reservation['tenant']}"
    return f"{who} {name}{': ' + names if names else ''}{_because(reservation.get('refusal'))}"


def _checkpoint(name: str, data: Data) -> str:
    checkpoint = data["checkpoint"]
    return f"chain of {checkpoint['service']} signed up to {checkpoint['last_sequence']}, {checkpoint['events']} events"


def _retention(name: str, data: Data) -> str:
    retention = data["retention"]
    kept = "for ever" if retention["keep_days"] is None else f"for {retention['keep_days']} days"
    return f"events are kept {kept} from {retention['in_force_at']} on{_because(retention['reason'])}"


def _hold(name: str, data: Data) -> str:
    hold = data["hold"]
    reason = hold.get("release_reason") or hold["reason"]
    return f"legal hold on {hold['kind']} {hold['value']} {name}{_because(reason)}"


def _removal(name: str, data: Data) -> str:
    removal = data["removal"]
    numbers = f"{removal['first_sequence']} to {removal['last_sequence']}"
    return f"{removal['events']} expired events of {removal['service']} removed: {numbers}"


_LINES: Mapping[tuple[str, str], Callable[[str, Data], str]] = {
    ("inventory", "machine"): _machine,
    ("provisioning", "cluster"): _cluster,
    ("reservation", "reservation"): _reservation,
    ("validation", "run"): _run,
    ("validation", "finding"): _finding,
    ("cost", "price"): _price,
    ("cost", "usage"): _usage,
    ("identity", "grant"): _grant,
    ("audit", "checkpoint"): _checkpoint,
    ("audit", "retention"): _retention,
    ("audit", "hold"): _hold,
    ("audit", "removal"): _removal,
    **{(service, "operation"): _operation for service in ("inventory", "reservation", "provisioning", "validation")},
}
