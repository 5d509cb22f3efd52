"""The satellite's journal: every command, its answer, and what is still to be published, in one SQLite file.

Invariants: a command is on disk before it is acknowledged; its answer and the message that carries the answer
are written in one transaction; a command id is begun at most once at a time and has one answer for ever. The
file is synced at every commit (`synchronous=FULL`): what the journal says survives a power cut. A commit takes
a few milliseconds and the rate is a few commands a second, so calls are made from the event loop itself.
Which commands may be begun is decided in `model`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from libs.contracts.envelope import Envelope, decode
from services.satellite.model import CHANGING_TYPES, Fence, Order, moved_fence

# The hub's duplicates can come as late as its stream keeps commands; two weeks is beyond every deadline in use.
KEEP_ANSWERS = timedelta(days=14)
KEEP_PUBLISHED = timedelta(days=1)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS command (
  id TEXT PRIMARY KEY, key TEXT NOT NULL, type TEXT NOT NULL, claim_id TEXT, machine_version INTEGER NOT NULL,
  stored_at TEXT NOT NULL, deadline TEXT, envelope BLOB NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'begun', 'done')),
  landed_at TEXT NOT NULL, begun_at TEXT, done_at TEXT, outcome TEXT,
  CHECK ((state = 'done') = (done_at IS NOT NULL)), CHECK ((state = 'done') = (outcome IS NOT NULL)));
CREATE INDEX IF NOT EXISTS command_open ON command (stored_at) WHERE state <> 'done';
CREATE INDEX IF NOT EXISTS command_key ON command (key, machine_version);
CREATE TABLE IF NOT EXISTS fence (
  key TEXT PRIMARY KEY, claim_id TEXT NOT NULL, machine_version INTEGER NOT NULL, first_seen_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS overtaken_claim (key TEXT NOT NULL, claim_id TEXT NOT NULL, PRIMARY KEY (key, claim_id));
CREATE TABLE IF NOT EXISTS outbox (
  position INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT NOT NULL UNIQUE, command_id TEXT, subject TEXT NOT NULL,
  payload BLOB NOT NULL, published_at TEXT);
CREATE INDEX IF NOT EXISTS outbox_open ON outbox (position) WHERE published_at IS NULL;
CREATE TABLE IF NOT EXISTS epoch (source TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS run_log (run_id TEXT PRIMARY KEY, next_line INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Landing:
    """One command as pulled from the hub; `key` is what its work must be in order by."""

    envelope: Envelope
    key: str
    order: Order


@dataclass(frozen=True)
class Entry:
    """One command of the journal that has no answer yet."""

    envelope: Envelope
    key: str
    order: Order
    begun: bool


@dataclass(frozen=True)
class Outgoing:
    """One message to publish: `message_id` is its de-duplication id."""

    position: int
    message_id: str
    subject: str
    payload: bytes


class Journal:
    """The journal in the file `path`; one process at a time, one thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def land(self, batch: Sequence[Landing], now: datetime) -> int:
        """Write the commands and move the machines' fences; returns how many were new.

        One that is here already is not worked on again: when it has an answer, the answer is published once more.
        """
        new = 0
        with self._transaction() as db:
            for landing in batch:
                self._note_epoch(db, landing)
                if self._insert(db, landing, now):
                    self._move_fence(db, landing)
                    new += 1
                else:
                    db.execute("UPDATE outbox SET published_at = NULL WHERE command_id = ?", (landing.envelope.id,))
        return new

    def _note_epoch(self, db: sqlite3.Connection, landing: Landing) -> None:
        """Senders begin in epoch 1; a higher one is kept for good."""
        if landing.envelope.epoch > 1:
            db.execute(
                "INSERT INTO epoch VALUES (?, ?) ON CONFLICT (source) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (landing.envelope.source, landing.envelope.epoch),
            )

    def newest_epoch(self, source: str) -> int:
        """The highest epoch that a command of this sender carried."""
        row = self._db.execute("SELECT epoch FROM epoch WHERE source = ?", (source,)).fetchone()
        return int(row[0]) if row else 1

    def _insert(self, db: sqlite3.Connection, landing: Landing, now: datetime) -> bool:
        envelope, order = landing.envelope, landing.order
        return (
            db.execute(
                "INSERT INTO command (id, key, type, claim_id, machine_version, stored_at, deadline, envelope, state,"
                " landed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?) ON CONFLICT (id) DO NOTHING",
                (
                    envelope.id,
                    landing.key,
                    envelope.type,
                    order.claim_id,
                    order.machine_version,
                    _text(order.stored_at),
                    _text(order.deadline) if order.deadline else None,
                    envelope.encode(),
                    _text(now),
                ),
            ).rowcount
            == 1
        )

    def _move_fence(self, db: sqlite3.Connection, landing: Landing) -> None:
        key, order = landing.key, landing.order
        before = self.fence(key)
        overtaken = db.execute(
            "SELECT 1 FROM overtaken_claim WHERE key = ? AND claim_id = ?", (key, order.claim_id)
        ).fetchone()
        after = moved_fence(before, order, seen_before=overtaken is not None)
        if after is None or after == before:
            return
        if before is not None and before.claim_id != after.claim_id:
            db.execute("INSERT OR IGNORE INTO overtaken_claim VALUES (?, ?)", (key, before.claim_id))
            db.execute("DELETE FROM overtaken_claim WHERE key = ? AND claim_id = ?", (key, after.claim_id))
        db.execute(
            "INSERT OR REPLACE INTO fence VALUES (?, ?, ?, ?)",
            (key, after.claim_id, after.machine_version, _text(after.first_seen_at)),
        )

    def fence(self, key: str) -> Fence | None:
        """The newest claim of the machine `key`, None when none was ever seen."""
        row = self._db.execute(
            "SELECT claim_id, machine_version, first_seen_at FROM fence WHERE key = ?", (key,)
        ).fetchone()
        return Fence(row[0], row[1], _time(row[2])) if row else None

    def newest_changing_version(self, entry: Entry) -> int:
        """The highest machine version of commands, later than `entry`, that change its machine; 0 for none."""
        marks = ", ".join("?" * len(CHANGING_TYPES))
        row = self._db.execute(
            f"SELECT max(machine_version) FROM command WHERE key = ? AND id <> ? AND stored_at >= ? "
            f"AND type IN ({marks})",
            (entry.key, entry.envelope.id, _text(entry.order.stored_at), *sorted(CHANGING_TYPES)),
        ).fetchone()
        return int(row[0] or 0)

    def open_entries(self) -> list[Entry]:
        """Commands without an answer, in the order in which the hub stored them."""
        rows = self._db.execute(
            "SELECT envelope, key, claim_id, machine_version, stored_at, deadline, state FROM command"
            " WHERE state <> 'done' ORDER BY stored_at, id"
        ).fetchall()
        return [
            Entry(
                envelope=decode(row[0]),
                key=row[1],
                order=Order(row[2], row[3], _time(row[4]), _time(row[5]) if row[5] else None),
                begun=row[6] == "begun",
            )
            for row in rows
        ]

    def begin(self, command_id: str, now: datetime) -> bool:
        """Note that work on the command starts; False when it was begun or answered before."""
        with self._transaction() as db:
            return (
                db.execute(
                    "UPDATE command SET state = 'begun', begun_at = ? WHERE id = ? AND state = 'waiting'",
                    (_text(now), command_id),
                ).rowcount
                == 1
            )

    def finish(self, command_id: str, outcome: str, answer: Envelope | None, subject: str, now: datetime) -> None:
        """Write the command's outcome and, in the same transaction, the message that tells the requester.

        `answer` is None when nobody asked for one. The first answer stands: a second call changes nothing.
        """
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE command SET state = 'done', done_at = ?, outcome = ? WHERE id = ? AND state <> 'done'",
                (_text(now), outcome, command_id),
            ).rowcount
            if changed == 1 and answer is not None:
                self._put(db, answer, subject, command_id)

    def post(self, message: Envelope, subject: str) -> None:
        """Queue a message that answers no command."""
        with self._transaction() as db:
            self._put(db, message, subject, None)

    def post_log(self, run_id: str, first_line: int, count: int, message: Envelope, subject: str) -> None:
        """Queue `count` lines of a run's log, the first of them number `first_line`, and move its line counter."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO run_log VALUES (?, ?)", (run_id, first_line + count))
            self._put(db, message, subject, None)

    def next_line(self, run_id: str) -> int:
        """The number of the next log line of the run: the first one is 1, and a resumed run goes on counting."""
        row = self._db.execute("SELECT next_line FROM run_log WHERE run_id = ?", (run_id,)).fetchone()
        return int(row[0]) if row else 1

    def _put(self, db: sqlite3.Connection, message: Envelope, subject: str, command_id: str | None) -> None:
        db.execute(
            "INSERT INTO outbox (message_id, command_id, subject, payload) VALUES (?, ?, ?, ?)",
            (message.id, command_id, subject, message.encode()),
        )

    def unpublished(self, limit: int) -> list[Outgoing]:
        """The oldest `limit` messages that no server has confirmed."""
        rows = self._db.execute(
            "SELECT position, message_id, subject, payload FROM outbox WHERE published_at IS NULL"
            " ORDER BY position LIMIT ?",
            (limit,),
        ).fetchall()
        return [Outgoing(*row) for row in rows]

    def published(self, positions: Sequence[int], now: datetime) -> None:
        """Note that the messages are on the site's stream."""
        with self._transaction() as db:
            db.executemany(
                "UPDATE outbox SET published_at = ? WHERE position = ?", [(_text(now), number) for number in positions]
            )

    def prune(self, now: datetime) -> None:
        """Forget what is old enough that nobody can ask for it again; fences are kept."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM outbox WHERE published_at < ? AND (command_id IS NULL OR command_id IN"
                " (SELECT id FROM command WHERE state = 'done' AND done_at < ?))",
                (_text(now - KEEP_PUBLISHED), _text(now - KEEP_ANSWERS)),
            )
            db.execute(
                "DELETE FROM command WHERE state = 'done' AND done_at < ? AND id NOT IN"
                " (SELECT command_id FROM outbox WHERE command_id IS NOT NULL)",
                (_text(now - KEEP_ANSWERS),),
            )


def _text(moment: datetime) -> str:
    """UTC in a fixed width, so that times sort as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
