"""The gateway between a real bus and a real identity provider; owners are small responders on the bus."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import RSAKey
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from libs.contracts.calls import Answer, Call
from libs.runtime.processes import Process, tcp_ready
from services.gateway.app import Gateway, running
from services.gateway.edge import request_metrics
from services.gateway.routes import Door
from services.gateway.settings import Settings

KEY = RSAKey.generate_key(2048, parameters={"kid": "k1", "use": "sig", "alg": "RS256"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Broker:
    """A nats-server that a test may stop and start."""

    process: Process
    url: str


def new_broker(folder: Path) -> Broker:
    port = free_port()
    server = Path(sys.executable).parent / "nats-server"
    argv = (str(server), "-a", "127.0.0.1", "-p", str(port))
    return Broker(Process("nats", argv, folder, ready=tcp_ready(port)), f"nats://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = new_broker(tmp_path_factory.mktemp("nats"))
    started.process.start()
    yield started
    started.process.stop()


@dataclass
class Issuer:
    """A provider of keys and a signer of tokens."""

    url: str

    def token(self, subject: str = "alice", audience: str = "slipway-api", **claims: Any) -> str:
        now = int(time.time())
        payload = {"iss": self.url, "sub": subject, "aud": audience, "iat": now, "exp": now + 600} | claims
        return jwt.encode({"alg": "RS256", "typ": "at+jwt", "kid": "k1"}, payload, KEY)


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            base = f"http://{self.headers['Host']}"
            documents = {
                "/.well-known/openid-configuration": {"issuer": base, "jwks_uri": f"{base}/jwks"},
                "/jwks": {"keys": [KEY.as_dict(private=False)]},
            }
            body = json.dumps(documents.get(self.path, {})).encode()
            self.send_response(200 if self.path in documents else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Documents)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Issuer(f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()
    thread.join()


def grant(role: str, scope_kind: str, scope_id: str = "-", subject: str = "alice") -> dict[str, Any]:
    return {
        "id": f"grt-{role}-{scope_id}",
        "issuer": "https://sso.example.test",
        "subject": subject,
        "role": role,
        "scope_kind": scope_kind,
        "scope_id": scope_id,
        "granted_by": "user:operator",
        "granted_at": "2026-03-01T00:00:00Z",
        "version": 1,
    }


PEOPLE: dict[str, dict[str, Any]] = {
    "alice": {"grants": [grant("member", "tenant", "acme-research")], "roles": {"acme-research": ["member"]}},
    "bob": {"grants": [grant("viewer", "tenant", "globex-ml")], "roles": {"globex-ml": ["viewer"]}},
    "ada": {
        "grants": [grant("admin", "organization", "acme"), grant("viewer", "tenant", "globex-ml")],
        "roles": {"acme-ops": ["admin"], "acme-research": ["admin"], "globex-ml": ["viewer"]},
    },
    "frank": {"grants": [grant("finance", "tenant", "acme-research")], "roles": {"acme-research": ["finance"]}},
    "operator": {"grants": [grant("operator", "installation")], "roles": {"acme-research": ["operator"]}},
    "auditor": {"grants": [grant("auditor", "installation")], "roles": {"acme-research": ["auditor"]}},
    "finance": {"grants": [grant("finance", "installation")], "roles": {"acme-research": ["finance"]}},
    "stranger": {"grants": [], "roles": {}},
}


@dataclass
class Owners:
    """Services on the bus. `calls` is what they were asked, except who somebody is."""

    bus: Client
    calls: list[tuple[str, Call]] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    people: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(PEOPLE))

    async def answer(self, subject: str, answer: Answer | Callable[[Call], Answer]) -> None:
        async def respond(msg: Msg) -> None:
            call = Call.model_validate_json(msg.data)
            self.calls.append((msg.subject, call))
            said = answer(call) if callable(answer) else answer
            await msg.respond(said.model_dump_json().encode())

        await self.bus.subscribe(subject, cb=respond)
        await self.bus.flush()

    async def say(self, subject: str, payload: bytes) -> None:
        """Answer `subject` with these bytes, whatever they are."""

        async def respond(msg: Msg) -> None:
            await msg.respond(payload)

        await self.bus.subscribe(subject, cb=respond)
        await self.bus.flush()

    async def know_people(self) -> None:
        async def respond(msg: Msg) -> None:
            call = Call.model_validate_json(msg.data)
            subject = call.params["subject"]
            self.resolved.append(subject)
            known = self.people.get(subject, PEOPLE["stranger"])
            await msg.respond(Answer(body={"subject": subject, **known}).model_dump_json().encode())

        await self.bus.subscribe("qry.identity.resolve", cb=respond)
        await self.bus.flush()


@pytest_asyncio.fixture(loop_scope="module")
async def owners(broker: Broker) -> AsyncIterator[Owners]:
    bus = await nats.connect(broker.url)
    stand_ins = Owners(bus)
    await stand_ins.know_people()
    yield stand_ins
    await bus.close()


@dataclass
class Doors:
    """Both doors of a running gateway, and who signs in at them."""

    gateway: Gateway
    tenant: httpx.AsyncClient
    operator: httpx.AsyncClient
    issuer: Issuer
    registry: CollectorRegistry

    def as_(self, subject: str, audience: str = "slipway-api", **headers: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.issuer.token(subject, audience)}", **headers}

    def as_operator(self, subject: str = "operator", **headers: str) -> dict[str, str]:
        return self.as_(subject, "slipway-operator", **headers)


@asynccontextmanager
async def open_doors(broker_url: str, issuer: Issuer, **settings: Any) -> AsyncIterator[Doors]:
    registry = CollectorRegistry()
    configured = Settings(nats_url=broker_url, oidc_issuer=issuer.url, **settings)
    async with running(configured, request_metrics(registry)) as gateway:
        clients = {
            door: httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway.test")
            for door, app in gateway.doors.items()
        }
        async with clients[Door.TENANT] as tenant, clients[Door.OPERATOR] as operator:
            yield Doors(gateway, tenant, operator, issuer, registry)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opened(broker: Broker, issuer: Issuer) -> AsyncIterator[Doors]:
    """One gateway for a module's tests: making two doors' routes takes most of a second."""
    async with open_doors(broker.url, issuer, answer_within_seconds=1.0) as doors:
        await until(lambda: not doors.gateway.problems())
        yield doors


@pytest_asyncio.fixture(loop_scope="module")
async def doors(opened: Doors, owners: Owners) -> Doors:
    """The doors, with nobody known from an earlier test."""
    await opened.gateway.access.forget()
    return opened


async def until(holds: Callable[[], bool], within_seconds: float = 10.0) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + within_seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)
