"""Given/when/then for sagas, without a database: start one, answer its commands, look at what it wants next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from libs.contracts.ids import derived_uuid
from libs.contracts.message import Message
from libs.contracts.operations import OperationStatus, OperationStep
from libs.contracts.replies import Reply, ok
from libs.saga.core import Answer, Run, Send, Timer, new_state
from libs.saga.dsl import Data, Saga


class SagaKit:
    """One saga under test. Commands are named "step" or "step/item" ("undo step/item", "swap step/item")."""

    def __init__(self, saga: Saga, data: Data) -> None:
        self.saga = saga
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        base = {"actor": "user:test", "tenant": "-", "site": "-", "correlation_id": "c-1"}
        self.state = new_state(saga, derived_uuid("saga-kit", saga.kind), {**base, **data}, self.now)
        self.sends: list[Send] = []
        self.timers: list[Timer] = []
        self.answers: list[Reply] = []
        self._run(lambda run: run.start())

    def _run(self, what: Any) -> Any:
        # A round trip through JSON on every decision: nothing may live outside the row.
        self.state = type(self.state).model_validate_json(self.state.model_dump_json())
        run = Run(self.saga, self.state, self.now)
        outcome = what(run)
        for effect in run.effects:
            match effect:
                case Send():
                    self.sends.append(effect)
                case Timer():
                    self.timers.append(effect)
                case Answer():
                    self.answers.append(effect.reply)
        return outcome

    def _name(self, command_id: str) -> str:
        pending = self.state.pending[command_id]
        head = "" if pending.role == "do" else f"{pending.role} "
        tail = f"/{pending.item}" if pending.item else ""
        return f"{head}{self.saga.steps[pending.step].name}{tail}"

    def sent(self) -> dict[str, Message]:
        """The commands that are awaited now, by name."""
        return {self._name(send.id): send.message for send in self.sends if send.id in self.state.pending}

    def forgotten(self) -> list[Message]:
        """The commands that were sent and are not awaited at all (discards)."""
        return [send.message for send in self.sends if not send.awaited]

    def reply(self, name: str, *, item: str = "", reply: Reply | None = None, **data: Any) -> bool:
        """Answer an awaited command by step name (and item); OK with `data` unless a reply is given."""
        full = f"{name}/{item}" if item else name
        command_id = next((send.id for send in self.sends if self._awaits(send.id, full)), None)
        if command_id is None:
            raise AssertionError(f"{full} is not awaited; awaited are {sorted(self.sent())}")
        return self.reply_to(command_id, reply or ok(**data))

    def reply_to(self, command_id: str, reply: Reply) -> bool:
        """Deliver an answer to any command id, awaited or not."""
        return bool(self._run(lambda run: run.reply(command_id, reply)))

    def reply_all(self, name: str, reply: Reply | None = None, **data: Any) -> None:
        """Answer every awaited command of one step."""
        for full in [key for key in self.sent() if key == name or key.startswith(f"{name}/")]:
            step, _, item = full.partition("/")
            self.reply(step, item=item, reply=reply, **data)

    def timeout(self, name: str, *, item: str = "") -> bool:
        """Let the time limit of an awaited command pass."""
        full = f"{name}/{item}" if item else name
        token = next(key for key in self.state.pending if self._name(key) == full)
        return self.fire(token)

    def retry_now(self) -> int:
        """Let every waiting retry's time come. Returns how many there were."""
        tokens = [key for key, pending in self.state.pending.items() if pending.role in ("retry", "retry_undo")]
        for token in tokens:
            self.fire(token)
        return len(tokens)

    def fire(self, token: str) -> bool:
        timer = next(timer for timer in self.timers if timer.token == token)
        self.now = max(self.now + timedelta(milliseconds=1), timer.due_at)
        return bool(self._run(lambda run: run.timer(token)))

    def cancel(self, reason: str = "not wanted any more") -> bool:
        return bool(self._run(lambda run: run.cancel(reason)))

    def resume(self) -> bool:
        return bool(self._run(lambda run: run.resume()))

    def _awaits(self, command_id: str, full: str) -> bool:
        return command_id in self.state.pending and self._name(command_id) == full

    @property
    def status(self) -> OperationStatus:
        return self.state.status

    @property
    def data(self) -> Data:
        return self.state.data

    @property
    def steps(self) -> dict[str, OperationStep]:
        return {record.name: record for record in self.state.records}
