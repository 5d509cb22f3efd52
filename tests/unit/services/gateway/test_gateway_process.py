"""The gateway as a process of its own: two ports, real sockets, a clean end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from libs.contracts.calls import Answer
from libs.runtime.processes import Process, http_ready
from tests.unit.services.gateway.conftest import Broker, Issuer, Owners, free_port

ROOT = Path(__file__).parents[4]
ARGV = (sys.executable, "-m", "services.gateway.app")


@dataclass
class Running:
    process: Process
    tenant: str
    operator: str
    metrics: str


@pytest.fixture(scope="module")
def gateway(broker: Broker, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    ports = [free_port() for _ in range(3)]
    tenant, operator, metrics = (f"http://127.0.0.1:{port}" for port in ports)
    env = {
        "SLIPWAY_TENANT_PORT": str(ports[0]),
        "SLIPWAY_OPERATOR_PORT": str(ports[1]),
        "SLIPWAY_METRICS_PORT": str(ports[2]),
        "SLIPWAY_NATS_URL": broker.url,
        "SLIPWAY_OIDC_ISSUER": issuer.url,
    }
    folder = tmp_path_factory.mktemp("gateway")
    process = Process("gateway", ARGV, folder, ready=http_ready(f"{metrics}/readyz"), env=env, cwd=ROOT)
    process.start()
    yield Running(process, tenant, operator, metrics)
    process.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_both_doors_answer_on_their_own_ports(gateway: Running, issuer: Issuer, owners: Owners) -> None:
    await owners.answer("*.inventory.list_profiles", Answer(body={"items": []}))
    async with httpx.AsyncClient() as http:
        for base, prefix, subject, audience in (
            (gateway.tenant, "/v1", "alice", "slipway-api"),
            (gateway.operator, "/operator/v1", "operator", "slipway-operator"),
        ):
            headers = {"Authorization": f"Bearer {issuer.token(subject, audience)}"}
            answer = await http.get(f"{base}{prefix}/profiles", headers=headers)
            assert (answer.status_code, answer.json()) == (200, {"items": []})
            other = "/operator/v1" if prefix == "/v1" else "/v1"
            assert (await http.get(f"{base}{other}/profiles", headers=headers)).status_code == 404
        assert "slipway_api_request_seconds_bucket" in (await http.get(f"{gateway.metrics}/metrics")).text
    log = [json.loads(line) for line in gateway.process.log_file.read_text().splitlines()]
    assert [line["actor"] for line in log if line.get("status") == 200] == ["user:alice", "user:operator"]
    assert all(line["correlation_id"] for line in log if line["event"] == "request")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_chunked_body_without_end_is_cut_off(gateway: Running, issuer: Issuer, owners: Owners) -> None:
    head = (
        "POST /v1/clusters HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {issuer.token('alice')}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.tenant.rpartition(":")[2]))
    writer.write(head.encode())
    for _ in range(5):
        writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    answer = (await asyncio.wait_for(reader.read(), timeout=10)).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 413 ")
    assert "gateway.body_too_large" in answer


def test_a_taken_port_is_named(gateway: Running, issuer: Issuer) -> None:
    port = gateway.tenant.rpartition(":")[2]
    env = {"SLIPWAY_TENANT_PORT": port, "SLIPWAY_OIDC_ISSUER": issuer.url, "PATH": ""}
    ended = subprocess.run(ARGV, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_it_at_once_when_nothing_is_going_on(broker: Broker, issuer: Issuer, tmp_path: Path) -> None:
    port = free_port()
    env = {
        "SLIPWAY_TENANT_PORT": str(port),
        "SLIPWAY_OPERATOR_PORT": str(free_port()),
        "SLIPWAY_NATS_URL": broker.url,
        "SLIPWAY_OIDC_ISSUER": issuer.url,
    }
    process = Process("gateway", ARGV, tmp_path, ready=http_ready(f"http://127.0.0.1:{port}/readyz"), env=env, cwd=ROOT)
    process.start()
    pid = process.pid()
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, process.log_tail()
    assert time.monotonic() - began < 5
    assert "Traceback" not in process.log_file.read_text()
