"""The examples, run as their readers run them: they go on after a break, take nothing twice, and tell a gap."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.lab.node_toolchain import node_executable, npm_install
from libs.contracts.identity import TenantFacts, TenantUpdated
from libs.testing.servers import free_port
from tests.conftest import eventually
from tests.contract.subscription.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"


async def say(world: World, tenant: str) -> str:
    facts = TenantFacts(id=tenant, organization_id="acme", name="x", version=1)
    return (await world.publisher.say(TenantUpdated(tenant=facts), tenant, tenant=tenant)).id


@asynccontextmanager
async def running(*command: str, environment: dict[str, str] | None = None) -> AsyncIterator[list[dict[str, Any]]]:
    """The program's lines, as they come; killed at the end, as by a crash."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})}
    )
    lines: list[dict[str, Any]] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(json.loads(line))

    reading = asyncio.create_task(read())
    try:
        yield lines
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript example, type-checked and compiled."""
    folder = ROOT / "var" / "lab" / "example-typescript"
    modules = npm_install(folder, EXAMPLES / "typescript")
    for name in ("subscriber.ts", "tsconfig.json"):
        (folder / name).write_bytes((EXAMPLES / "typescript" / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    compiler = [str(node_executable()), str(modules / "typescript" / "bin" / "tsc"), "--outDir", str(out)]
    made = subprocess.run(compiler, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout
    (out / "package.json").write_text('{"type": "module"}')
    if not (out / "node_modules").exists():
        (out / "node_modules").symlink_to(modules)
    return out / "subscriber.js"


@pytest.mark.parametrize("language", ["python", "typescript"])
async def test_a_subscriber_goes_on_after_a_crash_and_tells_a_gap(
    world: World, language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if language == "python":
        command = (sys.executable, str(EXAMPLES / "python" / "subscriber.py"))
    else:
        command = (str(node_executable()), str(request.getfixturevalue("typescript")))
    tenant = f"example-{language}"
    credentials, state = tmp_path / "credentials.json", tmp_path / "state.json"
    credentials.write_text(json.dumps(await world.subscriber(tenant, (tenant,), tenant=tenant, ack_wait_seconds=1)))
    said = [await say(world, tenant) for _ in range(3)]
    program = (*command, str(credentials), str(state))

    def ids(lines: list[dict[str, Any]]) -> list[str]:
        return [line["id"] for line in lines if "id" in line]

    def kept() -> Any:
        return json.loads(state.read_text())["handled"] if state.exists() else []

    async with running(*program) as lines:
        await eventually(_is(lambda: ids(lines), said), within_seconds=60, what="the first events")
        # A crash between handling and keeping would rightly let it be handled again.
        await eventually(_is(kept, said), within_seconds=30, what="they are kept as handled")
    missed = [await say(world, tenant) for _ in range(2)]  # Nobody is listening now.
    await _lose_the_first_of(world, tenant, missed)
    missed.append(await say(world, tenant))
    async with running(*program) as lines:
        await eventually(_is(lambda: ids(lines), missed[1:]), within_seconds=60, what="the missed events")
        live = await say(world, tenant)
        await eventually(_is(lambda: ids(lines), [*missed[1:], live]), within_seconds=30, what="a live event")
    gaps = [line for line in lines if "gap" in line]
    assert gaps == [{"gap": f"{tenant} /slipway/identity", "first": 4, "last": 4}]


async def test_an_event_that_comes_again_late_is_handled_and_one_that_was_handled_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = runpy.run_path(str(EXAMPLES / "python" / "subscriber.py"))
    take, state = example["take"], {"handled": [], "numbers": {}}
    first, second, third = (
        {"id": f"e{n}", "type": "t", "subject": "s", "tenant": "a", "source": "b", "tenantsequence": f"{n:020d}"}
        for n in (1, 2, 3)
    )
    for event in (first, third, first, second, third, second):  # The second failed at first, and came again.
        take(event, state)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in said if "id" in line] == ["e1", "e3", "e2"]
    assert [line for line in said if "id" not in line] == [
        {"gap": "a b", "first": 2, "last": 2},
        {"late": "a b", "number": 2},
    ]


async def _lose_the_first_of(world: World, tenant: str, missed: list[str]) -> None:
    """Take one event out of the broker, as its limits or a lost disk would."""
    js = world.bus.jetstream()

    async def gathered() -> bool:
        last = await js.get_last_msg("EVT", f"evt.*.{tenant}.identity.>")
        return missed[-1].encode() in (last.data or b"")

    await eventually(gathered, within_seconds=30)
    last = await js.get_last_msg("EVT", f"evt.*.{tenant}.identity.>")
    await js.delete_msg("EVT", int(last.seq or 0) - 1)


def _is(found: Any, wanted: Any) -> Any:
    async def check() -> bool:
        return bool(found() == wanted)

    return check


async def test_a_webhook_receiver_takes_what_is_ours_and_nothing_else(world: World) -> None:
    tenant, port = "example-webhook", free_port()
    url = f"http://127.0.0.1:{port}/"
    made = await world.call("create_webhook", (tenant,), name="hook", tenant=tenant, url=url, services=["identity"])
    program = (sys.executable, str(EXAMPLES / "python" / "webhook.py"), str(port))
    async with running(*program, environment={"SIGNING_KEY": made.body["signing_key"]}) as lines:
        said = [await say(world, tenant) for _ in range(3)]
        await eventually(_is(lambda: [line["id"] for line in lines], said), within_seconds=60)
        async with httpx.AsyncClient() as http:
            forged = {"webhook-id": "x", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
            assert (await http.post(url, content=b"{}", headers=forged)).status_code == 401
            assert (await http.post(url, content=b"{}")).status_code == 401
