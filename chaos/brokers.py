"""The hub's NATS servers as the harness runs them: one, or three with every stream on all of them; and a site's leaf.

They are those of a local deployment, except that the leaf reaches the hub through links of ours, and that a hub
server does not tell the leaf its own address, which would lead it around them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy.local import nats_servers
from deploy.local.layout import Ports
from libs.runtime.embedded import EmbeddedNats

ONE = ("nats-hub",)
THREE = ("nats-hub-1", "nats-hub-2", "nats-hub-3")
_LEAF_LISTEN = re.compile(r"leafnodes \{ listen: (\S+) \}")
_SERVER_NAME = re.compile(r"^server_name: \S+$", re.MULTILINE)
# Four ports a server (clients, leaf nodes, monitoring, routes); a simulated site has no hosts that need them.
_PORTS_EACH = 4


def hub_port(ports: Ports, number: int) -> int:
    """Where clients reach hub server `number` (from 0)."""
    return ports.hub if number == 0 else ports.first_host + number * _PORTS_EACH


def leaf_listen_port(ports: Ports, number: int) -> int:
    """Where hub server `number` waits for sites."""
    return ports.hub_leaf_listen if number == 0 else hub_port(ports, number) + 1


def _monitor_port(ports: Ports, number: int) -> int:
    return ports.hub_monitor if number == 0 else hub_port(ports, number) + 2


def _route_port(ports: Ports, number: int) -> int:
    return ports.first_host + number * _PORTS_EACH + 3


def store(var: Path, name: str) -> Path:
    """The folder of JetStream's streams of the hub's account on server `name`."""
    return var / "nats" / name / "js" / "jetstream" / "HUB" / "streams"


def hubs(var: Path, ports: Ports, names: Sequence[str]) -> list[EmbeddedNats]:
    """The hub's servers, named `names`."""
    plain = nats_servers.hub(var, ports)
    return [_hub(plain, var, ports, names, number) for number in range(len(names))]


def _hub(plain: EmbeddedNats, var: Path, ports: Ports, names: Sequence[str], number: int) -> EmbeddedNats:
    name = names[number]
    client, leaf, monitor = (port(ports, number) for port in (hub_port, leaf_listen_port, _monitor_port))
    config, found = _LEAF_LISTEN.subn(f"leafnodes {{ listen: 127.0.0.1:{leaf}, no_advertise: true }}", plain.config)
    assert found == 1, "deploy/nats/hub.conf.template has another leafnodes block than the harness knows"
    config = config.replace(f"127.0.0.1:{ports.hub}\n", f"127.0.0.1:{client}\n")
    config = config.replace(f"127.0.0.1:{ports.hub_monitor}\n", f"127.0.0.1:{monitor}\n")
    config = config.replace(f"/{plain.name}/js", f"/{name}/js")
    more = [leaf, monitor]
    if len(names) > 1:
        config = _SERVER_NAME.sub(f"server_name: {name}", config)
        routes = ", ".join(f'"nats://127.0.0.1:{_route_port(ports, other)}"' for other in range(len(names)))
        config += f"cluster {{ name: hub, listen: 127.0.0.1:{_route_port(ports, number)}, routes: [{routes}] }}\n"
        more.append(_route_port(ports, number))
    return replace(plain, name=name, port=client, config=config, more_ports=tuple(more))


def leaf(var: Path, ports: Ports, through: Sequence[int]) -> EmbeddedNats:
    """The site's server, which reaches the hub by the link ports `through`."""
    plain = nats_servers.leaf(var, ports)
    wanted = re.compile(rf'"nats://([^"@]+)@127\.0\.0\.1:{ports.hub_leaf_listen}"')
    config, found = wanted.subn(
        lambda match: ", ".join(f'"nats://{match[1]}@127.0.0.1:{port}"' for port in through), plain.config
    )
    assert found == 1, "deploy/nats/leaf.conf.template has another remote than the harness knows"
    return replace(plain, config=config)
