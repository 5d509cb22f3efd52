# mypy: ignore-errors
"""Six steps on Temporal's test server: `python temporal_steps.py SERVER PORT SECONDS AT_ONCE STEPS`.

Starts the server itself, so that both can live in a network namespace of their own: that server listens on every
interface and has no option for less. Worker and starter share this process, as ours do in theirs. Run by path, in the
peers' environment: what it imports is not in ours.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import subprocess
import sys
import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

QUEUE = "six-steps"
START_LIMIT_SECONDS = 30.0
PR_SET_PDEATHSIG = 1  # prctl(2)
STEP_LIMIT = timedelta(minutes=2)
# Temporal's page on worker performance: slots above what is under way at once, pollers until polls wait no more, a
# cache of workflows that holds all of them, so that none is replayed. More pollers than these changed nothing.
SLOTS, POLLERS, CACHED = 200, 10, 1000


@activity.defn
async def act(number: int) -> int:
    return number


@workflow.defn
class SixSteps:
    @workflow.run
    async def run(self, steps: int) -> int:
        for number in range(steps):
            await workflow.execute_activity(act, number, start_to_close_timeout=STEP_LIMIT)
        return steps


async def connected(address: str) -> Client:
    # Its log goes to standard output, where our figures go.
    runtime = Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="error")))
    end = time.monotonic() + START_LIMIT_SECONDS
    while True:
        try:
            return await Client.connect(address, runtime=runtime)
        except Exception:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


async def run(address: str, seconds: float, at_once: int, steps: int) -> None:
    client = await connected(address)
    polling = PollerBehaviorSimpleMaximum(POLLERS)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[SixSteps],
        activities=[act],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=CACHED,
        max_concurrent_workflow_tasks=SLOTS,
        max_concurrent_activities=SLOTS,
        workflow_task_poller_behavior=polling,
        activity_task_poller_behavior=polling,
    )
    async with worker:
        await client.execute_workflow(SixSteps.run, steps, id="first", task_queue=QUEUE)
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, count = time.monotonic(), 0

        async def one_after_the_other(which: int) -> None:
            nonlocal count
            turn = 0
            while time.monotonic() < began + seconds:
                await client.execute_workflow(SixSteps.run, steps, id=f"{which}-{turn}", task_queue=QUEUE)
                turn, count = turn + 1, count + 1

        await asyncio.gather(*(one_after_the_other(which) for which in range(at_once)))
        ended = time.monotonic()
    print(json.dumps({"began": began, "ended": ended, "count": count, "cpu": time.process_time()}), flush=True)


def dies_with_us() -> None:
    """Whoever ends this process ends the server with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    server, port, seconds, at_once, steps = sys.argv[1:]
    silent = subprocess.DEVNULL
    running = subprocess.Popen([server, port], stdout=silent, stderr=silent, preexec_fn=dies_with_us)
    try:
        asyncio.run(run(f"127.0.0.1:{port}", float(seconds), int(at_once), int(steps)))
    finally:
        running.terminate()
        running.wait()


if __name__ == "__main__":
    main()
