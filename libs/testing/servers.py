"""The test session's PostgreSQL and NATS: embedded binaries, one each, on free loopback ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def postgres_server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A throw-away PostgreSQL (no fsync)."""
    server = EmbeddedPostgres(folder, free_port(), durable=False)
    process = server.start()
    try:
        yield server
    finally:
        process.stop()


HUB_CONFIG = """
server_name: {name}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}", domain: hub, max_mem: 64M, max_file: 40G }}
"""


@contextmanager
def nats_hub(folder: Path, name: str = "hub") -> Iterator[EmbeddedNats]:
    """A throw-away NATS server with JetStream in the domain `hub`."""
    port = free_port()
    config = HUB_CONFIG.format(name=name, port=port, store=folder / "nats" / name / "js")
    server = EmbeddedNats(folder, name, port, config)
    process = server.start()
    try:
        yield server
    finally:
        process.stop()
