"""Ironic's provision states as data: what each means here, whether it passes by itself, what it fits, what to do next.

One table for both ends of the bus: the satellite decides its next order by it, inventory holds a machine's state
against it. The names are Ironic's own (openstack/ironic ironic/common/states.py, 39); a test reads them out of the
installed Ironic. No state, "available" least of all, says anything about what is on the disks.
"""

# ruff: noqa: E501 - one state, one line: a table is read down its columns.

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from libs.contracts.inventory import MachineState as S


class Course(StrEnum):
    """Whether a node leaves the state by itself."""

    RESTS = "rests"  # Until somebody orders something.
    MOVES = "moves"  # By itself; how long is the conductor's time limit.
    FAILED = "failed"  # An order of somebody's has failed; it stays until somebody looks.
    HELD = "held"  # A step asked to hold: only "unhold" or "abort" leads on, and only who set the step knows which.


class Next(StrEnum):
    """What the satellite does with a node in the state. Small letters are Ironic's verbs."""

    MANAGE = "manage"
    DELETED = "deleted"
    ABORT = "abort"
    WAIT = "WAIT"  # Look again: it moves by itself.
    DONE = "DONE"  # Nothing to do towards that end.
    PERSON = "PERSON"  # Refuse, and say why: a person or another program is at work.


# Nobody's data is on it, and work on it may be under way.
_CARE = (S.EXPECTED, S.ENROLLING, S.QUARANTINED, S.REMEDIATING, S.MAINTENANCE, S.FAILED, S.DECOMMISSIONING)
_WIPE = (*_CARE, S.SANITIZING, S.RELEASING)
_DEPLOY = (S.PROVISIONING, S.RELEASING, S.FAILED)
_LEAVING = (S.RELEASING, S.FAILED)


@dataclass(frozen=True)
class ProvisionState:
    """`fits`: the machine states in which a node may rightly be in it. `occupied`: a tenant's system may be on it.

    `to_manageable` leads to where a node can be inspected and wiped, `to_free` gets a tenant's system off it.
    """

    name: str
    meaning: str
    course: Course
    fits: tuple[S, ...]
    to_manageable: Next
    to_free: Next = Next.DONE
    occupied: bool = False


def _free(name: str, meaning: str, course: Course, fits: tuple[S, ...], to_manageable: Next) -> ProvisionState:
    return ProvisionState(name, meaning, course, fits, to_manageable)


def _taken(name: str, meaning: str, course: Course, fits: tuple[S, ...], to_free: Next) -> ProvisionState:
    return ProvisionState(name, meaning, course, fits, Next.PERSON, to_free, occupied=True)


_RESTS, _MOVES, _FAILED, _HELD = Course.RESTS, Course.MOVES, Course.FAILED, Course.HELD

# fmt: off
_ALL = (
    _free("enroll", "known to Ironic; its BMC was not reached yet", _RESTS, _CARE, Next.MANAGE),
    _free("verifying", "Ironic tries the BMC's address and credentials", _MOVES, _CARE, Next.WAIT),
    _free("manageable", "its BMC obeys; nothing is deployed, nothing is promised about its disks", _RESTS, _WIPE, Next.DONE),
    _free("inspecting", "Ironic reads its hardware", _MOVES, _CARE, Next.WAIT),
    _free("inspect wait", "Ironic waits for its ramdisk to report its hardware", _MOVES, _CARE, Next.WAIT),
    _free("inspect failed", "Ironic could not read its hardware", _FAILED, _WIPE, Next.MANAGE),
    _free("cleaning", "clean steps run", _MOVES, _WIPE, Next.WAIT),
    _free("clean wait", "a clean step runs on the ramdisk", _MOVES, _WIPE, Next.WAIT),
    _free("clean failed", "a clean step failed: its disks hold what they held", _FAILED, _WIPE, Next.MANAGE),
    _free("clean hold", "a clean step asked to hold; whoever ordered that clean ends it", _HELD, _WIPE, Next.PERSON),
    _free("available", "Ironic would deploy it; whether it was wiped is our own record's word", _RESTS,
          (*_WIPE, S.VALIDATING, S.AVAILABLE, S.CLAIMED, S.PROVISIONING), Next.MANAGE),
    _free("adopt failed", "somebody tried to take over a running machine", _FAILED, _CARE, Next.MANAGE),
    _free("deleted", "undeployed; Ironic goes on by itself", _MOVES, _LEAVING, Next.WAIT),
    _taken("deploying", "Ironic writes or prepares the image", _MOVES, _DEPLOY, Next.WAIT),
    _taken("wait call-back", "Ironic waits for the deploy ramdisk", _MOVES, _DEPLOY, Next.DELETED),
    _taken("deploy hold", "a deploy step asked to hold", _HELD, _DEPLOY, Next.ABORT),
    _taken("deploy complete", "the image is written; becomes active by itself", _MOVES, _DEPLOY, Next.WAIT),
    _taken("deploy failed", "the deploy failed; parts of an image and keys may be on its disks", _FAILED, _DEPLOY, Next.DELETED),
    _taken("active", "a system is deployed and belongs to the instance", _RESTS, (S.ASSIGNED, *_DEPLOY), Next.DELETED),
    _taken("deleting", "Ironic takes the system off", _MOVES, _LEAVING, Next.WAIT),
    _taken("error", "taking the system off has failed; it may still run", _FAILED, _LEAVING, Next.DELETED),
    _taken("adopting", "somebody takes over a machine that runs", _MOVES, (), Next.WAIT),
    _taken("rescuing", "a rescue system is being booted instead of the tenant's", _MOVES, _LEAVING, Next.WAIT),
    _taken("rescue wait", "Ironic waits for the rescue ramdisk", _MOVES, _LEAVING, Next.DELETED),
    _taken("rescue", "a rescue system runs instead of the tenant's", _RESTS, _LEAVING, Next.DELETED),
    _taken("rescue failed", "neither the rescue system nor the tenant's may run", _FAILED, _LEAVING, Next.DELETED),
    _taken("unrescuing", "the tenant's system is being booted again", _MOVES, _LEAVING, Next.WAIT),
    _taken("unrescue failed", "the tenant's system did not come back from a rescue", _FAILED, _LEAVING, Next.DELETED),
    _taken("servicing", "service steps (firmware, settings) change a deployed machine", _MOVES, (S.ASSIGNED, *_LEAVING), Next.WAIT),
    _taken("service wait", "a service step runs on the ramdisk", _MOVES, (S.ASSIGNED, *_LEAVING), Next.DELETED),
    _taken("service hold", "a service step asked to hold; the tenant's system does not run", _HELD, _LEAVING, Next.ABORT),
    _taken("service failed", "a service step failed; the tenant's system may not run", _FAILED, _LEAVING, Next.DELETED),
)
# fmt: on
PROVISION_STATES = {state.name: state for state in _ALL}


def names(*courses: Course, occupied: bool | None = None) -> frozenset[str]:
    """The states of these courses (all when none is named), only the occupied or free ones when asked."""
    return frozenset(
        state.name for state in _ALL if (not courses or state.course in courses) and occupied in (None, state.occupied)
    )


def fits(provision_state: str, machine_state: S) -> bool | None:
    """Whether a node in it may belong to a machine in `machine_state`; None: not a state that we know."""
    known = PROVISION_STATES.get(provision_state)
    return None if known is None else machine_state in known.fits
