"""The life of a cluster. Only provisioning moves one; resize, repair and upgrade have their places already.

CREATING and DELETING are bounded by the limits of their saga's steps, which end in SUCCEEDED, in FAILED after
everything was given back, or with a human's name on them.
"""

from __future__ import annotations

from libs.contracts.provisioning import ClusterState
from libs.fsm import Table, Transition

CREATING, READY, FAILED = ClusterState.CREATING, ClusterState.READY, ClusterState.FAILED
DELETING, DELETED = ClusterState.DELETING, ClusterState.DELETED
RESIZING, REPAIRING, UPGRADING = ClusterState.RESIZING, ClusterState.REPAIRING, ClusterState.UPGRADING

CLUSTER = Table(
    "cluster",
    ClusterState,
    initial=(CREATING,),
    final=(DELETED,),
    transitions=(
        Transition("make_ready", (CREATING,), READY, "every node passed and the template ran"),
        Transition("fail", (CREATING,), FAILED, "everything it took has been given back"),
        Transition("resize", (READY,), RESIZING, "nodes are added or taken away"),
        Transition("repair", (READY,), REPAIRING, "a sick node is replaced"),
        Transition("upgrade", (READY,), UPGRADING, "image or template changes node by node"),
        Transition("make_ready", (RESIZING, REPAIRING, UPGRADING), READY, "the change is done"),
        Transition(
            "delete",
            (CREATING, READY, RESIZING, REPAIRING, UPGRADING, FAILED),
            DELETING,
            "accepted; billing stops now",
        ),
        Transition("gone", (DELETING,), DELETED, "every node was observed off"),
    ),
    restful=(CREATING, READY, RESIZING, REPAIRING, UPGRADING, DELETING, FAILED),
)

# Clusters that hold, or may still hold, machines: they count against the quota and keep their names.
LIVE_STATES = (CREATING, READY, RESIZING, REPAIRING, UPGRADING, DELETING)
