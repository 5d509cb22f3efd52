"""The hub's NATS server and the site's leaf, configured from deploy/nats, with passwords of this deployment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from string import Template

import nkeys

from deploy.local.layout import REPOSITORY, SITE, Ports
from deploy.local.nats_users import USERS, user_entries
from libs.runtime.embedded import EmbeddedNats, kept_secret

TEMPLATES = REPOSITORY / "deploy" / "nats"

# What crosses a site's leaf connection, hub side. See docs/architecture/bus.md for why each is needed.
SITE_PUBLISH = (
    "$JS.hub.API.CONSUMER.MSG.NEXT.SITE_{site}.satellite",
    "$JS.hub.API.STREAM.INFO.SITE_{site}",
    "$JS.API.CONSUMER.MSG.NEXT.SITE_{site}.satellite",
    "$JS.API.STREAM.INFO.SITE_{site}",
    "$JS.ACK.SITE_{site}.>",
    "$JS.{site}.>",
    "$JSC.>",
    "_INBOX.>",
    "_R_.>",
    "_GR_.>",
    "sourced.{site}",
    "local.{site}.>",
)
SITE_SUBSCRIBE = (
    "$JS.{site}.API.>",
    "$JS.FC.>",
    "_INBOX.>",
    "_R_.>",
    "_GR_.>",
)


def secret(var: Path, name: str) -> str:
    """A password of this deployment, made once."""
    return kept_secret(var / "secrets" / f"{name}.password")


def subscribers_seed(var: Path) -> str:
    """The key by which the subscription service vouches for subscribers, made once: a NATS account seed."""
    path = var / "secrets" / "nats-subscribers.seed"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_ACCOUNT))
        draft.replace(path)
    return path.read_text().strip()


def subscribers_issuer(var: Path) -> str:
    """The public half, which the broker's configuration names."""
    pair = nkeys.from_seed(bytearray(subscribers_seed(var).encode()))
    public: bytes = pair.public_key
    return public.decode()


def _subjects(patterns: tuple[str, ...], site: str) -> str:
    return json.dumps([pattern.format(site=site) for pattern in patterns])


def hub(var: Path, ports: Ports) -> EmbeddedNats:
    """The hub's server."""
    config = Template((TEMPLATES / "hub.conf.template").read_text()).substitute(
        host="127.0.0.1",
        port=ports.hub,
        monitor_port=ports.hub_monitor,
        leaf_port=ports.hub_leaf_listen,
        store=(var / "nats" / "nats-hub" / "js").resolve(),
        site=SITE,
        sys_password=secret(var, "nats-sys"),
        services_password=secret(var, "nats-services"),
        service_users=user_entries(lambda name: secret(var, name)),
        service_names=", ".join(USERS),
        site_password=secret(var, f"nats-site-{SITE}"),
        subscribers_issuer=subscribers_issuer(var),
        site_publish=_subjects(SITE_PUBLISH, SITE),
        site_subscribe=_subjects(SITE_SUBSCRIBE, SITE),
    )
    return EmbeddedNats(var, "nats-hub", ports.hub, config, (ports.hub_leaf_listen, ports.hub_monitor))


def leaf(var: Path, ports: Ports) -> EmbeddedNats:
    """The site's server."""
    config = Template((TEMPLATES / "leaf.conf.template").read_text()).substitute(
        host="127.0.0.1",
        port=ports.leaf,
        store=(var / "nats" / "nats-leaf" / "js").resolve(),
        site=SITE,
        sys_password=secret(var, "nats-sys"),
        satellite_password=secret(var, f"nats-satellite-{SITE}"),
        site_password=secret(var, f"nats-site-{SITE}"),
        hub_host="127.0.0.1",
        hub_leaf_port=ports.hub_leaf_listen,
    )
    return EmbeddedNats(var, "nats-leaf", ports.leaf, config)
