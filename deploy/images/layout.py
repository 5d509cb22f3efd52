"""Names and ports inside the deployment of docker-compose.yml, and the folders of its configuration volumes."""

from __future__ import annotations

import os
from pathlib import Path

PREPARE = Path("/prepare")  # In `init`: one folder, and one volume, a part.
OWN = PREPARE / "own"  # Every secret that was ever made; only `init` and `prepare-hub` mount it.
CONFIG = Path("/config")  # In every other part: its own folder of the above.

POSTGRES, POSTGRES_PORT = "postgres", 5432
HUB_NATS, LEAF_NATS, NATS_PORT = "hub-nats", "leaf-nats", 4222
LEAF_LISTEN_PORT, NATS_MONITOR_PORT = 7422, 8222


def published(name: str, default: int) -> int:
    """A port that is the same inside the gateway's container and on the host's loopback address."""
    return int(os.environ.get(name) or default)


def tenant_port() -> int:
    return published("SLIPWAY_TENANT_PORT", 8080)


def operator_port() -> int:
    return published("SLIPWAY_OPERATOR_PORT", 8081)


def issuer() -> str:
    """The provider's name for itself: true on the host, and inside the network that the gateway shares with it."""
    return f"http://127.0.0.1:{published('SLIPWAY_OIDC_PORT', 8082)}"
