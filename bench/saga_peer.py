"""The peer of the saga measurement: six bare requests over NATS, each followed by one committed row.

`python -m bench.saga_peer NATS DATABASE COUNT`. Nothing is durable but the row: no outbox, no broker's log, no time
limits, no compensation. It is the floor below which no durable process of six steps can go.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
import nats
from nats.aio.msg import Msg

from bench.saga_parts import AT_ONCE, STEPS
from bench.servers import say, told_to_go

TABLES = "CREATE TABLE bare_step (saga integer, step integer, PRIMARY KEY (saga, step))"


async def run(nats_url: str, database_url: str, count: int) -> None:
    """As saga_parts.run."""
    client = await nats.connect(nats_url)
    pool = await asyncpg.create_pool(database_url, min_size=4, max_size=8)

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe("bare.step", cb=answer)
    at_once = asyncio.Semaphore(AT_ONCE)
    say(ready=True)
    await told_to_go()
    began = time.monotonic()

    async def one(number: int) -> None:
        async with at_once:
            for turn in range(STEPS):
                await client.request("bare.step", b"x" * 500, timeout=30)
                await pool.execute("INSERT INTO bare_step VALUES ($1, $2)", number, turn)

    await asyncio.gather(*(one(number) for number in range(count)))
    say(began=began, ended=time.monotonic(), cpu=time.process_time())
    await client.close()
    await pool.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
