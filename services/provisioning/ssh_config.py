"""An OpenSSH client configuration for a cluster's nodes, and the known_hosts lines it stands on.

A node whose host key is not known gets no known_hosts line: `StrictHostKeyChecking yes` then refuses to log in,
which is right, because nobody can say who would answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts.provisioning import NodeFacts

DEFAULT_KNOWN_HOSTS_FILE = "~/.ssh/slipway_known_hosts"


def ssh_config(cluster_name: str, nodes: Sequence[NodeFacts], *, user: str, known_hosts_file: str) -> str:
    """The `Host` blocks, one a node by its name. HostKeyAlias makes the host key a node's, not an address's."""
    blocks = [
        f"# Cluster {cluster_name}. Save as a file and use it with: ssh -F FILE NODE\n"
        f"# The lines of known_hosts belong into {known_hosts_file}.\n"
    ]
    for node in nodes:
        if not node.address:
            blocks.append(f"# {node.name} has no address yet.\n")
            continue
        blocks.append(
            f"Host {node.name}\n"
            f"    HostName {node.address}\n"
            f"    Port {node.ssh_port}\n"
            f"    User {user}\n"
            f"    HostKeyAlias {node.name}\n"
            f'    UserKnownHostsFile "{known_hosts_file}"\n'
            "    StrictHostKeyChecking yes\n"
        )
    return "\n".join(blocks)


def known_hosts(nodes: Sequence[NodeFacts]) -> str:
    """One line a node: its name (the HostKeyAlias), key type and key."""
    lines = []
    for node in nodes:
        key = " ".join(node.ssh_host_key.split()[:2])
        if key:
            lines.append(f"{node.name} {key}\n")
    return "".join(lines)
