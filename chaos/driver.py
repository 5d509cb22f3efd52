"""People who use the system while it is hurt: tenants with clusters, operators with machines. Bounded and seeded.

Each person does one thing after another; several of them make many processes of every kind run side by side. What
they asked and what they were told goes into a `Book`, the outside record that the rules read.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from chaos.history import Answer, Poll, Request
from deploy.lab.oidc.accounts import OPERATOR_AUDIENCE, TENANT_AUDIENCE
from deploy.lab.oidc.sign_in import SignInError
from deploy.local.stack import Stack

FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
TRY_SECONDS = 12.0  # The gateway itself gives up after 10.
RETRY_SECONDS = 0.5
POLL_SECONDS = 1.0
REPEATS = 0.2  # How often an accepted request is sent again for no reason.
PROFILES = ("h100-sxm-8", "h100-sxm-8", "cpu-node")
MOST_NODES = {"h100-sxm-8": 2, "cpu-node": 1}
LEFT_ALONE = 0.5  # How often an operator does not get to a machine that needs one.
KEPT_OUT = 2  # Machines that an operator keeps out of the pool at most.


@dataclass
class Book:
    """Everything that was asked and told, by everybody."""

    requests: dict[str, Request] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)

    def asked(self, request: Request) -> None:
        self.requests[request.key] = request

    def tried_again(self, key: str) -> None:
        kept = self.requests[key]
        self.requests[key] = kept.model_copy(update={"tries": kept.tries + 1})

    def told(self, key: str, answer: Answer) -> None:
        kept = self.requests[key]
        self.requests[key] = kept.model_copy(update={"answers": (*kept.answers, answer)})

    @property
    def accepted(self) -> dict[str, str]:
        """Operation → who asked for it."""
        return {
            answer.operation_id: request.who
            for request in self.requests.values()
            for answer in request.answers
            if answer.operation_id is not None
        }


@dataclass
class Person:
    """One signed-in caller at one door."""

    name: str
    url: str
    http: httpx.AsyncClient
    sign_in: Callable[[], str]
    book: Book
    dice: random.Random
    stop: asyncio.Event
    _token: str = ""

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask until it is settled. Returns the document of what was accepted, {} when it was refused."""
        key = str(uuid.UUID(int=self.dice.getrandbits(128), version=4))
        sent = Request(
            key=key, who=self.name, method=method, path=path, sent_at=_now(), body=dict(body) if body else None
        )
        self.book.asked(sent)
        document = await self._until_settled(key, method, path, body)
        if document and self.dice.random() < REPEATS:
            await self._until_settled(key, method, path, body)
        return document

    async def _until_settled(self, key: str, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        while True:
            answer = await self._try(method, path, body, {"Idempotency-Key": key})
            if answer is not None and answer.status_code < 500 and answer.status_code not in (401, 429):
                break
            self.book.tried_again(key)
            await asyncio.sleep(RETRY_SECONDS)
        document: dict[str, Any] = answer.json() if answer.content else {}
        good = answer.status_code < 400
        told = Answer(
            at=_now(),
            status=answer.status_code,
            operation_id=document.get("operation_id") if good else None,
            code="" if good else str(document.get("code", "")),
        )
        self.book.told(key, told)
        return document if good else {}

    async def read(self, path: str) -> dict[str, Any] | None:
        """A document, None when nobody answered or there is none."""
        answer = await self._try("GET", path, None, {})
        if answer is None or answer.status_code != 200:
            return None
        document: dict[str, Any] = answer.json()
        return document

    async def post_once(self, url: str, within_seconds: float) -> httpx.Response:
        """One POST that is no part of the story. Raises httpx.HTTPError."""
        if not self._token:
            self._token = await asyncio.to_thread(self.sign_in)
        return await self.http.post(url, headers={"Authorization": f"Bearer {self._token}"}, timeout=within_seconds)

    async def _try(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> httpx.Response | None:
        with suppress(httpx.HTTPError, SignInError):
            if not self._token:
                self._token = await asyncio.to_thread(self.sign_in)
            signed = {**headers, "Authorization": f"Bearer {self._token}"}
            answer = await self.http.request(method, self.url + path, json=body, headers=signed, timeout=TRY_SECONDS)
            if answer.status_code == 401:
                self._token = ""
            return answer
        return None

    async def status(self, operation_id: str) -> str | None:
        """The operation's status now, noted as seen."""
        document = await self.read(f"/operations/{operation_id}")
        if document is None:
            return None
        status = str(document["status"])
        self.book.polls.append(Poll(at=_now(), operation_id=operation_id, status=status))
        return status

    async def ended(self, operation_id: str) -> str | None:
        """Wait for the operation's end; None when the person stops caring first."""
        while True:
            status = await self.status(operation_id)
            if status in FINAL:
                return status
            if self.stop.is_set():
                return None
            await self.wait(POLL_SECONDS)

    async def wait(self, seconds: float) -> None:
        """Do nothing for a while, or until it is time to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop.wait()


def _now() -> datetime:
    return datetime.now(UTC)


# -- what tenants do --------------------------------------------------------------------------------


async def keep_clusters(person: Person, public_key: str) -> None:
    """Make clusters and give them back, one after another, until it is time to stop."""
    number = 0
    while not person.stop.is_set():
        number += 1
        await _one_cluster(person, f"{person.name}-{number}", public_key)
        await person.wait(person.dice.uniform(0.2, 2.0))


async def _one_cluster(person: Person, name: str, public_key: str) -> None:
    dice = person.dice
    profile = dice.choice(PROFILES)
    wanted = {
        "name": name,
        "profile": profile,
        "node_count": dice.randint(1, MOST_NODES[profile]),
        "ssh_authorized_keys": [public_key],
    }
    fate = dice.choices(("keep", "cancel", "delete early", "delete at once"), (6, 2, 2, 1))[0]
    patience = {"keep": 0.0, "cancel": dice.uniform(0, 10), "delete early": dice.uniform(0, 10), "delete at once": 0}
    started = await person.ask("POST", "/clusters", wanted)
    if not started:
        return
    operation, cluster = str(started["operation_id"]), str(started["cluster_id"])
    if fate == "keep":
        if await person.ended(operation) != "SUCCEEDED":
            await person.wait(dice.uniform(1, 5))  # Others may give something back meanwhile.
            return
        await person.wait(dice.uniform(0, 6))
        if person.stop.is_set():
            return  # Some clusters are there to stay.
    else:
        await person.wait(patience[fate])
    if fate == "cancel":
        await person.ask("POST", f"/operations/{operation}/cancel")
    else:
        ending = await person.ask("DELETE", f"/clusters/{cluster}")
        operation = str(ending.get("operation_id", operation))
    await person.ended(operation)


# -- what operators do ------------------------------------------------------------------------------


async def enrol(person: Person, racks: tuple[str, ...]) -> None:
    """Enrol the racks, each by a request of its own, as soon as their machines are known; wait for the end."""
    while not person.stop.is_set():
        known = {machine["rack"] for machine in await _machines(person)}
        if known >= set(racks):
            break
        await person.wait(POLL_SECONDS)
    started = await asyncio.gather(*(person.ask("POST", "/enrolments", {"racks": [rack]}) for rack in racks))
    await asyncio.gather(*(person.ended(str(each["operation_id"])) for each in started if each))


async def keep_house(person: Person) -> None:
    """Look after machines and operations that wait for a human, and get in the way now and then."""
    chores: tuple[Callable[[Person], Awaitable[None]], ...] = (_repair, _repair, _resume, _quarantine, _hold)
    while not person.stop.is_set():
        await person.dice.choice(chores)(person)
        await person.wait(person.dice.uniform(0.5, 2.0))


async def _machines(person: Person) -> list[dict[str, Any]]:
    document = await person.read("/machines?limit=200")
    return document["items"] if document else []


async def _repair(person: Person) -> None:
    """Retry what failed, release what is in quarantine."""
    for machine in await _machines(person):
        if person.dice.random() < LEFT_ALONE:
            continue
        if machine["state"] == "FAILED":
            await person.ask("POST", f"/machines/{machine['id']}/retry")
        elif machine["state"] == "QUARANTINED":
            reason = {"reason": "looked at and found good"}
            await person.ask("POST", f"/machines/{machine['id']}/release-quarantine", reason)


async def _resume(person: Person) -> None:
    document = await person.read("/operations?status=RUNNING&limit=200")
    for operation in document["items"] if document else []:
        if operation.get("waiting_for"):
            await person.ask("POST", f"/operations/{operation['id']}/resume")


async def _quarantine(person: Person) -> None:
    machines = await _machines(person)
    free = [machine for machine in machines if machine["state"] == "AVAILABLE"]
    out = [machine for machine in machines if machine["state"] == "QUARANTINED"]
    if free and len(out) < KEPT_OUT:
        chosen = person.dice.choice(free)
        await person.ask("POST", f"/machines/{chosen['id']}/quarantine", {"reason": "to see what happens"})


async def _hold(person: Person) -> None:
    """Put a hold on a machine and take it away again."""
    machines = await _machines(person)
    if not machines:
        return
    chosen = person.dice.choice(machines)
    held = await person.ask("POST", f"/machines/{chosen['id']}/holds", {"reason": "a moment, please"})
    await person.wait(person.dice.uniform(0.2, 2.0))
    for hold in held.get("holds", ()):
        if hold["reason"] == "a moment, please":
            await person.ask("DELETE", f"/machines/{chosen['id']}/holds/{hold['id']}")


# -- everybody --------------------------------------------------------------------------------------


class Crowd:
    """All people of one run. `tenants_each` persons for each of the two tenants, and two operators."""

    def __init__(self, stack: Stack, seed: str, public_key: str, tenants_each: int = 3) -> None:
        self.stack, self.seed, self.public_key, self.tenants_each = stack, seed, public_key, tenants_each
        self.book, self.stop = Book(), asyncio.Event()
        self.http = httpx.AsyncClient(limits=httpx.Limits(max_connections=50))

    def person(self, account: str, name: str) -> Person:
        operator = account == "operator"
        audience = OPERATOR_AUDIENCE if operator else TENANT_AUDIENCE
        return Person(
            name=name,
            url=self.stack.operator_url if operator else self.stack.tenant_url,
            http=self.http,
            sign_in=lambda: self.stack.oidc.token(f"svc-{account}", audience),
            book=self.book,
            dice=random.Random(f"{self.seed} {name}"),
            stop=self.stop,
        )

    async def close(self) -> None:
        await self.http.aclose()

    async def first_machines(self, rack: str) -> None:
        """Enrol one rack, so that there is something to have."""
        await enrol(self.person("operator", "operator-0"), (rack,))

    async def live(self, racks: tuple[str, ...]) -> None:
        """Do things until `stop` is set and every request is settled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(enrol(self.person("operator", "operator-2"), racks))
            group.create_task(keep_house(self.person("operator", "operator-1")))
            for account in ("alice", "bob"):
                for number in range(self.tenants_each):
                    person = self.person(account, f"{account}-{number}")
                    group.create_task(keep_clusters(person, self.public_key))
