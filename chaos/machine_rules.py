"""What is promised of machines, their claims, and what is billed for them."""

from __future__ import annotations

from collections import Counter, defaultdict

from chaos.breaches import Breaches
from chaos.history import History, SiteAct

LIVE_CLAIMS = ("HELD", "CLAIMED", "RETURNING")


def a_machine_has_one_live_claim(history: History) -> Breaches:
    """Fold reservation's events in their order: a claim that becomes live finds its machine free.

    Claims that a restored database has forgotten end with it: what the site still knows of them is another rule's.
    """
    holder: dict[str, tuple[str, str]] = {}
    forgets_after = {restore.goes_on_after.get("reservation", 0) for restore in history.restores}
    for event in history.streams.get("reservation", ()):
        if event.sequence - 1 in forgets_after:
            holder.clear()
        claims = event.facts.get("claims") or ()
        # What an event ends makes room for what it begins: a replacement is one event.
        for claim in sorted(claims, key=lambda claim: claim["state"] in LIVE_CLAIMS):
            machine, line = claim["machine_id"], event.model_dump_json()
            kept = holder.get(machine)
            if claim["state"] not in LIVE_CLAIMS:
                if kept is not None and kept[0] == claim["id"]:
                    del holder[machine]
            elif kept is not None and kept[0] != claim["id"]:
                yield f"machine {machine} has the live claims {kept[0]} and {claim['id']}", [kept[1], line]
            else:
                holder[machine] = (claim["id"], line)


def a_claim_is_deployed_once(history: History) -> Breaches:
    """A second deploy for a claim is right only after the first has failed."""
    for machine, acts in _by_machine(history).items():
        deployed: dict[str, SiteAct] = {}
        for act in acts:
            if act.what == "failed":
                deployed.pop(act.subject, None)
            elif act.what == "deploy":
                before = deployed.get(act.subject)
                if before is not None:
                    yield f"{machine} was deployed twice for claim {act.subject}", _lines(before, act)
                deployed[act.subject] = act


def nothing_is_deployed_after_its_release(history: History) -> Breaches:
    for machine, acts in _by_machine(history).items():
        released: dict[str, SiteAct] = {}
        for act in acts:
            if act.what == "released":
                released[act.subject] = act
            elif act.what in ("deploy", "claimed") and act.subject in released:
                yield f"{machine}: {act.what} for claim {act.subject} after it", _lines(released[act.subject], act)


def a_machine_is_wiped_between_claims(history: History) -> Breaches:
    for machine, acts in _by_machine(history).items():
        dirty: SiteAct | None = None
        for act in acts:
            if act.what == "cleaned":
                dirty = None
            elif act.what == "deploy":
                if dirty is not None and dirty.subject != act.subject:
                    yield f"{machine} went from one claim to another unwiped", _lines(dirty, act)
                dirty = act


def a_machine_carries_one_claim_at_the_site(history: History) -> Breaches:
    for machine, acts in _by_machine(history).items():
        held: SiteAct | None = None
        for act in acts:
            if act.what == "claimed":
                if held is not None and held.subject != act.subject:
                    yield f"{machine} was claimed while it carried another claim", _lines(held, act)
                held = act
            elif act.what == "released":
                held = None


def _by_machine(history: History) -> dict[str, list[SiteAct]]:
    found = defaultdict(list)
    for act in sorted(history.site, key=lambda act: act.number):
        found[act.machine].append(act)
    return found


def _lines(*acts: SiteAct) -> list[str]:
    return [act.model_dump_json() for act in acts]


def owners_agree_at_rest(history: History) -> Breaches:
    """What inventory says of a machine and what reservation says of its claim, where no process is open on either.

    After a restore it takes people to bring the two together again.
    """
    if history.restores:
        return
    busy = {saga.target for saga in history.sagas if saga.phase != "finished"}
    machines = {machine.id: machine for machine in history.machines}
    live = {claim.id: claim for claim in history.claims if claim.state in LIVE_CLAIMS}
    for machine in history.machines:
        if machine.claim_id is None or {machine.id, machine.cluster_id} & busy:
            continue
        if machine.claim_id not in live:
            yield f"{machine.name} carries claim {machine.claim_id}, which is not live", [machine.model_dump_json()]
    for claim in live.values():
        holder = machines.get(claim.machine_id)
        if claim.state == "HELD" or holder is None or {holder.id, holder.cluster_id} & busy:
            continue  # A hold ends by its own time.
        if holder.claim_id != claim.id:
            yield (
                f"claim {claim.id} is {claim.state}, but {holder.name} carries {holder.claim_id}",
                [claim.model_dump_json(), holder.model_dump_json()],
            )


def a_node_is_billed_once(history: History) -> Breaches:
    """Of each cluster's machine at most one start and one stop; as many stops as starts once the cluster is gone.

    After a restore the log has both histories; cost keeps them apart as anomalies.
    """
    if history.restores:
        return
    starts: Counter[tuple[str, str]] = Counter()
    stops: Counter[tuple[str, str]] = Counter()
    gone = set()
    for event in history.streams.get("provisioning", ()):
        node = (event.entity, str(event.facts.get("machine_id")))
        if event.type.endswith(".node_started"):
            starts[node] += 1
        elif event.type.endswith(".node_stopped"):
            stops[node] += 1
        elif event.facts.get("to_state") in ("DELETED", "FAILED"):
            gone.add(event.entity)
    for node in sorted({*starts, *stops}):
        begun, ended = starts[node], stops[node]
        if begun > 1 or ended > begun or (node[0] in gone and ended != begun):
            yield f"machine {node[1]} of {node[0]}: billing started {begun} and stopped {ended} times", []
