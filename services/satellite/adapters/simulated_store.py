"""The simulated site's memory: its nodes and its machines' power, disks and hosts, in one SQLite file.

It stands for systems that live outside the satellite, so time goes on in it while the satellite is dead: a
step that was started ends when its time has passed, whoever looks. Faults and delays are read anew from the
faults file at every look: {"<machine name>": {"fail": {step: message}, "delay": {step: seconds},
"power": "stuck" | "unreadable", "gpu": {"missing": [0…], "ecc_uncorrected": {"0": 1}, "health": {"0": "Critical"}},
"ssh": "down"}}. Steps: enrol, inspect, clean, deploy, undeploy, ssh, run_template.

What happens to a machine is written down in `act`, in the transaction in which it happens: the site's own record, which
the fault harness compares with what the hub believes.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.satellite.adapters.simulated_fleet import Hardware

Record = dict[str, Any]

# step → (state while it lasts, state after success, state after failure): Ironic's own names.
STEPS: dict[str, tuple[str, str, str]] = {
    "clean": ("cleaning", "manageable", "clean failed"),
    "deploy": ("deploying", "active", "deploy failed"),
    "undeploy": ("deleting", "available", "error"),
}
# What the record says of a step's success.
_DONE = {"clean": "cleaned", "deploy": "deployed"}
_RECORD = """CREATE TABLE IF NOT EXISTS act (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, machine TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL)"""


class SimulatedStore:
    """`hardware` by BMC address; `step_seconds` is how long a step takes when no fault says otherwise."""

    def __init__(
        self, path: Path, hardware: dict[str, Hardware], faults_file: Path | None, step_seconds: float
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.hardware = hardware
        self._by_name = {machine.name: machine for machine in hardware.values()}
        self._faults_file = faults_file
        self._step_seconds = step_seconds
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS node (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
        self._db.execute("CREATE TABLE IF NOT EXISTS machine (name TEXT PRIMARY KEY, body TEXT NOT NULL)")
        self._db.execute(_RECORD)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """What is done to the hardware inside happens whole or not at all, whenever the satellite is killed."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _note(self, machine: str, what: str, subject: str) -> None:
        statement = "INSERT INTO act (at, machine, what, subject) VALUES (?, ?, ?, ?)"
        self._db.execute(statement, (time.time(), machine, what, subject))

    def close(self) -> None:
        self._db.close()

    def by_name(self, name: str) -> Hardware | None:
        return self._by_name.get(name)

    def by_address(self, address: str) -> Hardware | None:
        """The machine whose host is at `address`."""
        return next((machine for machine in self.hardware.values() if machine.address == address), None)

    def faults(self, name: str) -> Record:
        """The machine's injected faults; a file that can't be read as JSON injects none."""
        if self._faults_file is None:
            return {}
        try:
            found = json.loads(self._faults_file.read_text()).get(name)
        except (OSError, ValueError, AttributeError):
            return {}
        return found if isinstance(found, dict) else {}

    def seconds(self, name: str, step: str) -> float:
        """How long `step` takes on the machine now."""
        return float(self.faults(name).get("delay", {}).get(step, self._step_seconds))

    def failure(self, name: str, step: str) -> str | None:
        """The message with which `step` fails on the machine, None when it does not."""
        message = self.faults(name).get("fail", {}).get(step)
        return None if message is None else str(message)

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, machine_id: str) -> Record | None:
        """The node as it is now, None when there is none."""
        row = self._db.execute("SELECT body FROM node WHERE id = ?", (machine_id,)).fetchone()
        return self._settled(json.loads(row[0])) if row else None

    def nodes(self) -> list[Record]:
        rows = self._db.execute("SELECT body FROM node ORDER BY id").fetchall()
        return [self._settled(json.loads(row[0])) for row in rows]

    def put(self, node: Record) -> None:
        self._db.execute("INSERT OR REPLACE INTO node VALUES (?, ?)", (node["id"], json.dumps(node)))

    def delete(self, machine_id: str) -> None:
        with self._at_once():
            node = self.node(machine_id)
            if node is not None:
                self._db.execute("DELETE FROM node WHERE id = ?", (machine_id,))
                self._note(node["name"], "removed", machine_id)

    def claim(self, machine_id: str, claim_id: str) -> str:
        """Compare and set: the claim that has the node afterwards, which is `claim_id` when it was free."""
        with self._at_once():
            taken = self._db.execute(
                "UPDATE node SET body = json_set(body, '$.instance_uuid', ?)"
                " WHERE id = ? AND json_extract(body, '$.instance_uuid') IS NULL",
                (claim_id, machine_id),
            ).rowcount
            row = self._db.execute(
                "SELECT json_extract(body, '$.instance_uuid'), json_extract(body, '$.name') FROM node WHERE id = ?",
                (machine_id,),
            ).fetchone()
            if taken:
                self._note(str(row[1]), "claimed", claim_id)
        return str(row[0])

    def let_go(self, machine_id: str) -> None:
        """Take the claim off the node; harmless when it carries none."""
        with self._at_once():
            node = self.node(machine_id)
            if node is None or node["instance_uuid"] is None:
                return
            self._note(node["name"], "released", node["instance_uuid"])
            node.update(instance_uuid=None, instance_info=None)
            self.put(node)

    def start(self, node: Record, step: str, **extra: Any) -> None:
        """Let `step` begin on the node."""
        with self._at_once():
            node.update(extra)
            node.update(
                provision_state=STEPS[step][0],
                target_provision_state=STEPS[step][1],
                last_error="",
                step=step,
                step_started_at=time.time(),
            )
            if step == "deploy":
                machine = self.machine(node["name"])
                self.change(node["name"], deployments=[*machine["deployments"], node["instance_uuid"]])
            self.put(node)
            self._note(node["name"], step, _subject(node, step))

    def _settled(self, node: Record) -> Record:
        """`node` after its step has ended, when its time has passed."""
        step = node.get("step")
        if step is None or time.time() - node["step_started_at"] < self.seconds(node["name"], step):
            return node
        with self._at_once():
            self._end_step(node, step)
        return node

    def _end_step(self, node: Record, step: str) -> None:
        failed = self.failure(node["name"], step)
        _, good, bad = STEPS[step]
        node.update(
            step=None, target_provision_state="", provision_state=bad if failed else good, last_error=failed or ""
        )
        if step == "clean":
            node.update(maintenance=bool(failed), fault="clean failure" if failed else "")
        if not failed:
            self._effect(node, step)
        self.put(node)
        what = "failed" if failed else _DONE.get(step)
        if what is not None:
            self._note(node["name"], what, _subject(node, step))

    def _effect(self, node: Record, step: str) -> None:
        name = node["name"]
        if step == "deploy":
            self.change(name, system=node["instance_info"], keys=list(node["instance_info"]["keys"]))
            self.order_power(name, "on")
        elif step == "undeploy":
            self.change(name, system=None)
            self.order_power(name, "off")
        elif step == "clean":
            self.change(name, system=None, keys=[], erased=time.time())

    # -- machines --------------------------------------------------------------------------------

    def machine(self, name: str) -> Record:
        """The machine's physical state; a machine never touched is off, with an old system on its disk."""
        row = self._db.execute("SELECT body FROM machine WHERE name = ?", (name,)).fetchone()
        found: Record = json.loads(row[0]) if row else {}
        return {"power": "off", "system": None, "keys": [], "deployments": [], "erased": None} | found

    def change(self, name: str, **changes: Any) -> None:
        body = json.dumps(self.machine(name) | changes)
        self._db.execute("INSERT OR REPLACE INTO machine VALUES (?, ?)", (name, body))

    def power(self, name: str) -> str:
        """What the BMC says: "on", "off" or "unknown"."""
        return "unknown" if self.faults(name).get("power") == "unreadable" else str(self.machine(name)["power"])

    def order_power(self, name: str, power: str) -> None:
        """Order a change; a stuck one is accepted and does nothing."""
        if self.faults(name).get("power") != "stuck":
            self.change(name, power=power)


def _subject(node: Record, step: str) -> str:
    """What the record names a step by: the run of a clean, the claim of everything else."""
    return str(node["clean_run"] if step == "clean" else node["instance_uuid"])
