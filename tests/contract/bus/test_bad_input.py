"""Bad messages where a site's words come in, on the real bus: counted, set aside, silencing and stopping nobody.

What is bad on which subject: tests/unit/libs/bus/test_every_subject.py; on a command's: test_dead_letters.py; in an
event stream: test_foreign_messages.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from libs.bus.inbox import REFUSED
from libs.bus.tables import DONE
from libs.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, new_message_id, now_utc
from libs.contracts.message import json_data
from libs.contracts.replies import REPLY_TYPE, ok
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import letters
from tests.contract.bus.test_promises import _equals, command, mirrored, publish
from tests.contract.bus.toy import scalar

SUBJECT = "obs.fra1.reply.inventory.v1"
CAUSES = {"unreadable": 1, "oversized": 1, "wrong_sender": 2, "wrong_subject": 1, "future_dated": 1}


def _reply(**changes: Any) -> bytes:
    said: dict[str, Any] = {
        "id": new_message_id(),
        "source": "/slipway/satellite",
        "type": REPLY_TYPE,
        "time": now_utc(),
        "subject": "m1",
        "correlationid": "c",
        "causationid": "nobody-asked",
        "site": "fra1",
        "data": json_data(ok()),
    }
    return Envelope(**{**said, **changes}).encode()


def _refused() -> Counter[str]:
    return Counter({cause: int(REFUSED.labels("inventory", "OBS", cause)._value.get()) for cause in CAUSES})


async def _observed(bench: Bench) -> None:
    """Let the test speak in the site's place: here no leaf is sourced."""
    async with bench.js() as js:
        config = (await js.stream_info("OBS")).config
        await js.update_stream(config.evolve(subjects=["obs.>"], sources=None))


async def test_a_sites_bad_words_are_set_aside_for_their_reason_and_silence_nobody(bench: Bench) -> None:
    before = _refused()
    await _observed(bench)
    async with bench.running() as app:
        await publish(
            bench,
            (SUBJECT, b"\xff\x00{", {}),
            (SUBJECT, b'{"pad":"' + b"x" * MAX_MESSAGE_BYTES + b'"}', {}),
            # In a service's name, with an epoch by which all that this service said before would be refused.
            (SUBJECT, _reply(source="/slipway/test", epoch=99), {}),
            (SUBJECT, _reply(site="ber2"), {}),
            ("obs.fra1.ironic.node.v1", _reply(), {}),
            (SUBJECT, _reply(time=now_utc().replace(year=2099)), {}),
            # A satellite has no epoch; one that claims a high one makes no other silent.
            (SUBJECT, _reply(epoch=99), {}),
            (SUBJECT, _reply(), {}),
            command("fine"),
        )
        await eventually(lambda: _set_aside(app, 6), within_seconds=30)
        await eventually(lambda: _equals(mirrored(app), {"fine": 1}), within_seconds=30)
        await eventually(lambda: _done(app, 3), within_seconds=30, what="both good replies and the command")
        assert Counter(letter["cause"] for letter in await letters(app)) == CAUSES
        assert _refused() - before == Counter(CAUSES)
        async with app.read() as conn:
            assert await scalar(conn, "SELECT count(*) FROM inventory.peer_epoch") == 0


async def _set_aside(app: App, count: int) -> bool:
    return len(await letters(app)) == count


async def _done(app: App, count: int) -> bool:
    async with app.read() as conn:
        return bool(await scalar(conn, f"SELECT count(*) FROM inventory.inbox WHERE state = {DONE}") == count)
