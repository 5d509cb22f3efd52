"""What every service answers about replays of its events: begin, list, show, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from libs.bus.replay import Replays, TooMany, Wanted, body
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.runtime.params import invalid, parse


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Asked(Wanted):
    entity: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    type: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    tenant: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()


async def start(replays: Replays, call: Call) -> Answer:
    """Begin one."""
    asked = parse(_Asked, call.params)
    if isinstance(asked, Answer):
        return asked
    if asked.last is not None and asked.last < asked.first:
        return invalid([{"field": "last", "message": f"{asked.last} is before first, {asked.first}"}])
    try:
        row = await replays.start(asked, call.actor)
    except TooMany as error:
        return problem(409, "replay.too_many", str(error), "List them: GET /services/{service}/replays")
    return Answer(status=202, body=body(row), location=f"/services/{replays.service}/replays/{row['id']}")


async def listed(replays: Replays) -> Answer:
    """The newest, newest first."""
    return Answer(body={"items": [body(row) for row in await replays.newest()], "next_cursor": None})


async def shown(replays: Replays, call: Call) -> Answer:
    """One of them."""
    replay_id = str(call.params.get("id", ""))
    row = await replays.get(replay_id)
    return Answer(body=body(row)) if row is not None else not_found("replay", replay_id)


async def cancel(replays: Replays, call: Call) -> Answer:
    """Stop it where it is. What was published stays until the broker forgets it."""
    replay_id = str(call.params.get("id", ""))
    if await replays.get(replay_id) is None:
        return not_found("replay", replay_id)
    if not await replays.cancel(replay_id):
        return problem(409, "replay.ended", f"The replay {replay_id} has ended.", "Nothing needs to be done.")
    return await shown(replays, call)
