"""The API's nouns as attributes of the client: `client.machines`, `client.clusters`, `client.operations`, …

A collection lists and shows; what else a noun can do is a method with the verb's name. Every method
takes `door` where two doors offer the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import cached_property
from typing import Any

from slipway import live, models
from slipway.audit import Audit
from slipway.collection import Collection, segment
from slipway.doors import BOTH, OPERATOR_ONLY, Door, Filter
from slipway.errors import ApiError, Unavailable
from slipway.models import D, Document, Page
from slipway.subscriptions import Subscriber, Subscribers
from slipway.transport import Transport
from slipway.webhooks import Webhook, Webhooks

WATCH_EVERY_SECONDS = 0.5
EXPORT_PAGE = 2000
HTTP_NOT_FOUND = 404


class Machines(Collection[models.Machine]):
    async def enrol(
        self, *, racks: Sequence[str] = (), machines: Sequence[str] = (), site: str | None = None
    ) -> models.Started:
        """Bring EXPECTED machines to AVAILABLE."""
        body = {"racks": list(racks) or None, "machines": list(machines) or None, "site": site}
        return models.Started.of(await self._write("POST", "/enrolments", body))

    async def act(self, action: str, reason: str, *, dry_run: bool = False, **chosen: Any) -> models.Started:
        """hold, unhold or quarantine the machines that are named (`machines=[…]`) or match the filters of lists."""
        body = {"action": action, "reason": reason, "dry_run": dry_run or None, **chosen}
        return models.Started.of(await self._write("POST", "/machine-actions", body))

    async def rotate_credentials(
        self,
        *,
        racks: Sequence[str] = (),
        machines: Sequence[str] = (),
        site: str | None = None,
        dry_run: bool = False,
    ) -> models.Started:
        """Give BMCs new passwords, each proven before the old one goes; with `dry_run` only say which."""
        body = {
            "racks": list(racks) or None,
            "machines": list(machines) or None,
            "site": site,
            "dry_run": dry_run or None,
        }
        return models.Started.of(await self._write("POST", "/credential-rotations", body))

    async def retry(self, machine: str) -> models.Started:
        """Try the failed step of a machine again."""
        return models.Started.of(await self._write("POST", f"/machines/{segment(machine)}/retry"))

    async def stuck(self, *, sites: Sequence[str] = (), over: bool = False) -> Any:
        """Machines that will not go on by themselves, the worst first."""
        return await self._read("/stuck-machines", site=list(sites) or None, over="true" if over else None)

    async def give_up(self, machine: str, reason: str) -> Document:
        """The step that it is in has failed: it can be retried."""
        return Document.of(await self._write("POST", f"/machines/{segment(machine)}/give-up", {"reason": reason}))

    async def power(self, machine: str, power: str, reason: str) -> models.Started:
        """Switch a machine "on" or "off" and see it so."""
        body = {"power": power, "reason": reason}
        return models.Started.of(await self._write("POST", f"/machines/{segment(machine)}/power", body))

    async def quarantine(self, machine: str, reason: str) -> Document:
        """Take a machine out of the pool."""
        return Document.of(await self._write("POST", f"/machines/{segment(machine)}/quarantine", {"reason": reason}))

    async def release(self, machine: str, reason: str) -> models.Started:
        """Sanitize and validate a quarantined machine; AVAILABLE when it passes."""
        path = f"/machines/{segment(machine)}/release-quarantine"
        return models.Started.of(await self._write("POST", path, {"reason": reason}))

    async def decommission(
        self, machine: str, reason: str, *, wipe: bool = True, dry_run: bool = False
    ) -> models.Started:
        """Wipe a machine and remove it for good; with `dry_run` only say what that would do (`steps`)."""
        body = {"reason": reason, "wipe": wipe, "dry_run": dry_run}
        return models.Started.of(await self._write("POST", f"/machines/{segment(machine)}/decommission", body))

    async def hold(self, machine: str, reason: str) -> Document:
        """Keep a machine from use until the hold is removed."""
        return Document.of(await self._write("POST", f"/machines/{segment(machine)}/holds", {"reason": reason}))

    async def unhold(self, machine: str, hold_id: str) -> Document:
        """Remove a hold."""
        return Document.of(await self._write("DELETE", f"/machines/{segment(machine)}/holds/{segment(hold_id)}"))

    async def import_(self, text: str, form: str, *, dry_run: bool = False, first_row: int = 1) -> Document:
        """Tell of expected machines by a manifest; `form` is "csv" or "yaml". The report names every bad row."""
        body = {"text": text, "format": form, "dry_run": dry_run, "first_row": first_row}
        return Document.of(await self._write("POST", "/machine-imports", body))

    async def scan(self, site: str, networks: Sequence[str] = ()) -> models.Started:
        """Let a site ask its BMC ranges who is there."""
        return models.Started.of(await self._write("POST", "/bmc-scans", {"site": site, "networks": list(networks)}))


class Candidates(Collection[models.Candidate]):
    """BMCs that nobody expected."""

    async def approve(self, candidate: str, **machine: Any) -> Document:
        """Make its machine; `machine` holds name, rack, device_type, serial, and perhaps position, role, nic_macs."""
        return Document.of(await self._write("POST", f"/candidates/{segment(candidate)}/approve", machine))

    async def ignore(self, candidate: str, reason: str) -> Document:
        """Keep it out of the list of new ones."""
        path = f"/candidates/{segment(candidate)}/ignore"
        return Document.of(await self._write("POST", path, {"reason": reason}))


class Violations(Collection[models.Violation]):
    async def repair(self, violation_id: str, *, dry_run: bool = False) -> Document:
        """Start the violation's repair by the normal workflow; with `dry_run` only say what it would do."""
        path = f"/violations/{segment(violation_id)}/repair"
        return Document.of(await self._write("POST", path, {"dry_run": dry_run}))

    async def invariants(self) -> Any:
        """What must be true between the systems, and how the last look went, by site."""
        return await self._read("/invariants")


class Clusters(Collection[models.Cluster]):
    async def create(
        self,
        *,
        name: str,
        profile: str,
        node_count: int,
        keys: Sequence[str],
        image: str | None = None,
        template: str | None = None,
        site: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> models.Started:
        """Ask for a cluster; the answer comes at once, the work goes on. `keys` are OpenSSH public key lines."""
        body = {
            "name": name,
            "profile": profile,
            "node_count": node_count,
            "image": image,
            "template": template,
            "site": site,
            "tenant": tenant,
            "ssh_authorized_keys": list(keys),
        }
        return models.Started.of(await self._write("POST", "/clusters", body, idempotency_key=idempotency_key))

    async def delete(self, cluster_id: str, *, if_match: str | None = None, door: Door | None = None) -> models.Started:
        """Give a cluster back."""
        path = f"/clusters/{segment(cluster_id)}"
        return models.Started.of(await self._write("DELETE", path, door=door, if_match=if_match))

    async def nodes(self, cluster_id: str, *, door: Door | None = None) -> Page[models.Node]:
        """The cluster's nodes."""
        return Page(await self._read(f"/clusters/{segment(cluster_id)}/nodes", door), models.Node)

    async def ssh_config(self, cluster_id: str, *, known_hosts_file: str | None = None) -> tuple[str, str]:
        """Text for an SSH client configuration, and for the file where its nodes' host keys are to be kept."""
        path = f"/clusters/{segment(cluster_id)}/ssh-config"
        document = await self._read(path, Door.TENANT, known_hosts_file=known_hosts_file)
        return str(document["ssh_config"]), str(document["known_hosts"])


class Operations(Collection[models.Operation]):
    async def cancel(self, operation_id: str, reason: str | None = None, *, door: Door | None = None) -> Document:
        """Cancel; what the operation took is given back."""
        body = {"reason": reason} if reason else None
        return Document.of(await self._write("POST", f"/operations/{segment(operation_id)}/cancel", body, door=door))

    async def resume(self, operation_id: str) -> Document:
        """Go on with an operation that waits for a human."""
        return Document.of(await self._write("POST", f"/operations/{segment(operation_id)}/resume", door=Door.OPERATOR))

    async def watch(
        self, operation_id: str, *, door: Door | None = None, every_seconds: float = WATCH_EVERY_SECONDS
    ) -> AsyncIterator[models.Operation]:
        """The operation now and at every change, until it has ended.

        An API that is away for a while is waited for: the operation goes on without us.
        """
        path, etag, seen = f"/operations/{segment(operation_id)}", None, False
        while True:
            try:
                response = await self._transport.request(self.door(door), "GET", path, if_none_match=etag)
            except Unavailable:
                if not seen:
                    raise
                await asyncio.sleep(every_seconds)
                continue
            etag, seen = response.etag or etag, True
            if response.document is not None:
                operation = models.Operation.of(response.document)
                yield operation
                if operation.final:
                    return
            await asyncio.sleep(every_seconds)

    async def wait(
        self, operation_id: str, *, door: Door | None = None, within_seconds: float | None = None
    ) -> models.Operation:
        """The operation when it has ended, whatever its outcome. Raises TimeoutError after `within_seconds`."""
        began = time.monotonic()
        async for operation in self.watch(operation_id, door=door):
            if operation.final:
                return operation
            if within_seconds is not None and time.monotonic() - began > within_seconds:
                raise TimeoutError(f"{operation_id} is still {operation.status} after {within_seconds:g} s")
        raise AssertionError("watch ends with a final operation")


class Catalog(Collection[D]):
    """Profiles, images and templates: operators put them, everybody reads them."""

    async def put(self, name: str, body: Mapping[str, Any], *, if_match: str | None = None) -> Document:
        """Add or replace one. Without `if_match` the version that is there now is replaced."""
        path = f"{self._path}/{segment(name)}"
        if if_match is None:
            if_match = await self._version(path)
        return Document.of(await self._write("PUT", path, body, door=Door.OPERATOR, if_match=if_match))

    async def _version(self, path: str) -> str | None:
        try:
            etag = (await self._transport.request(Door.OPERATOR, "GET", path)).etag
        except ApiError as error:
            if error.status == HTTP_NOT_FOUND:
                return None
            raise
        return etag.removeprefix("W/").strip('"') if etag else None


class Profiles(Catalog[models.Profile]):
    async def availability(self, name: str, *, site: str | None = None, door: Door | None = None) -> Document:
        """How many machines could be had now, and why the others could not."""
        return Document.of(await self._read(f"/profiles/{segment(name)}/availability", door, site=site))


class Prices(Collection[models.Price]):
    async def set(self, profile: str, amount: str, currency: str, valid_from: datetime | None = None) -> models.Price:
        """Set the price of a machine-hour from `valid_from` on (now when None)."""
        body = {
            "price_per_machine_hour": amount,
            "currency": currency,
            "valid_from": valid_from.isoformat() if valid_from else None,
        }
        return models.Price.of(await self._write("PUT", f"/prices/{segment(profile)}", body, door=Door.OPERATOR))


class Creatable(Collection[D]):
    async def create(self, **body: Any) -> D:
        return self._model.of(await self._write("POST", self._path, body))


class Grants(Creatable[models.Grant]):
    async def revoke(self, grant_id: str) -> Document:
        return Document.of(await self._write("DELETE", f"/grants/{segment(grant_id)}"))


class Sources(Collection[Document]):
    async def read_now(self, source: str = "netbox") -> Document:
        """Have a source of truth read now instead of at its next turn."""
        return Document.of(await self._write("POST", f"/sources/{segment(source)}/read"))


class Services(Collection[Document]):
    """What every service has: projections and dead letters."""

    async def projections(self, service: str) -> Page[Document]:
        return Page(await self._read("/projections", service=service), Document)

    async def rebuild(
        self, service: str, name: str, *, swap: bool = False, on_progress: Callable[[Document], None] | None = None
    ) -> Document:
        """Build a projection anew beside the live one, compare, and with `swap` put it in the live one's place.

        Returns when it has ended; `on_progress` is told how far it is. A rebuild that runs already is joined.
        """
        path = f"/projections/{segment(service)}/{segment(name)}/rebuild"
        document = Document.of(await self._write("POST", path, {"swap": swap}))
        while document.raw.get("state") == "running":
            if on_progress is not None:
                on_progress(document)
            await asyncio.sleep(WATCH_EVERY_SECONDS)
            document = await self.rebuild_progress(service, name)
        if on_progress is not None:
            on_progress(document)
        return document

    async def rebuild_progress(self, service: str, name: str) -> Document:
        """How far the newest rebuild is, or what it found."""
        return Document.of(await self._read(f"/projections/{segment(service)}/{segment(name)}/rebuild"))

    async def dead_letters(self, service: str, **filters: Filter) -> AsyncIterator[Page[Document]]:
        """Messages that the service could not handle; filters: cause, type, key, subject, error, since, before."""
        path = f"/services/{segment(service)}/dead-letters"
        async for page in self._transport.pages(Door.OPERATOR, path, Document, filters):
            yield page

    async def dead_letter(self, service: str, letter: str) -> Document:
        """One dead letter, what waits behind it, and what was done about it so far."""
        return Document.of(await self._read(self._letter(service, letter)))

    async def redrive(
        self,
        service: str,
        letter: str,
        *,
        reason: str | None = None,
        data: Mapping[str, Any] | None = None,
        message: Mapping[str, Any] | None = None,
    ) -> Document:
        """Have it handled again; `data` (or the whole `message`) replaces the original, which is kept."""
        body = {"reason": reason, "data": data, "message": message}
        return Document.of(await self._write("POST", f"{self._letter(service, letter)}/redrive", body))

    async def drop(self, service: str, letter: str, reason: str) -> Document:
        """Give it up; what waits behind it goes on."""
        return Document.of(await self._write("POST", f"{self._letter(service, letter)}/drop", {"reason": reason}))

    async def redrive_many(self, service: str, **wanted: Any) -> Document:
        """Have all that match handled again; with `dry_run` only say which."""
        path = f"/services/{segment(service)}/dead-letters/redrive"
        return Document.of(await self._write("POST", path, wanted))

    async def start_replay(self, service: str, name: str, **wanted: Any) -> Document:
        """Publish events once more on replay.<name>.>; wanted: first, last, since, until, entity, type, tenant."""
        body = {"name": name, **wanted}
        return Document.of(await self._write("POST", f"/services/{segment(service)}/replays", body))

    async def replay(self, service: str, replay_id: str) -> Document:
        """How far a replay is."""
        return Document.of(await self._read(f"/services/{segment(service)}/replays/{segment(replay_id)}"))

    async def replays(self, service: str) -> Page[Document]:
        """The newest replays of a service's events."""
        return Page(await self._read(f"/services/{segment(service)}/replays"), Document)

    async def cancel_replay(self, service: str, replay_id: str) -> Document:
        """Stop it where it is."""
        path = f"/services/{segment(service)}/replays/{segment(replay_id)}/cancel"
        return Document.of(await self._write("POST", path))

    async def restore(self, service: str) -> Document:
        """What the service's restored database lacks of its stream; `waiting` says whether it waits for a human."""
        path = f"/services/{segment(service)}/restore"
        document: dict[str, Any] = {}
        async for page in self._transport.pages(Door.OPERATOR, path, Document, {"limit": 200}):
            items = [*document.get("items", ()), *page.raw.get("items", ())]
            document = {**page.raw, "items": items}
        return Document.of(document)

    async def accept_restore(self, service: str, epoch: int, reason: str) -> Document:
        """Have it go on after the restore, with numbers and versions after the stream's last."""
        body = {"epoch": epoch, "reason": reason}
        return Document.of(await self._write("POST", f"/services/{segment(service)}/restore/accept", body))

    @staticmethod
    def _letter(service: str, letter: str) -> str:
        return f"/services/{segment(service)}/dead-letters/{segment(letter)}"


class History(Collection[models.Event]):
    """Events, and the life of one thing."""

    async def timeline(self, entity_id: str, *, full: bool = False) -> AsyncIterator[Page[models.Event]]:
        """Every event that mentions an id or a name, oldest first; `full`: with its data."""
        path = f"/timeline/{segment(entity_id)}"
        async for page in self._transport.pages(Door.OPERATOR, path, models.Event, {"full": full or None}):
            yield page

    async def export(
        self, *, door: Door | None = None, cursor: str | None = None, **filters: Filter
    ) -> AsyncIterator[tuple[list[str], str | None]]:
        """Events by service and sequence, a page at a time: lines as published, and the cursor that goes on.

        Each line is a CloudEvent with its `chaindigest` as last attribute; see slipway.proof.
        """
        query = {name.rstrip("_"): value for name, value in filters.items()}
        while True:
            asked = {**query, "limit": EXPORT_PAGE} | ({"cursor": cursor} if cursor else {})
            lines, cursor = await self._transport.lines(self.door(door), "/audit/export", asked)
            yield lines, cursor
            if cursor is None:
                return

    async def tail(
        self, *, door: Door | None = None, after: str | None = None, patience: int | None = None, **filters: Filter
    ) -> AsyncGenerator[live.Item, None]:
        """Events as they happen, behind `after`; see slipway.live."""
        tailing = live.tail(self._transport, self.door(door), after=after, patience=patience, **filters)
        async with aclosing(tailing) as items:
            async for item in items:
                yield item


class Resources:
    """The nouns, each made when it is first used."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @cached_property
    def machines(self) -> Machines:
        return Machines(self.transport, "/machines", models.Machine, OPERATOR_ONLY)

    @cached_property
    def candidates(self) -> Candidates:
        return Candidates(self.transport, "/candidates", models.Candidate, OPERATOR_ONLY)

    @cached_property
    def dhcp(self) -> Collection[models.DhcpServer]:
        return Collection(self.transport, "/dhcp", models.DhcpServer, OPERATOR_ONLY)

    @cached_property
    def dhcp_reservations(self) -> Collection[Document]:
        return Collection(self.transport, "/dhcp/reservations", Document, OPERATOR_ONLY)

    @cached_property
    def leases(self) -> Collection[Document]:
        return Collection(self.transport, "/dhcp/leases", Document, OPERATOR_ONLY)

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self.transport, "/clusters", models.Cluster)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self.transport, "/operations", models.Operation)

    @cached_property
    def profiles(self) -> Profiles:
        return Profiles(self.transport, "/profiles", models.Profile)

    @cached_property
    def images(self) -> Catalog[models.Image]:
        return Catalog(self.transport, "/images", models.Image)

    @cached_property
    def templates(self) -> Catalog[models.Template]:
        return Catalog(self.transport, "/templates", models.Template)

    @cached_property
    def sites(self) -> Collection[models.Site]:
        return Collection(self.transport, "/sites", models.Site, OPERATOR_ONLY)

    @cached_property
    def racks(self) -> Collection[models.Rack]:
        return Collection(self.transport, "/racks", models.Rack, OPERATOR_ONLY)

    @cached_property
    def reservations(self) -> Collection[models.Reservation]:
        return Collection(self.transport, "/reservations", models.Reservation)

    @cached_property
    def runs(self) -> Collection[models.Run]:
        return Collection(self.transport, "/runs", models.Run, OPERATOR_ONLY)

    @cached_property
    def findings(self) -> Collection[models.Finding]:
        return Collection(self.transport, "/findings", models.Finding, OPERATOR_ONLY)

    @cached_property
    def usage(self) -> Collection[models.Usage]:
        return Collection(self.transport, "/usage", models.Usage)

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.transport, "/prices", models.Price)

    @cached_property
    def organizations(self) -> Creatable[models.Organization]:
        return Creatable(self.transport, "/organizations", models.Organization, OPERATOR_ONLY)

    @cached_property
    def tenants(self) -> Creatable[models.Tenant]:
        return Creatable(self.transport, "/tenants", models.Tenant, OPERATOR_ONLY)

    @cached_property
    def grants(self) -> Grants:
        return Grants(self.transport, "/grants", models.Grant, OPERATOR_ONLY)

    @cached_property
    def sources(self) -> Sources:
        return Sources(self.transport, "/sources", Document, OPERATOR_ONLY)

    @cached_property
    def violations(self) -> Violations:
        return Violations(self.transport, "/violations", models.Violation, OPERATOR_ONLY)

    @cached_property
    def services(self) -> Services:
        return Services(self.transport, "/services", Document, OPERATOR_ONLY)

    @cached_property
    def events(self) -> History:
        return History(self.transport, "/events", models.Event)

    @cached_property
    def audit(self) -> Audit:
        return Audit(self.transport, "/audit", Document, OPERATOR_ONLY)

    @cached_property
    def subscribers(self) -> Subscribers:
        return Subscribers(self.transport, "/subscribers", Subscriber)

    @cached_property
    def webhooks(self) -> Webhooks:
        return Webhooks(self.transport, "/webhooks", Webhook)

    async def costs(self, by: str, *, door: Door | None = None, **filters: Filter) -> Any:
        """Usage and cost summed up `by` hour, day, cluster or tenant."""
        query = {"by": by} | {name.rstrip("_"): value for name, value in filters.items()}
        chosen = self.transport.door(BOTH, door)
        return (await self.transport.request(chosen, "GET", "/costs", query=query)).document

    async def me(self, *, door: Door | None = None) -> Any:
        """Who you are to this installation, and what you were granted."""
        chosen = self.transport.door(BOTH, door)
        return (await self.transport.request(chosen, "GET", "/me")).document
