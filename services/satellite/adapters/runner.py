"""Playbooks over a cluster's nodes by ansible-runner, its log passed on line by line while it runs.

Each run has a folder of its own under the satellite's state: inventory, known hosts, Ansible's artifacts. Log-ins
use the management key and accept only the host keys that the deploys reported. ansible-runner is synchronous and
works in a thread; Ansible itself is its child process and is ended when the satellite gives up on the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from libs.contracts.site import RunnerNode, RunTemplate
from services.satellite.adapters.playbook_files import PLAYBOOKS, playbook_file
from services.satellite.errors import Failure
from services.satellite.ports import LogSink, RunStats

RUN_SECONDS = 2700  # The life cycle's own limit for the step.
_BATCH_SECONDS = 0.5
_FORKS = 10
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Tasks of one run share a connection; it goes by itself a moment after the last one.
_SSH_OPTIONS = (
    "StrictHostKeyChecking=yes",
    "IdentitiesOnly=yes",
    "BatchMode=yes",
    "ControlMaster=auto",
    "ControlPersist=10s",
)
# Ansible's names of the counts in its recap → ours.
_COUNTS = {"ok": "ok", "changed": "changed", "failures": "failures", "dark": "unreachable", "skipped": "skipped"}


class AnsibleRunner:
    """See `services.satellite.ports.Runner`. Runs live below `folder`; `playbooks` holds <name>.yml."""

    def __init__(self, folder: Path, key_file: Path, user: str, playbooks: Path = PLAYBOOKS) -> None:
        self._folder = folder
        self._key_file = key_file.resolve()
        self._user = user
        self._playbooks = playbooks

    async def run_template(self, order: RunTemplate, log: LogSink) -> RunStats:
        playbook = playbook_file(order.playbook, self._playbooks)
        if shutil.which("ssh") is None:
            raise Failure("ssh_missing", "The satellite's machine has no ssh program.", "Install openssh-client.")
        self._check_nodes(order)
        run = self._folder / re.sub(r"[^A-Za-z0-9-]", "_", order.run_id)
        # Of its own and short: a socket's path may have 107 characters at most.
        with tempfile.TemporaryDirectory(prefix="slw-", ignore_cleanup_errors=True) as sockets:
            self._write_run(run, order, sockets)
            return _judged(order, await _run(run, playbook, log))

    def _check_nodes(self, order: RunTemplate) -> None:
        for node in order.nodes:
            if not _NODE_NAME.fullmatch(node.name):
                raise Failure("node_invalid", f"{node.name!r} is not a node's name.")
            if len(node.ssh_host_key.split()) != 2:
                raise Failure("host_key_unknown", f"{node.name}: its host key is not known; nobody logs in.")

    def _write_run(self, run: Path, order: RunTemplate, sockets: str) -> None:
        # What a killed run left behind must not be taken for this one's results.
        shutil.rmtree(run / "artifacts", ignore_errors=True)
        for part in ("inventory", "env"):
            (run / part).mkdir(parents=True, exist_ok=True)
        known_hosts = run / "known_hosts"
        known_hosts.write_text("".join(f"{_place(node)} {node.ssh_host_key}\n" for node in order.nodes))
        own = (f"UserKnownHostsFile={known_hosts.resolve()}", f"ControlPath={sockets}/%C")
        options = " ".join(f"-o {option}" for option in (*_SSH_OPTIONS, *own))
        hosts = {
            node.name: {
                "ansible_host": node.address,
                "ansible_port": node.ssh_port,
                "ansible_user": self._user,
                "ansible_ssh_private_key_file": str(self._key_file),
                "ansible_ssh_common_args": options,
            }
            for node in order.nodes
        }
        (run / "inventory" / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        facts = {
            **order.variables,
            "slipway_nodes": [{"name": node.name, "address": node.address} for node in order.nodes],
            "slipway_cluster": {
                "id": order.cluster_id,
                "name": order.variables.get("cluster_name", ""),
                "nodes": [node.name for node in order.nodes],
            },
        }
        (run / "env" / "extravars").write_text(json.dumps(facts))


def _place(node: RunnerNode) -> str:
    return node.address if node.ssh_port == 22 else f"[{node.address}]:{node.ssh_port}"


async def _run(run: Path, playbook: Path, log: LogSink) -> dict[str, Any]:
    """Run it in a thread; its lines go to `log` in batches. Returns {status, stats}."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    given_up = threading.Event()
    stats: dict[str, Any] = {}

    def on_event(event: dict[str, Any]) -> bool:
        for line in _ANSI.sub("", str(event.get("stdout") or "")).splitlines():
            loop.call_soon_threadsafe(lines.put_nowait, line)
        if event.get("event") == "playbook_on_stats":
            stats.update(event.get("event_data") or {})
        return False  # The event's file is not needed: all of it that counts is taken here.

    work = loop.run_in_executor(None, _run_now, run, playbook, on_event, given_up)
    work.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        await _pass_on(lines, log)
        return {"status": await work, "stats": stats}
    finally:
        given_up.set()


async def _pass_on(lines: asyncio.Queue[str | None], log: LogSink) -> None:
    ended = False
    while not ended:
        batch = [await lines.get()]
        await asyncio.sleep(_BATCH_SECONDS if batch[0] is not None else 0)
        while not lines.empty():
            batch.append(lines.get_nowait())
        ended = None in batch
        said = [line for line in batch if line is not None]
        if said:
            await log(said)


def _run_now(run: Path, playbook: Path, on_event: Any, given_up: threading.Event) -> str:
    import ansible_runner  # Here, because most satellites' lives never need its memory.

    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "ANSIBLE_HOME": str(run / "ansible"),
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
        "ANSIBLE_LOCALHOST_WARNING": "False",
    }
    done = ansible_runner.run(
        private_data_dir=str(run),
        project_dir=str(playbook.parent),
        inventory=str(run / "inventory" / "hosts.json"),
        playbook=playbook.name,
        envvars=environment,
        forks=_FORKS,
        timeout=RUN_SECONDS,
        quiet=True,
        suppress_env_files=True,
        event_handler=on_event,
        cancel_callback=given_up.is_set,
    )
    return str(done.status)


def _judged(order: RunTemplate, done: dict[str, Any]) -> RunStats:
    """Only a run that ended well on every node is a success; a node that is not in the recap was not worked on."""
    by_node = {
        node.name: {ours: int(done["stats"].get(theirs, {}).get(node.name, 0)) for theirs, ours in _COUNTS.items()}
        for node in order.nodes
    }
    bad = [name for name, by in by_node.items() if by["failures"] or by["unreachable"] or not by["ok"]]
    if done["status"] != "successful" or bad:
        raise Failure(
            "template_failed",
            f"The playbook {order.playbook} ended {done['status']!r}; not well on: {', '.join(bad) or 'no node'}.",
            "The run's log says which task failed.",
            nodes=bad,
        )
    return RunStats(by_node)
