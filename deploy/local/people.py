"""Who exists in a local deployment: first organizations, tenants, roles and prices, and a signed-in command line."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from deploy.lab.oidc.accounts import ACCOUNTS
from deploy.lab.oidc.provider import OidcLab
from deploy.local.layout import Ports

ROLES = {"operator": "operator", "auditor": "auditor", "finance": "finance"}
MACHINE_QUOTA = 100
PRICES = (("h100-sxm-8", "36.00"), ("cpu-node", "2.40"))  # EUR per machine-hour: made up, of the usual size.


def bootstrap_file(var: Path, issuer: str) -> Path:
    """Organizations, tenants and roles for the accounts of the development sign-in."""
    tenants = [a for a in ACCOUNTS if a.tenant]
    organizations = sorted({str(a.organization) for a in tenants})
    content = {
        "issuer": issuer,
        "organizations": [{"id": name, "name": name.capitalize()} for name in organizations],
        "tenants": [
            {
                "id": a.tenant,
                "organization_id": a.organization,
                "name": str(a.tenant).replace("-", " ").capitalize(),
                "machine_quota": MACHINE_QUOTA,
            }
            for a in tenants
        ],
        "grants": [
            {"subject": a.subject, "role": ROLES[a.subject], "scope_kind": "installation"}
            for a in ACCOUNTS
            if a.subject in ROLES
        ]
        + [{"subject": a.subject, "role": "admin", "scope_kind": "tenant", "scope_id": a.tenant} for a in tenants],
    }
    return _yaml(var / "config" / "grants.yaml", content)


def price_file(var: Path) -> Path:
    """First prices."""
    prices = [
        {
            "profile": profile,
            "price_per_machine_hour": price,
            "currency": "EUR",
            "valid_from": "2026-01-01T00:00:00Z",
        }
        for profile, price in PRICES
    ]
    return _yaml(var / "config" / "prices.yaml", {"prices": prices})


def sign_in_command_line(var: Path, ports: Ports, oidc: OidcLab) -> Path:
    """One context an account; `operator` is current. Secrets stay in a file that only we can read."""
    clients = json.loads((oidc.state / "clients.json").read_text())["service_clients"]
    contexts = {}
    for account in ACCOUNTS:
        secret = var / "secrets" / f"{account.service_client}.secret"
        secret.touch(mode=0o600)
        secret.write_text(clients[account.service_client]["secret"])
        contexts[account.subject] = {
            "tenant_url": f"http://127.0.0.1:{ports.tenant_door}/v1",
            "operator_url": f"http://127.0.0.1:{ports.operator_door}/operator/v1",
            "issuer": oidc.issuer,
            "client_id": account.service_client,
            "client_secret_file": str(secret.resolve()),
            "door": "tenant" if account.tenant else "operator",
        }
    path = var / "slipway" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps({"current": "operator", "contexts": contexts}, indent=2))
    return path


def _yaml(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path
