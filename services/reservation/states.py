"""The lives of a claim and of a reservation. A reservation's state follows from its claims (see `model.settled`)."""

from __future__ import annotations

from libs.contracts.reservation import ClaimState
from libs.fsm import Limit, Table, Transition

HELD, CLAIMED, RETURNING = ClaimState.HELD, ClaimState.CLAIMED, ClaimState.RETURNING
ENDED, EXPIRED, REFUSED = ClaimState.ENDED, ClaimState.EXPIRED, ClaimState.REFUSED

# What hold_machines asks for when it names no time: the table's limit is the usual one, the row's own is obeyed.
DEFAULT_HOLD_SECONDS = 1800

CLAIM = Table(
    "claim",
    ClaimState,
    initial=(HELD,),
    final=(ENDED, EXPIRED, REFUSED),
    transitions=(
        Transition("confirm", (HELD,), CLAIMED, "inventory accepted the machine"),
        Transition("expire", (HELD,), EXPIRED, "it was not confirmed within its time limit"),
        Transition("refuse", (HELD,), REFUSED, "replaced by another before inventory took the machine"),
        Transition("drop", (HELD,), ENDED, "released before inventory took the machine"),
        Transition("give_back", (HELD, CLAIMED), RETURNING, "released or replaced; inventory takes the machine back"),
        Transition("end", (RETURNING,), ENDED, "inventory says the machine is back or kept out of the pool"),
    ),
    limits={HELD: Limit(seconds=DEFAULT_HOLD_SECONDS, then="expire")},
    # CLAIMED lasts as long as its cluster; RETURNING until inventory's return saga ends, which has limits of its own.
    restful=(CLAIMED, RETURNING),
)

RESERVATION = Table(
    "reservation",
    ClaimState,
    initial=(HELD, REFUSED),
    final=(ENDED, EXPIRED, REFUSED),
    transitions=(
        Transition("change", (HELD,), HELD, "a claim was confirmed, replaced or expired; others are still HELD"),
        Transition("change", (CLAIMED,), CLAIMED, "a claim is being replaced"),
        Transition("confirm", (HELD, CLAIMED), CLAIMED, "every claim that is kept is CLAIMED"),
        Transition("give_back", (HELD, CLAIMED, RETURNING), RETURNING, "no claim is kept; some machines are returning"),
        Transition("expire", (HELD,), EXPIRED, "no claim was confirmed within the time limit"),
        Transition("end", (HELD, CLAIMED, RETURNING), ENDED, "every claim has ended"),
    ),
    limits={HELD: Limit(seconds=DEFAULT_HOLD_SECONDS, then="expire")},
    restful=(CLAIMED, RETURNING),
)
