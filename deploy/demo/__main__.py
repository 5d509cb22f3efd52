"""`make demo`: bring everything up afresh, tell the story, write var/demo/summary.json, take everything down."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from deploy.demo.drift import DriftScene, DriftSummary
from deploy.demo.narrator import Narrator
from deploy.demo.people import signed_in
from deploy.demo.story import Story
from deploy.demo.summary import Summary
from deploy.local.layout import REPOSITORY, Ports
from deploy.local.stack import Stack
from libs.runtime.logs import set_up_logging
from libs.runtime.processes import StartError

DEMO = REPOSITORY / "var" / "demo"
# The demo has ports of its own, so that it can run beside `make up`.
PORTS_ABOVE_LOCAL = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="The main job, on the terminal")
    parser.add_argument("--site", choices=("real", "sim"), default="real")
    parser.add_argument("--scene", choices=("story", "all", "drift"), default="story", help="which scenes to play")
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    parser.add_argument("--out", type=Path, default=DEMO, help="where its state and summary.json go")
    given = parser.parse_args()
    set_up_logging("demo", "pretty", "warning")
    summary: Summary | DriftSummary = Summary(site=given.site)
    if given.scene == "drift":
        summary = DriftSummary(site=given.site)
    tell = Narrator(summary)
    stack = fresh_stack(given.site, given.out)
    try:
        if isinstance(summary, DriftSummary):
            asyncio.run(play_drift(stack, tell, summary))
        else:
            asyncio.run(play(stack, tell, summary, given.out))
    except (StartError, TimeoutError, OSError, RuntimeError) as error:
        summary.error = f"{type(error).__name__}: {error}"
        tell.console.print(f"\n[red]stopped:[/red] {error}", markup=True)
    except Exception as error:
        summary.error = f"{type(error).__name__}: {error}"
        tell.console.print_exception(max_frames=6)
    finally:
        if not given.keep:
            tell.console.print()
            tell.say("taking everything down")
            stack.down()
    return finish(tell, summary, given.out)


def fresh_stack(site: Literal["real", "sim"], out: Path) -> Stack:
    """A deployment that starts from nothing; what was installed and cached is kept."""
    var = out / site
    stack = Stack(var, Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), site)
    if var.exists():
        stack.down()
        shutil.rmtree(var)
    var.mkdir(parents=True)
    return stack


async def play(stack: Stack, tell: Narrator, summary: Summary, out: Path) -> None:
    """All scenes, in order."""
    key = make_key(stack.var)
    with tell.scene("start", f"Start everything ({stack.site} site)"):
        await asyncio.to_thread(stack.up, tell.say)
    async with signed_in(stack) as people:
        story = Story(stack, people, tell, summary, key)
        source = "NetBox" if stack.site == "real" else "the manifest"
        with tell.scene("inventory", f"{source} is read"):
            await story.read_inventory()
        with tell.scene("enrol", "An operator enrols three racks"):
            await story.enrol()
        with tell.scene("cluster", "A tenant asks for a cluster of 4; one node breaks on the way and is swapped"):
            await story.create_cluster()
        with tell.scene("quarantine", "The machine that failed is kept away, with its reason"):
            await story.look_at_quarantine()
        with tell.scene("crash", "A second cluster; satellite and provisioning are killed with -9 in the middle"):
            await story.crash()
        with tell.scene("release", "Both clusters are given back"):
            await story.give_back()
        with tell.scene("cost", "What it costs, twice"):
            await story.bill(out / f"events-{stack.site}.jsonl")
        with tell.scene("audit", "What happened, from the event store"):
            await story.look_back()


async def play_drift(stack: Stack, tell: Narrator, summary: DriftSummary) -> None:
    """What a person changes in NetBox."""
    with tell.scene("start", "Start everything (real site)"):
        await asyncio.to_thread(stack.up, tell.say)
    async with signed_in(stack) as people:
        scene = DriftScene(stack, people, tell, summary)
        with tell.scene("enrol", "An operator enrols two racks"):
            await scene.enrol()
        with tell.scene("identity", "A wrong serial number in NetBox: seen, explained, repaired"):
            await scene.mistype()
        with tell.scene("own_field", "A field of Slipway's is changed in NetBox"):
            await scene.overwrite()
        with tell.scene("leaving", "A rack leaves for good, because NetBox says so"):
            await scene.leave()


def make_key(var: Path) -> Path:
    """The tenant's SSH key pair."""
    key = var / "tenant_key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "alice@demo", "-f", str(key)]
    subprocess.run(argv, check=True)
    return key


def finish(tell: Narrator, summary: Summary | DriftSummary, out: Path) -> int:
    """The table and the file; exit status 0 only when all is well."""
    document = summary.document()
    out.mkdir(parents=True, exist_ok=True)
    file = out / summary.file
    file.write_text(json.dumps(document, indent=2) + "\n")
    rows = [
        [topic.replace("_", " "), name.replace("_", " "), _figure(value)]
        for topic in summary.topics
        for name, value in document[topic].items()
    ]
    tell.table("Summary", ["", "figure", "value"], rows)
    tell.table("Seconds", ["scene", "seconds"], [[name, f"{value:.1f}"] for name, value in summary.seconds.items()])
    for wrong in document["wrong"]:
        tell.console.print(f"[red]wrong:[/red] {wrong}")
    tell.console.print(f'\n{file}: "ok": {str(document["ok"]).lower()}')
    return 0 if document["ok"] else 1


def _figure(value: object) -> str:
    """A figure as people read it; what was metered as the sum of its clusters."""
    if not isinstance(value, dict):
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)[:90]
    clusters = [line for line in value.values() if isinstance(line, list)]
    return f"{value['total']} for {sum(line[0] for line in clusters)} node-seconds of {len(clusters)} clusters"


if __name__ == "__main__":
    sys.exit(main())
