"""Make the secrets and configuration of docker-compose.yml, once: `python -m deploy.images.init`.

Every part has a volume of its own and finds there what it alone may know; a satellite's volume holds no secret of
the hub's and the other way round. Running again changes no secret; it writes the same files, and new ones for parts
that have come since.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from string import Template

from deploy.images.layout import (
    CONFIG,
    HUB_NATS,
    LEAF_LISTEN_PORT,
    NATS_MONITOR_PORT,
    NATS_PORT,
    OWN,
    POSTGRES,
    POSTGRES_PORT,
    PREPARE,
    issuer,
    operator_port,
    tenant_port,
)
from deploy.lab.oidc.accounts import ACCOUNTS
from deploy.lab.oidc.provider import new_clients, new_signing_key, write_secret
from deploy.local import people
from deploy.local.layout import SERVICES, SITE
from deploy.local.nats_servers import (
    SITE_PUBLISH,
    SITE_SUBSCRIBE,
    TEMPLATES,
    secret,
    subscribers_issuer,
    subscribers_seed,
)
from deploy.local.nats_users import USERS, secret_name, user_entries
from deploy.local.preparation import DATABASE
from libs.runtime.migrations import owner_role, running_role
from services.audit.signing import make_key


def main() -> None:
    """Write every part's folder."""
    secret(OWN, "postgres")
    shutil.copy(OWN / "secrets" / "postgres.password", PREPARE / "postgres" / "postgres.password")
    broker_files()
    sign_in_files()
    for service in SERVICES:
        environment(service, {**bus_environment(service), **database_environment(service), **_more(service)})
    environment("gateway", bus_environment("gateway"))
    environment(
        "satellite",
        {"SLIPWAY_LEAF_NATS_USER": "satellite", "SLIPWAY_LEAF_NATS_PASSWORD": secret(OWN, f"nats-satellite-{SITE}")},
    )
    shutil.copy(people.bootstrap_file(OWN, issuer()), PREPARE / "identity" / "grants.yaml")
    shutil.copy(people.price_file(OWN), PREPARE / "cost" / "prices.yaml")
    make_key(OWN / "secrets" / "audit-signing.pem")
    private(PREPARE / "audit" / "signing.pem", (OWN / "secrets" / "audit-signing.pem").read_text())
    command_line_files()
    print("every part has its secrets and its configuration")


def environment(part: str, variables: dict[str, str]) -> None:
    """What `entrypoint.sh` sources before it starts the part."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    private(PREPARE / part / "environment", "".join(lines))


def private(path: Path, content: str) -> None:
    """A file that its owner alone reads, whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.touch(mode=0o600)
    draft.write_text(content)
    draft.replace(path)


def _more(service: str) -> dict[str, str]:
    """Secrets that one service alone has."""
    if service != "subscription":
        return {}
    return {
        "SLIPWAY_SUBSCRIBERS_ISSUER_SEED": subscribers_seed(OWN),
        "SLIPWAY_WEBHOOK_KEY": secret(OWN, "webhooks"),
    }


def bus_environment(user: str) -> dict[str, str]:
    """Each part has a user of its own at the broker."""
    return {"SLIPWAY_NATS_USER": user, "SLIPWAY_NATS_PASSWORD": secret(OWN, secret_name(user))}


def database_environment(service: str) -> dict[str, str]:
    """The two roles of a service; see docs/architecture for why there are two."""
    roles = {"SLIPWAY_DATABASE_URL": running_role(service), "SLIPWAY_OWNER_DATABASE_URL": owner_role(service)}
    where = f"{POSTGRES}:{POSTGRES_PORT}/{DATABASE}"
    return {name: f"postgresql://{role}:{secret(OWN, role)}@{where}" for name, role in roles.items()}


def broker_files() -> None:
    """The hub's and the leaf's server.conf, from the templates that every deployment uses."""
    shared = {"host": "0.0.0.0", "port": NATS_PORT, "store": "/state/js", "site": SITE}
    site_password = secret(OWN, f"nats-site-{SITE}")
    hub = Template((TEMPLATES / "hub.conf.template").read_text()).substitute(
        shared,
        monitor_port=NATS_MONITOR_PORT,
        leaf_port=LEAF_LISTEN_PORT,
        sys_password=secret(OWN, "nats-sys"),
        services_password=secret(OWN, "nats-services"),
        service_users=user_entries(lambda name: secret(OWN, name)),
        service_names=", ".join(USERS),
        site_password=site_password,
        subscribers_issuer=subscribers_issuer(OWN),
        site_publish=json.dumps([subject.format(site=SITE) for subject in SITE_PUBLISH]),
        site_subscribe=json.dumps([subject.format(site=SITE) for subject in SITE_SUBSCRIBE]),
    )
    leaf = Template((TEMPLATES / "leaf.conf.template").read_text()).substitute(
        shared,
        sys_password=secret(OWN, f"nats-sys-{SITE}"),
        satellite_password=secret(OWN, f"nats-satellite-{SITE}"),
        site_password=site_password,
        hub_host=HUB_NATS,
        hub_leaf_port=LEAF_LISTEN_PORT,
    )
    private(PREPARE / "hub-nats" / "server.conf", hub)
    private(PREPARE / "leaf-nats" / "server.conf", leaf)


def sign_in_files() -> None:
    """Signing keys and client secrets of the development sign-in; kept, so that issued tokens stay valid."""
    folder = PREPARE / "sign-in"
    if not (folder / "signing-keys.json").exists():
        write_secret(folder / "signing-keys.json", {"keys": [new_signing_key()]})
    if not (folder / "clients.json").exists():
        write_secret(folder / "clients.json", new_clients())


def command_line_files() -> None:
    """One context an account for the command line's container; `operator` is current."""
    folder = PREPARE / "cli"
    clients = json.loads((PREPARE / "sign-in" / "clients.json").read_text())["service_clients"]
    contexts = {}
    for account in ACCOUNTS:
        name = f"{account.service_client}.secret"
        private(folder / name, clients[account.service_client]["secret"])
        contexts[account.subject] = {
            "tenant_url": f"http://127.0.0.1:{tenant_port()}/v1",
            "operator_url": f"http://127.0.0.1:{operator_port()}/operator/v1",
            "issuer": issuer(),
            "client_id": account.service_client,
            "client_secret_file": str(CONFIG / name),
        }
    private(folder / "config.json", json.dumps({"current": "operator", "contexts": contexts}, indent=2))


if __name__ == "__main__":
    main()
