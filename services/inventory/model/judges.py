"""The comparisons behind the invariants: each looks at one subject and says what contradicts, nothing, or not known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from libs.contracts.inventory import MachineState
from libs.contracts.provision_states import PROVISION_STATES, fits
from services.inventory.model.subject import Contradiction, Judge, Judgement, Node, Provider, Subject, Unknown

S = MachineState
# Ironic's own picture lags behind an order of ours by seconds.
SETTLE = timedelta(seconds=10)
# An observation is repeated every minute; older than three of them it is no longer what is.
FRESH = timedelta(minutes=3)
# A lock that one conductor holds longer than the longest step between two heartbeats of a clean is stuck.
LOCK_LIMIT = timedelta(minutes=30)

_WORKED_ON = (S.ENROLLING, S.SANITIZING, S.VALIDATING, S.RELEASING, S.DECOMMISSIONING)
CARED_FOR = (S.SANITIZING, S.VALIDATING, S.AVAILABLE, S.CLAIMED, S.PROVISIONING, S.ASSIGNED)
OFFERED = (S.AVAILABLE, S.CLAIMED)


def of_node(states: tuple[S, ...], look: Callable[[Subject, Node], Contradiction | None]) -> Judge:
    """Judge a machine in one of `states` by its node, when the node was seen since its last step and lately."""

    def judge(subject: Subject, now: datetime) -> Judgement:
        if subject.state not in states:
            return None
        if subject.worked_on:
            return Unknown("a process of ours works on it")
        node = subject.node
        if node is None or node.gone_at is not None:
            # A site that is heard and lists no node of it says that nothing is there; node-missing judges that.
            return None if subject.site_heard else Unknown("its site was not heard lately")
        if node.observed_at < subject.state_since + SETTLE:
            return Unknown("its node was not seen since its last step")
        if not subject.site_heard or node.observed_at < now - FRESH:
            return Unknown("its site was not heard lately")
        return look(subject, node)

    return judge


def deployed_unclaimed(subject: Subject, node: Node) -> Contradiction | None:
    known = PROVISION_STATES.get(node.provision_state)
    if subject.claim_id is not None or not (node.instance_uuid or (known is not None and known.occupied)):
        return None
    return Contradiction("nothing deployed", f"{node.provision_state}, instance {node.instance_uuid or 'none'}")


def another_instance(subject: Subject, node: Node) -> Contradiction | None:
    if node.instance_uuid in (None, "", subject.claim_id):
        return None
    return Contradiction(f"claim {subject.claim_id}", f"instance {node.instance_uuid}")


def not_deployed(subject: Subject, node: Node) -> Contradiction | None:
    if node.instance_uuid and fits(node.provision_state, S.ASSIGNED) is not False:
        return None
    return Contradiction(
        f"deployed for claim {subject.claim_id}",
        f"{node.provision_state}, instance {node.instance_uuid or 'none'}",
    )


def off(subject: Subject, node: Node) -> Contradiction | None:
    return Contradiction("on", "off") if node.power_state == "off" else None


def on(subject: Subject, node: Node) -> Contradiction | None:
    return Contradiction("off", "on") if node.power_state == "on" else None


def power_unknown(subject: Subject, node: Node) -> Contradiction | None:
    return Contradiction("off", "not known") if node.power_state not in ("on", "off") else None


def not_deployable(subject: Subject, node: Node) -> Contradiction | None:
    known = PROVISION_STATES.get(node.provision_state)
    if known is None or known.occupied or S.AVAILABLE in known.fits:
        return None
    return Contradiction("available", node.provision_state)


def unknown_state(subject: Subject, node: Node) -> Contradiction | None:
    if node.provision_state in PROVISION_STATES:
        return None
    return Contradiction("a state of the Ironic that this release knows", node.provision_state or "(blank)")


def others_maintenance(subject: Subject, node: Node) -> Contradiction | None:
    if node.maintenance_owner != "other":
        return None
    return Contradiction("not in maintenance", f"in maintenance: {node.maintenance_reason or 'no reason given'}")


def fault(subject: Subject, node: Node) -> Contradiction | None:
    return Contradiction("reachable", node.fault) if node.maintenance_owner == "ironic" else None


def retired_node(subject: Subject, node: Node) -> Contradiction | None:
    return Contradiction("in use", "retired") if node.retired else None


def class_differs(subject: Subject, node: Node) -> Contradiction | None:
    if not subject.profile or node.resource_class == subject.profile:
        return None
    return Contradiction(subject.profile, node.resource_class or "(none)")


def missing(subject: Subject, now: datetime) -> Judgement:
    if subject.state not in CARED_FOR:
        return None
    if subject.worked_on:
        return Unknown("a process of ours works on it")
    if not subject.site_heard:
        return Unknown("its site was not heard lately")
    if subject.node is None:
        return Contradiction("a node in Ironic", "none was ever seen")
    if subject.node.gone_at is not None:
        return Contradiction("a node in Ironic", f"deleted there, seen at {at(subject.node.gone_at)}")
    if subject.node.observed_at < now - FRESH:
        return Contradiction("a node in Ironic", f"not seen since {at(subject.node.observed_at)}")
    return None


def ghost(subject: Subject, now: datetime) -> Judgement:
    node = subject.node
    if subject.state is not S.RETIRED or node is None or node.gone_at is not None:
        return None
    if not subject.site_heard or node.observed_at < max(now - FRESH, subject.state_since + SETTLE):
        return Unknown("its site was not heard lately")
    return Contradiction("no node in Ironic", f"{node.provision_state}, its power is managed ({node.power_state})")


def without_machine(subject: Subject, now: datetime) -> Judgement:
    node = subject.node
    if subject.state is not None or node is None or node.gone_at is not None:
        return None
    if not subject.site_heard or node.observed_at < now - FRESH:
        return Unknown("its site was not heard lately")
    return Contradiction("not known", f"{node.provision_state}, instance {node.instance_uuid or 'none'}")


def stranded(subject: Subject, now: datetime) -> Judgement:
    if subject.state not in _WORKED_ON or subject.worked_on or subject.operation_phase in ("running", "undoing"):
        return None
    waits = f"{subject.operation_id} waits for a person" if subject.operation_phase == "parked" else "none that runs"
    return Contradiction(f"an operation that works on {subject.state}", waits)


def locked(subject: Subject, now: datetime) -> Judgement:
    node = subject.node
    if subject.state is None or node is None or node.gone_at is not None or node.reserved_since is None:
        return None
    if not subject.site_heard or node.observed_at < now - FRESH:
        return Unknown("its site was not heard lately")
    if node.observed_at - node.reserved_since < LOCK_LIMIT:
        return None
    return Contradiction("not locked for long", f"locked by {node.reservation} since {at(node.reserved_since)}")


def shared(subject: Subject, now: datetime) -> Judgement:
    if subject.state in (None, S.RETIRED) or not subject.shares:
        return None
    return Contradiction("its own", subject.shares)


def of_provider(look: Callable[[Subject, Provider], Contradiction | None]) -> Judge:
    def judge(subject: Subject, now: datetime) -> Judgement:
        if subject.state in (None, S.EXPECTED, S.ENROLLING, S.DECOMMISSIONING, S.RETIRED):
            return None
        if not subject.placement_heard:
            return Unknown("the site has no Placement, or it was not read lately")
        if subject.provider is None:
            return Unknown("Placement has no provider of it")
        if subject.provider.observed_at < subject.state_since + SETTLE:
            return Unknown("its provider was not read since its last step")
        return look(subject, subject.provider)

    return judge


def foreign_allocation(subject: Subject, provider: Provider) -> Contradiction | None:
    foreign = [consumer for consumer in provider.consumers if consumer not in (subject.claim_id, subject.id)]
    return Contradiction(subject.claim_id or "nobody", ", ".join(foreign)) if foreign else None


def open_to_nova(subject: Subject, provider: Provider) -> Contradiction | None:
    if subject.eligible or provider.consumers or provider.reserved >= provider.total:
        return None
    return Contradiction("reserved", f"{provider.total - provider.reserved} of {provider.total} free")


def closed_to_all(subject: Subject, provider: Provider) -> Contradiction | None:
    if not subject.eligible or provider.total == 0:
        return None
    if subject.id in provider.consumers:
        return Contradiction("free", "held by Slipway")
    return Contradiction("free", "reserved") if provider.reserved >= provider.total else None


def ghost_provider(subject: Subject, now: datetime) -> Judgement:
    if subject.state is not S.RETIRED or subject.provider is None:
        return None
    if not subject.placement_heard:
        return Unknown("the site's Placement was not read lately")
    return Contradiction("no provider", f"{subject.provider.total} offered")


def at(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
