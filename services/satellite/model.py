"""Which commands may still be worked on: pure decisions about fences, age and deadlines.

A machine's *fence* is the newest claim the satellite has seen for it. Rules, from safest to most common:

1. A command whose deadline has passed before it was begun is EXPIRED.
2. A command of a claim that is not the machine's newest is STALE. Which of two claims is newer: the one with the
   higher machine version when both commands are bound to one; else the one first seen later by the hub's clock.
   A claim that was overtaken comes back only with a higher machine version.
3. A command of an older epoch than its sender is known to be in is STALE: the sender's database was restored from a
   backup after it was sent, and nobody there knows of it any more.
4. A command bound to a machine version is STALE when a later command that changes the machine is bound to a
   higher version: the machine has moved on.

So after a cut, a whole backlog is landed first and only what is newest for each machine is worked on. Commands
without a claim and without a version are never stale, and two commands of one claim are worked on in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from libs.contracts.message import Message
from libs.contracts.replies import Outcome, Problem, Reply
from libs.contracts.site import DeployNode, EnrolNode, ReleaseNode, RemoveNode, SanitizeNode, SiteCommand

# Commands after which an older picture of the machine is wrong. Reading and logging in change nothing.
CHANGING: tuple[type[Message], ...] = (EnrolNode, SanitizeNode, DeployNode, ReleaseNode, RemoveNode)
CHANGING_TYPES = frozenset(cls.message_type.type for cls in CHANGING)


@dataclass(frozen=True)
class Fence:
    """The newest claim of one machine, the highest version a command of it carried, and when it was first seen."""

    claim_id: str
    machine_version: int
    first_seen_at: datetime


@dataclass(frozen=True)
class Order:
    """What the decisions need of a command. `stored_at` is when the hub stored it, by the hub's clock."""

    claim_id: str | None
    machine_version: int
    stored_at: datetime
    deadline: datetime | None


def order_of(command: Message, *, stored_at: datetime, deadline: datetime | None) -> Order:
    """The facts of `command`; those that are not about one machine have neither claim nor version."""
    if isinstance(command, SiteCommand):
        return Order(command.claim_id or None, command.machine_version, stored_at, deadline)
    return Order(None, 0, stored_at, deadline)


def moved_fence(fence: Fence | None, order: Order, *, seen_before: bool) -> Fence | None:
    """The fence after `order` has been seen. `seen_before`: its claim held the fence once and lost it."""
    if order.claim_id is None:
        return fence
    if fence is None:
        return Fence(order.claim_id, order.machine_version, order.stored_at)
    if fence.claim_id == order.claim_id:
        version = max(fence.machine_version, order.machine_version)
        return Fence(fence.claim_id, version, min(fence.first_seen_at, order.stored_at))
    if fence.machine_version and order.machine_version and order.machine_version != fence.machine_version:
        newer = order.machine_version > fence.machine_version
    else:
        newer = not seen_before and order.stored_at > fence.first_seen_at
    return Fence(order.claim_id, order.machine_version, order.stored_at) if newer else fence


def objection(
    order: Order,
    *,
    machine: str,
    fence: Fence | None,
    newest_changing_version: int,
    now: datetime,
    epoch: int = 1,
    newest_epoch: int = 1,
) -> Reply | None:
    """Why `order` must not be begun, None when it may. `epoch` is the command's, `newest_epoch` its sender's highest.

    `newest_changing_version` is the highest machine version of later commands that change the machine, 0 for none.
    `now` is the satellite's clock, known to be right within the allowed error.
    """
    if order.deadline is not None and order.deadline <= now:
        return _not_begun(
            Outcome.EXPIRED,
            "command_expired",
            f"The command for {machine} arrived or came up after its deadline {order.deadline.isoformat()}; "
            "nothing was done.",
        )
    if epoch < newest_epoch:
        return _not_begun(
            Outcome.STALE,
            "epoch_stale",
            f"The command for {machine} is of epoch {epoch}; its sender is in epoch {newest_epoch}, after a restore of "
            "its database; nothing was done.",
        )
    if order.claim_id is not None and fence is not None and fence.claim_id != order.claim_id:
        return _not_begun(
            Outcome.STALE,
            "claim_stale",
            f"The command for {machine} belongs to claim {order.claim_id}, but the machine's newest claim is "
            f"{fence.claim_id}; nothing was done.",
        )
    if 0 < order.machine_version < newest_changing_version:
        return _not_begun(
            Outcome.STALE,
            "version_stale",
            f"The command for {machine} is about version {order.machine_version}, but one about version "
            f"{newest_changing_version} came after it; nothing was done.",
        )
    return None


def _not_begun(outcome: Outcome, code: str, message: str) -> Reply:
    return Reply(
        outcome=outcome,
        problem=Problem(code=code, message=message, next_step="Read the machine's present state and decide anew."),
    )
