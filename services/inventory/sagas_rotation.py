"""Rotating BMC credentials: one machine so that nobody is locked out, and a batch of them.

The new password is stored at the site before the BMC hears of it, and becomes the current one only after it has opened
the BMC. Whatever fails, `settle_credentials` keeps the one that opens it. No secret is in the data or in a message.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.contracts.inventory import BeginRotation, EndRotation, RotateCredentials
from libs.contracts.replies import Problem
from libs.contracts.site import (
    ApplyCredentials,
    PrepareCredentials,
    PromoteCredentials,
    ProveCredentials,
    SettleCredentials,
)
from libs.saga import Data, Item, ToSite, saga, step, to_site

_RECORD = timedelta(minutes=5)
_AT_SITE = timedelta(minutes=5)  # A BMC that restarts its services after a change takes a minute or two.


def rotation_data(machine_id: str, machine_name: str, site: str) -> Data:
    """What the saga of one machine starts with."""
    return {"machine_id": machine_id, "machine_name": machine_name, "site": site}


def _own(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "operation_id": data["saga_id"]}


def _of(data: Data) -> dict[str, Any]:
    return {
        "machine_id": data["machine_id"],
        "machine_name": data["machine_name"],
        "rotation_id": data["saga_id"],
    }


def begin_rotation(data: Data) -> BeginRotation:
    return BeginRotation(**_own(data))


def give_up_rotation(data: Data) -> EndRotation:
    return EndRotation(**_own(data), rotated=False)


def prepare_credentials(data: Data) -> ToSite:
    return to_site(data["site"], PrepareCredentials(**_of(data)))


def settle_credentials(data: Data) -> ToSite:
    return to_site(data["site"], SettleCredentials(**_of(data)))


def apply_credentials(data: Data) -> ToSite:
    return to_site(data["site"], ApplyCredentials(**_of(data)))


def prove_credentials(data: Data) -> ToSite:
    return to_site(data["site"], ProveCredentials(**_of(data)))


def promote_credentials(data: Data) -> ToSite:
    return to_site(data["site"], PromoteCredentials(**_of(data)))


def _keep_old(data: Data, reply: Data) -> Data:
    return {**data, "old_opens": str(reply.get("old_opens") or "not_tried")}


def record_rotation(data: Data) -> EndRotation:
    return EndRotation(**_own(data), rotated=True)


rotate_machine_credentials = saga(
    "rotate_machine_credentials",
    step(begin_rotation, within=_RECORD, retries=2, undo=give_up_rotation),
    step(prepare_credentials, within=_AT_SITE, retries=2, undo=settle_credentials),
    step(apply_credentials, within=_AT_SITE, retries=2),
    # Once more, for BMCs that need a moment; the site counts failed attempts and stops before the BMC would lock.
    step(prove_credentials, within=_AT_SITE, retries=1),
    step(promote_credentials, within=_AT_SITE, retries=4, then=_keep_old),
    step(record_rotation, within=_RECORD, retries=4),
    result=lambda data: {
        "machine_id": data["machine_id"],
        "machine_name": data["machine_name"],
        "old_opens": data.get("old_opens", "not_tried"),
    },
)


def rotate_each(data: Data, item: Item) -> RotateCredentials:
    return RotateCredentials(machine_id=item["id"])


def _keep_each(item: Item, reply: Data) -> Item:
    return {**item, "old_opens": str(reply.get("old_opens") or "not_tried")}


def _batch_result(data: Data) -> Data:
    names = data["names"]
    problems: list[tuple[Item, Problem]] = [(out, out["problem"]) for out in data.get("dropped", [])]
    return {
        "rotated": [{"id": item["id"], "name": item["name"]} for item in data["machines"]],
        "old_opens": [item["name"] for item in data["machines"] if item.get("old_opens") == "yes"],
        "failed": [{"id": out["id"], "name": names.get(out["id"], ""), "problem": why} for out, why in problems],
        "skipped": data.get("skipped", []),
    }


rotate_credentials = saga(
    "rotate_credentials",
    step(rotate_each, each="machines", within=timedelta(hours=2), then=_keep_each, on_failure="drop"),
    result=_batch_result,
)

ROTATION_SAGAS = (rotate_machine_credentials, rotate_credentials)
