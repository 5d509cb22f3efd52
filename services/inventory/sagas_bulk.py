"""One action for many machines: side by side, each with an outcome of its own."""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.inventory import ActOnMachine, BulkAction
from libs.saga import Data, Item, saga, step


def act_each(data: Data, item: Item) -> ActOnMachine:
    return ActOnMachine(
        machine_id=item["id"],
        action=BulkAction(data["action"]),
        reason=data["reason"],
        hold_id=data["hold_id"],
        asked_by=data["asked_by"],
    )


def _result(data: Data) -> Data:
    names = data["names"]
    return {
        "done": [{"id": item["id"], "name": item["name"]} for item in data["machines"]],
        "failed": [
            {"id": out["id"], "name": names.get(out["id"], ""), "problem": out["problem"]}
            for out in data.get("dropped", [])
        ],
        "skipped": data.get("skipped", []),
    }


act_on_machines = saga(
    "act_on_machines",
    step(act_each, each="machines", within=timedelta(minutes=10), retries=2, on_failure="drop"),
    result=_result,
)

BULK_SAGAS = (act_on_machines,)
