"""One machine's DHCP reservations: ask its site, keep what came of it."""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.dhcp import AddressReservation, RecordReservations, ReserveAddresses
from libs.saga import Data, ToSite, saga, step, to_site

RESERVE_WITHIN = timedelta(minutes=10)
RECORD_WITHIN = timedelta(minutes=5)


def reserve_at_site(data: Data) -> ToSite:
    message = ReserveAddresses(
        machine_id=data["machine_id"],
        machine_name=data["machine_name"],
        reservations=tuple(AddressReservation.model_validate(entry) for entry in data["reservations"]),
    )
    return to_site(data["site"], message)


def _keep_answer(data: Data, reply: Data) -> Data:
    refused = [entry for entry in reply.get("refused") or [] if isinstance(entry, dict)]
    told = {"managed": reply.get("managed") is True, "lasting": reply.get("lasting") is True, "refused": refused}
    return {**data, **told}


def record_failure(data: Data) -> RecordReservations:
    """Undo: nothing to take back at the site, only the reason is kept; it is asked again later."""
    problem = data.get("problem") or {}
    error = str(problem.get("message") or "the site gave no answer")
    return RecordReservations(machine_id=data["machine_id"], operation_id=data["saga_id"], error=error[:500])


def record_reservations(data: Data) -> RecordReservations:
    return RecordReservations(
        machine_id=data["machine_id"],
        operation_id=data["saga_id"],
        managed=data["managed"],
        lasting=data["lasting"],
        refused=tuple(data["refused"]),
    )


reserve_addresses = saga(
    "reserve_addresses",
    step(reserve_at_site, within=RESERVE_WITHIN, retries=2, then=_keep_answer, undo=record_failure),
    step(record_reservations, within=RECORD_WITHIN, retries=2),
    result=lambda data: {name: data.get(name) for name in ("machine_id", "managed", "lasting", "refused")},
)

SAGAS = (reserve_addresses,)
