"""Replay: chosen events once more, on subjects of their own, gone on with after a kill, stopped by a word."""

from __future__ import annotations

from typing import Any

import pytest

from libs.bus import replay
from libs.contracts.envelope import Envelope, decode
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import asked, told
from tests.contract.bus.test_promises import command, outbox_is_empty, publish, stream_events
from tests.contract.bus.test_restore import _counted


async def replayed(bench: Bench) -> list[tuple[str, Envelope]]:
    async with bench.js() as js:
        state = (await js.stream_info("REPLAY")).state
        found = [
            await js.get_msg("REPLAY", seq) for seq in range(state.first_seq, state.last_seq + 1) if state.messages
        ]
        return [(message.subject, decode(message.data)) for message in found]


async def _state(app: App, replay_id: str, wanted: str) -> bool:
    return bool((await asked(app, "replay", id=replay_id)).body["state"] == wanted)


async def test_chosen_events_come_once_more_as_they_were_published(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n % 3}") for n in range(30)))
        await eventually(lambda: _counted(app, {f"m{n}": 10 for n in range(3)}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        events = await stream_events(bench)
        middle = events[14].time
        begun = await told(app, "start_replay", name="some", entity=["m1"], first=5, since=middle.isoformat())
        assert begun.status == 202 and begun.body["subject"] == "replay.some.>"
        await eventually(lambda: _state(app, begun.body["id"], "done"), within_seconds=30)
        expected = [e for e in events if e.subject == "m1" and e.stream_sequence >= 5 and e.time >= middle]
        found = await replayed(bench)
        assert [e for _, e in found] == expected and expected
        assert {subject for subject, _ in found} == {"replay.some.evt.fra1.-.inventory.rack.updated.v1"}
        assert (await asked(app, "replay", id=begun.body["id"])).body["published"] == len(expected)
        assert len(await stream_events(bench)) == 30, "nothing was added to what services act upon"
        for wrong in ({"name": "evt.>"}, {"name": "x", "first": 5, "last": 2}, {"name": "x", "since": "yesterday"}):
            assert (await told(app, "start_replay", **wrong)).status == 422, wrong
        assert (await told(app, "cancel_replay", id=begun.body["id"])).status == 409
        assert (await told(app, "cancel_replay", id="rpl-none")).status == 404


async def test_a_replay_whose_process_is_killed_goes_on_and_a_cancelled_one_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "LEASE_SECONDS", 1.0)
    async with bench.running("one") as app:
        await publish(bench, *(command(f"m{n % 3}") for n in range(30)))
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await eventually(lambda: _counted(app, {f"m{n}": 10 for n in range(3)}), within_seconds=30)
        # The stream for replays takes nothing: they wait.
        async with bench.js() as js:
            info = await js.stream_info("REPLAY")
            await js.update_stream(info.config.evolve(max_msgs=1))
        first, second = [(await told(app, "start_replay", name=name)).body["id"] for name in ("one", "two")]
        assert (await told(app, "cancel_replay", id=second)).status == 200
    async with bench.running("two") as app:
        async with bench.js() as js:
            await js.update_stream(info.config.evolve(max_msgs=-1))
        await eventually(lambda: _state(app, first, "done"), within_seconds=60)
        listed: list[dict[str, Any]] = (await asked(app, "replays")).body["items"]
        assert {item["id"]: item["state"] for item in listed} == {first: "done", second: "cancelled"}
    found = [event for subject, event in await replayed(bench) if subject.startswith("replay.one.")]
    assert [e.id for e in found] == [e.id for e in await stream_events(bench)]
