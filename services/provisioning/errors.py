"""Permanent codes of what provisioning refuses, with the words a person reads. Codes never change their meaning."""

from __future__ import annotations

from libs.contracts.replies import Problem

BAD_REQUEST = "request.invalid"
NAME_TAKEN = "cluster.name_taken"
NOT_FOUND = "cluster.not_found"
TENANT_UNKNOWN = "tenant.unknown"
TENANT_NEEDED = "tenant.needed"
QUOTA_EXCEEDED = "quota.exceeded"
TOO_MANY_NODES = "template.too_many_nodes"
IMAGE_UNKNOWN = "image.unknown"
TEMPLATE_UNKNOWN = "template.unknown"
PROFILE_UNKNOWN = "profile.unknown"
SITE_UNKNOWN = "site.unknown"
WRONG_STATE = "cluster.wrong_state"
WRONG_NODE_COUNT = "cluster.wrong_node_count"
NOT_PASSED = "validation.not_passed"
KEYS_NOT_CONFIRMED = "ssh_keys.not_confirmed"
NO_ADDRESS = "deploy.no_address"
PRIVATE_KEY = "ssh_key.private_key_pasted"
BAD_KEY = "ssh_key.invalid"
PRECONDITION_FAILED = "precondition.failed"
PRECONDITION_NEEDED = "precondition.needed"
OPERATOR_ONLY = "operator_door.only"


def cluster_not_found(cluster_id: str) -> Problem:
    return Problem(
        code=NOT_FOUND, message=f"There is no cluster {cluster_id!r}.", next_step="List clusters: GET /clusters"
    )


def wrong_state(cluster_id: str, state: str, wanted: str) -> Problem:
    return Problem(
        code=WRONG_STATE,
        message=f"Cluster {cluster_id} is {state}; it can't {wanted} from there.",
        next_step=f"Look at the cluster: GET /clusters/{cluster_id}",
    )


def tenant_unknown(tenant: str) -> Problem:
    return Problem(
        code=TENANT_UNKNOWN,
        message=f"Provisioning knows no tenant {tenant!r}.",
        next_step="Have an operator create the tenant; a new one is known here within a second.",
    )


def quota_exceeded(tenant: str, quota: int, used: int, wanted: int) -> Problem:
    free = max(quota - used, 0)
    return Problem(
        code=QUOTA_EXCEEDED,
        message=(
            f"Tenant {tenant} may have {quota} machines and uses or has asked for {used}; {wanted} more are too many."
        ),
        next_step=f"Ask for at most {free}, delete a cluster, or have an operator raise the quota.",
        details={"quota": quota, "used": used, "wanted": wanted, "free": free},
    )


def too_many_nodes(template: str, most: int, wanted: int) -> Problem:
    return Problem(
        code=TOO_MANY_NODES,
        message=f"Template {template!r} makes clusters of at most {most} nodes; {wanted} were asked for.",
        next_step=f"Ask for at most {most} nodes or choose another template: GET /templates",
    )


def unknown(code: str, kind: str, name: str) -> Problem:
    return Problem(code=code, message=f"There is no {kind} {name!r}.", next_step=f"List what there is: GET /{kind}s")


def wrong_node_count(cluster_id: str, wanted: int, got: int) -> Problem:
    return Problem(
        code=WRONG_NODE_COUNT,
        message=f"Cluster {cluster_id} was to have {wanted} nodes, not {got}.",
        next_step="Look at its operation; this is a fault of the process.",
    )
