"""The people and service clients that exist at the development provider.

One list (`accounts.json`) is read by the provider and by whoever seeds Slipway's identity service,
so that a subject at the one is a member at the other. Roles are not claims: they live in Slipway's
identity service by issuer and subject. Development only: nobody here has a password.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

TENANT_AUDIENCE = "slipway-api"
OPERATOR_AUDIENCE = "slipway-operator"
RESOURCES = {TENANT_AUDIENCE: "urn:slipway:api", OPERATOR_AUDIENCE: "urn:slipway:operator"}
"""The resource indicator (RFC 8707) that a client sends to get a token of each audience."""

CLI_CLIENT = "slipway-cli"
CONSOLE_CLIENT = "slipway-console"


@dataclass(frozen=True)
class Account:
    """A person at the provider and where they belong in Slipway; `scope` is "installation" or "tenant"."""

    subject: str
    name: str
    groups: tuple[str, ...]
    scope: str
    organization: str | None
    tenant: str | None

    @property
    def service_client(self) -> str:
        """The client that signs in as this account without a browser; its secret is in clients.json."""
        return f"svc-{self.subject}"


def _load() -> tuple[Account, ...]:
    rows = json.loads((Path(__file__).parent / "accounts.json").read_text())
    return tuple(Account(**{**row, "groups": tuple(row["groups"])}) for row in rows)


ACCOUNTS = _load()
