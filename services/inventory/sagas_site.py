"""Short processes on one machine at its site that move no state of it: power, removing a node that should not be.

Each is one command to the satellite with an operation around it, so that people see who asked and how it ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.contracts.placement import ReserveProvider
from libs.contracts.replies import Problem
from libs.contracts.site import PowerNode, RemoveNode
from libs.saga import Data, ToSite, saga, step, to_site

# A BMC may take half a minute to carry an order out, and the satellite waits for its word three times as long.
POWER_WITHIN = timedelta(minutes=5)
# Deleting a node takes a second; one that is in the middle of something is waited for.
REMOVE_WITHIN = timedelta(minutes=15)


def node_data(machine_id: str, name: str, site: str, **more: Any) -> Data:
    """What these processes start with."""
    return {"machine_id": machine_id, "machine_name": name, "site": site, **more}


def _node(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "machine_name": data["machine_name"]}


def set_power(data: Data) -> ToSite:
    message = PowerNode(**_node(data), claim_id=data["claim_id"], machine_version=data["version"], power=data["power"])
    return to_site(data["site"], message)


def _seen(reply: Data) -> Problem | None:
    """An order sent is not a fact."""
    if reply.get("power_state") in ("on", "off"):
        return None
    return Problem(
        code="machine.power_not_observed",
        message=f"the site did not say which power it saw, but {reply.get('power_state') or 'nothing'}",
        next_step="Look at the machine's BMC.",
    )


def remove_node(data: Data) -> ToSite:
    return to_site(data["site"], RemoveNode(**_node(data)))


def hold_in_placement(data: Data) -> ToSite:
    """Without a claim and a version: what Placement holds follows the machine, whatever is done with it meanwhile."""
    return to_site(data["site"], ReserveProvider(**_node(data), held=data["held"]))


def _result(data: Data) -> Data:
    return {"machine_id": data["machine_id"], "machine_name": data["machine_name"]}


power_machine = saga(
    "power_machine",
    step(set_power, within=POWER_WITHIN, retries=1, check=_seen),
    result=lambda data: {**_result(data), "power_state": data["power"]},
)
remove_stray_node = saga(
    "remove_stray_node",
    step(remove_node, within=REMOVE_WITHIN, retries=1),
    result=_result,
)

reserve_provider = saga(
    "reserve_provider",
    step(hold_in_placement, within=POWER_WITHIN, retries=1),
    result=lambda data: {**_result(data), "held": data["held"]},
)

SAGAS = (power_machine, remove_stray_node, reserve_provider)
