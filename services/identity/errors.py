"""Permanent codes of identity's refusals. Clients rely on them; a code is never re-used for something else."""

from __future__ import annotations

from libs.contracts.calls import Answer, problem

ORGANIZATION_EXISTS = "organization.exists"
ORGANIZATION_NAME_TAKEN = "organization.name_taken"
ORGANIZATION_UNKNOWN = "organization.unknown"
TENANT_EXISTS = "tenant.exists"
TENANT_NAME_TAKEN = "tenant.name_taken"
GRANT_EXISTS = "grant.exists"
GRANT_SCOPE_UNKNOWN = "grant.scope_unknown"
GRANT_LAST_OPERATOR = "grant.last_operator"
GRANT_REVOKED = "grant.already_revoked"
OPERATOR_DOOR_ONLY = "identity.operator_door_only"


def operator_door_only() -> Answer:
    """Who may manage below an organization is decided at the operator door; the tenant door only reads."""
    return problem(
        403,
        OPERATOR_DOOR_ONLY,
        "Organizations, tenants and grants are managed at the operator door.",
        "Ask an operator of this installation.",
    )
