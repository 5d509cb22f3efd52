"""The test session's servers from containers (testcontainers), where a local Docker engine has an image of them.

SLIPWAY_TEST_CONTAINERS: `auto` (default) uses images that the engine already has and never pulls, so that a test run
depends on no registry; `never` doesn't look. Images: SLIPWAY_TEST_POSTGRES_IMAGE and SLIPWAY_TEST_NATS_IMAGE, else
the usual ones, else our own image. Without an engine the look costs a failed connect to its socket. Whatever goes
wrong here is told on stderr and answered with None: the embedded binaries serve just as well.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

START_LIMIT_SECONDS = 60.0
SOCKET_LIMIT_SECONDS = 1.0
DEFAULT_SOCKET = "/var/run/docker.sock"
OWN_IMAGE = os.environ.get("SLIPWAY_IMAGE", "slipway:local")
POSTGRES_IMAGE = os.environ.get("SLIPWAY_TEST_POSTGRES_IMAGE", "postgres:18")
NATS_IMAGE = os.environ.get("SLIPWAY_TEST_NATS_IMAGE", "nats:2.11")
NATS_CONFIG = "/etc/slipway-nats.conf"
FAST = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "max_connections=200")


@dataclass(frozen=True)
class Image:
    """An image and how a server is run from it."""

    name: str
    command: Sequence[str]


@dataclass(frozen=True)
class Wanted:
    """A server: from the first of `images` that the engine has; `files` are put into it before it starts."""

    images: Sequence[Image]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[Any, int], bool] = lambda _container, _port: True


@dataclass(frozen=True)
class Started:
    """A running server on 127.0.0.1:`port`; `stop` removes it."""

    image: str
    port: int
    stop: Callable[[], None]


def postgres(password: str) -> Started | None:
    """A PostgreSQL without fsync whose superuser `postgres` has `password`, None when no container serves."""

    def ready(container: Any, _port: int) -> bool:
        # By TCP: while it initialises, the usual image runs a server that listens on its Unix socket only.
        return bool(container.exec(["pg_isready", "-q", "-h", "127.0.0.1"]).exit_code == 0)

    images = (
        Image(POSTGRES_IMAGE, ("postgres", *FAST)),
        Image(OWN_IMAGE, ("python", "-m", "deploy.images.postgres", *FAST)),
    )
    return start(Wanted(images, 5432, {"POSTGRES_PASSWORD": password}, ready=ready))


def nats(config: str) -> Started | None:
    """A NATS server with `config` (which listens on 0.0.0.0:4222), None when no container serves."""
    images = (
        Image(NATS_IMAGE, ("-c", NATS_CONFIG)),
        Image(OWN_IMAGE, ("nats-server", "-c", NATS_CONFIG)),
    )
    return start(Wanted(images, 4222, files={NATS_CONFIG: config}, ready=lambda _, port: _says_info(port)))


def engine_answers() -> bool:
    """Whether a Docker engine answers on this machine's socket; at most a second, milliseconds without one."""
    address = os.environ.get("DOCKER_HOST", f"unix://{DEFAULT_SOCKET}")
    if not address.startswith("unix://"):
        return False  # An engine elsewhere: what it publishes on loopback is not on ours.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SOCKET_LIMIT_SECONDS)
        try:
            connection.connect(address.removeprefix("unix://"))
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False


def start(wanted: Wanted) -> Started | None:
    """Run it and wait until it is ready. None when no engine has an image of it, or it did not come up."""
    chosen = os.environ.get("SLIPWAY_TEST_CONTAINERS", "auto")
    if chosen not in ("auto", "never"):
        raise ValueError(f"SLIPWAY_TEST_CONTAINERS={chosen!r}: it is auto or never")
    if chosen == "never" or not engine_answers():
        return None
    try:
        image = _present(wanted.images)
        return _run(wanted, image) if image else None
    except Exception as error:
        # Any fault of an engine: the tests are not about it and must not fail by it.
        print(f"test servers: no container ({type(error).__name__}: {error}); embedded ones instead", file=sys.stderr)
        return None


def _present(images: Sequence[Image]) -> Image | None:
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.docker_client import DockerClient

    client = DockerClient().client
    try:
        tags = {tag for image in client.images.list() for tag in image.tags}
    finally:
        client.close()
    # The reaper that removes what a killed run leaves behind is an image too, and is not pulled either.
    if testcontainers_config.ryuk_image not in tags:
        testcontainers_config.ryuk_disabled = True
    return next((image for image in images if image.name in tags), None)


def _run(wanted: Wanted, image: Image) -> Started:
    from testcontainers.core.container import DockerContainer

    container: Any = DockerContainer(image.name, env=dict(wanted.environment)).with_command(list(image.command))
    container.ports[f"{wanted.port}/tcp"] = ("127.0.0.1", None)
    for path, content in wanted.files.items():
        container.with_copy_into_container(content.encode(), path)
    try:
        container.start()
        port = int(container.get_exposed_port(wanted.port))
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while not wanted.ready(container, port):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{image.name} was not ready within {START_LIMIT_SECONDS:.0f} s")
            time.sleep(0.05)
    except BaseException:
        container.stop()
        raise
    return Started(image.name, port, container.stop)


def _says_info(port: int) -> bool:
    """NATS greets with INFO. A mere connect proves nothing: the engine's own proxy accepts it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT_SECONDS) as connection:
            return connection.recv(5).startswith(b"INFO")
    except OSError:
        return False
