"""The promises, as pure functions from a recorded history to the ways in which it breaks them.

docs/architecture/guarantees.md states the promises; tests/chaos shows that each rule can fail.
"""

from __future__ import annotations

from chaos import event_rules, machine_rules, operation_rules
from chaos.breaches import MOST_SHOWN, Broken, Rule
from chaos.history import History

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        operation_rules.every_request_is_answered,
        operation_rules.a_repeat_is_the_same_request,
        operation_rules.an_accepted_request_has_one_outcome,
        operation_rules.two_creations_are_two_operations,
        machine_rules.a_machine_has_one_live_claim,
        machine_rules.a_machine_carries_one_claim_at_the_site,
        machine_rules.a_claim_is_deployed_once,
        machine_rules.nothing_is_deployed_after_its_release,
        machine_rules.a_machine_is_wiped_between_claims,
        machine_rules.owners_agree_at_rest,
        machine_rules.a_node_is_billed_once,
        event_rules.a_stream_is_gapless_and_in_order,
        event_rules.an_entity_has_no_gap,
        event_rules.a_tenant_sees_no_gap,
        event_rules.what_was_committed_is_published,
        event_rules.the_audit_store_has_every_event,
        event_rules.what_was_seen_is_never_rewritten,
        event_rules.the_common_stream_has_every_event_once,
        event_rules.a_projection_equals_its_rebuild,
        operation_rules.a_saga_ends_or_goes_on_or_says_why_not,
        operation_rules.the_system_comes_to_rest,
        operation_rules.no_dead_letter_is_unexplained,
    )
}


def judge(history: History) -> list[Broken]:
    """Every breach of every rule, at most MOST_SHOWN a rule."""
    found = []
    for name, rule in RULES.items():
        for number, (what, evidence) in enumerate(rule(history)):
            if number == MOST_SHOWN:
                break
            found.append(Broken(name, what, tuple(evidence[:MOST_SHOWN])))
    return found
