"""What was recorded of one run, from outside the system: the only thing that the rules look at.

Plain records, so that a run can be kept as JSON and judged again, and so that tests can write down histories that
never happened. Times are UTC; `sequence` is a service's event number, from 1.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(Record):
    """One answer to one try of a request. `operation_id` when work was accepted, `code` when it was refused."""

    at: datetime
    status: int
    operation_id: str | None = None
    code: str = ""


class Request(Record):
    """One write that somebody asked for. All its tries carry one Idempotency-Key, which is `key`.

    `answers` are those that settle it (below 500): several when it was deliberately sent again.
    """

    key: str
    who: str
    method: str
    path: str
    sent_at: datetime
    body: dict[str, Any] | None = None
    answers: tuple[Answer, ...] = ()
    tries: int = 1


class Poll(Record):
    """What somebody read of an operation, when."""

    at: datetime
    operation_id: str
    status: str


class Event(Record):
    """One event as it lies in its service's stream at the end. `facts`: the few of its data that rules need."""

    service: str
    position: int  # Its sequence in the stream, by the broker.
    sequence: int  # Its sequence by its own word.
    id: str
    type: str
    entity: str
    version: int
    tenant: str = "-"
    tenant_sequence: int = 0
    facts: dict[str, Any] = {}


class Kept(Record):
    """One event as a table keeps it (outbox, audit store)."""

    service: str
    sequence: int | None
    id: str


class SiteAct(Record):
    """One line of the simulated site's own record, in the order in which things happened to its hardware."""

    number: int
    at: float
    machine: str
    what: Literal["claimed", "released", "deploy", "deployed", "undeploy", "clean", "cleaned", "failed", "removed"]
    subject: str = ""  # The claim; for clean and cleaned the run.


class Saga(Record):
    """One process as its row says at the end. `timers` are those that wait for their time."""

    service: str
    id: str
    kind: str
    phase: str
    status: str
    target: str = ""
    waiting_for: str = ""
    pending: int = 0
    timers: int = 0


class DeadLetter(Record):
    """`cause`: one of libs/contracts/causes.py."""

    service: str
    message_id: str
    subject: str
    error: str
    cause: str = ""


class Restore(Record):
    """The database was put back to an older copy. `goes_on_after`: by service, the last number before it went on."""

    taken_at: datetime
    accepted_at: datetime
    goes_on_after: dict[str, int] = {}


class Claim(Record):
    id: str
    machine_id: str
    state: str


class Machine(Record):
    id: str
    name: str
    state: str
    claim_id: str | None = None
    cluster_id: str | None = None


class Rebuilt(Record):
    """A projection that was built again beside the live one; `problem` when it could not be."""

    service: str
    projection: str
    equal: bool
    events: int
    problem: str = ""


class History(Record):
    """Everything of one run. `at_rest`: nothing was under way any more when the end was read."""

    seed: str
    at_rest: bool = True
    requests: tuple[Request, ...] = ()
    polls: tuple[Poll, ...] = ()
    operations: dict[str, str] = {}  # Operation → status, read through the API at the end.
    streams: dict[str, tuple[Event, ...]] = {}  # By service, in the stream's order.
    everything: tuple[tuple[str, int, str], ...] = ()  # The stream EVT in its order: service, sequence, id.
    outbox: tuple[Kept, ...] = ()
    unpublished: dict[str, int] = {}
    audit: tuple[Kept, ...] = ()
    audited_services: tuple[str, ...] = ()
    witnessed: tuple[Kept, ...] = ()
    site: tuple[SiteAct, ...] = ()
    sagas: tuple[Saga, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    claims: tuple[Claim, ...] = ()
    machines: tuple[Machine, ...] = ()
    rebuilt: tuple[Rebuilt, ...] = ()
    restores: tuple[Restore, ...] = ()
    written: dict[str, tuple[int, ...]] = {}  # By service, where the harness wrote into its event stream.
    void: dict[str, tuple[int, ...]] = {}  # By service, the numbers that it says are nobody's.

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        """Raises OSError or pydantic.ValidationError."""
        return cls.model_validate_json(path.read_text())
