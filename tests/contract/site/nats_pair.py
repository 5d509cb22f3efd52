"""A hub's and a site's NATS server on private ports, with the streams that the bus's topology declares."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import nats

from libs.bus.topology import apply_hub, apply_site, load_topology
from libs.runtime.processes import Process, tcp_ready

SITE = "fra1"
SERVER = Path(__file__).resolve().parents[3] / ".venv" / "bin" / "nats-server"


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class NatsPair:
    """The two servers. `hub_url` and `leaf_url` carry the credentials."""

    hub: Process
    leaf: Process
    hub_url: str
    leaf_url: str

    def stop(self) -> None:
        self.leaf.stop()
        self.hub.stop()


def _server(folder: Path, name: str, port: int, config: str) -> Process:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.conf"
    path.write_text(config)
    return Process(
        name=f"nats-{name}", argv=[str(SERVER), "-c", str(path)], var=folder, ready=tcp_ready(port), ports=(port,)
    )


def nats_pair(folder: Path) -> NatsPair:
    """Configured, not started."""
    hub_port, leaf_port, leafnode_port = free_port(), free_port(), free_port()
    accounts = "accounts { APP: { jetstream: enabled, users: [{user: app, password: app}] } }"
    hub = _server(
        folder,
        "hub",
        hub_port,
        f"""server_name: hub
listen: 127.0.0.1:{hub_port}
jetstream {{ store_dir: {folder}/hub, domain: hub, max_mem: 64M, max_file: 64G }}
leafnodes {{ listen: 127.0.0.1:{leafnode_port} }}
{accounts}
""",
    )
    leaf = _server(
        folder,
        "leaf",
        leaf_port,
        f"""server_name: leaf-{SITE}
listen: 127.0.0.1:{leaf_port}
jetstream {{ store_dir: {folder}/leaf, domain: {SITE}, max_mem: 64M, max_file: 64G, sync_interval: always }}
{accounts}
leafnodes {{ reconnect: 1, remotes: [ {{ urls: ["nats://app:app@127.0.0.1:{leafnode_port}"], account: APP }} ] }}
""",
    )
    return NatsPair(hub, leaf, f"nats://app:app@127.0.0.1:{hub_port}", f"nats://app:app@127.0.0.1:{leaf_port}")


async def declare(pair: NatsPair) -> None:
    """The hub's and the site's streams."""
    for url, apply in ((pair.hub_url, "hub"), (pair.leaf_url, "site")):
        client = await nats.connect(url)
        try:
            if apply == "hub":
                await apply_hub(client.jetstream(), load_topology(), (SITE,))
            else:
                await apply_site(client.jetstream(), load_topology(), SITE)
        finally:
            await client.close()
