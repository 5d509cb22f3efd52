"""The test session's PostgreSQL and NATS on free loopback ports: containers where an engine has them, else embedded.

The two that a whole session shares may be containers (`containers.py` says when). Servers that a test stops, kills
or starts again are always embedded ones, whose processes are ours.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from libs.testing import containers


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def postgres_server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A throw-away PostgreSQL (no fsync). In a container only its url is of use: it has no process here."""
    server = EmbeddedPostgres(folder, free_port(), durable=False)
    started = containers.postgres(server.password)
    if started is not None:
        try:
            yield EmbeddedPostgres(folder, started.port, durable=False)
        finally:
            started.stop()
        return
    process = server.start()
    try:
        yield server
    finally:
        process.stop()


HUB_CONFIG = """
server_name: {name}
listen: {host}:{port}
jetstream {{ store_dir: "{store}", domain: hub, max_mem: 64M, max_file: 40G }}
"""


@contextmanager
def nats_hub(folder: Path, name: str = "hub") -> Iterator[EmbeddedNats]:
    """A throw-away NATS server with JetStream in the domain `hub`, whose process is ours to stop and kill."""
    port = free_port()
    config = HUB_CONFIG.format(name=name, host="127.0.0.1", port=port, store=folder / "nats" / name / "js")
    server = EmbeddedNats(folder, name, port, config)
    process = server.start()
    try:
        yield server
    finally:
        process.stop()


@contextmanager
def shared_nats(folder: Path, name: str = "hub") -> Iterator[EmbeddedNats]:
    """The same for a whole session. In a container only its port is of use: it has no process here."""
    config = HUB_CONFIG.format(name=name, host="0.0.0.0", port=4222, store="/tmp/js")
    started = containers.nats(config)
    if started is None:
        with nats_hub(folder, name) as server:
            yield server
        return
    try:
        yield EmbeddedNats(folder, name, started.port, config)
    finally:
        started.stop()
