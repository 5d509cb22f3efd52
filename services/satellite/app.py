"""The satellite process: `python -m services.satellite.app`. The only place that wires its parts together.

It ends with 0 when asked to stop, 3 when another satellite has taken the site's lease, 2 when its settings
can't work. Whatever else kills it, the journal says where to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from nats.aio.client import Client
from pydantic import ValidationError

import libs.contracts.all  # noqa: F401  (every message type must be registered before the first one is read)
from libs.contracts.envelope import Envelope, now_utc
from libs.contracts.ids import new_uuid
from libs.contracts.message import Message
from libs.contracts.replies import Reply
from libs.contracts.upcasters import UPCASTERS
from libs.runtime.health import Health
from libs.runtime.logs import set_up_logging
from libs.runtime.tasks import end_all
from services.satellite import observer
from services.satellite.adapters.site import SettingMissing, open_site
from services.satellite.bmc_finder import BmcFinder
from services.satellite.commands import Attempt, execute
from services.satellite.dhcp_watch import DhcpWatch, Say
from services.satellite.dispatcher import Dispatcher
from services.satellite.errors import LeaseLost, SiteError, StateFolderInUse
from services.satellite.journal import Journal
from services.satellite.lease import Lease
from services.satellite.link import Link, connect
from services.satellite.messages import observation_envelope, observation_subject
from services.satellite.observer import Observer
from services.satellite.placement_watch import PlacementWatch
from services.satellite.ports import Site
from services.satellite.run_log import log_sink
from services.satellite.settings import SatelliteSettings

log = structlog.get_logger(__name__)
EXIT_SETTINGS, EXIT_LEASE_LOST = 2, 3
_PRUNE_SECONDS = 3600.0
_PULSE_SECONDS = 1.0
_CLOSE_SECONDS = 3.0


class Satellite:
    """One satellite's parts; `run` works until cancelled."""

    def __init__(self, settings: SatelliteSettings, site: Site, journal: Journal, link: Link, lease: Lease) -> None:
        self.settings, self.site, self.journal, self.link, self.lease = settings, site, journal, link, lease
        self._missing = ["still starting"]
        self.dispatcher = Dispatcher(
            settings.site,
            journal,
            self._execute,
            may_act=lambda: lease.valid and link.clock_allowed(),
            may_begin=lambda: link.drained,
            on_answer=link.has_outgoing,
            limit=settings.max_running_commands,
        )
        self.observer = Observer(
            site.bare_metal, self._say, poll_seconds=settings.poll_seconds, repeat_seconds=settings.repeat_seconds
        )
        self.finder = BmcFinder(settings.site, site.bmc_scan, settings.bmc_ranges, self._say) if site.bmc_scan else None
        self.placement_watch = _placement_watch(site, settings, self._say, self.observer)
        self.dhcp_watch = _dhcp_watch(site, settings, self._say, self.finder)

    def problems(self) -> list[str]:
        """What is wrong at this satellite now, for people."""
        waiting = [] if self.lease.valid else ["the site's lease is not held; another satellite may be active"]
        dhcp = self.dhcp_watch.problems() if self.dhcp_watch else []
        return [*waiting, *self.link.problems(), *self.observer.problems(), *dhcp]

    def parts(self) -> dict[str, str]:
        """How each part of the site was seen last: "ok" or what is wrong; a part that it has not is left out."""
        ironic = "; ".join(self.observer.problems()) or "ok"
        return {"ironic": ironic, **({"placement": self.placement_watch.state} if self.placement_watch else {})}

    async def run(self) -> None:
        """Work until cancelled or a part fails. Raises what the first failed part raised, LeaseLost before others."""
        parts = [
            asyncio.create_task(part)
            for part in (
                self.lease.hold(self.dispatcher.wake),
                self.link.compare_clocks(self.dispatcher.wake),
                self.link.pull(),
                self.link.publish(),
                self.dispatcher.run(),
                self.observer.watch(lambda: self.lease.valid),
                self._beat(),
                self._prune(),
                self._pulse(),
                *([self.placement_watch.watch(lambda: self.lease.valid)] if self.placement_watch else []),
                *([self.dhcp_watch.watch(lambda: self.lease.valid)] if self.dhcp_watch else []),
            )
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_all(parts)
        failures = [error for part in parts if not part.cancelled() and (error := part.exception()) is not None]
        raise next((error for error in failures if isinstance(error, LeaseLost)), failures[0])

    async def _beat(self) -> None:
        await observer.heartbeat(
            self.settings.site,
            self._say,
            every_seconds=self.settings.heartbeat_seconds,
            running=lambda: self.dispatcher.running,
            nodes_known=lambda: self.observer.nodes_known,
            problems=self.problems,
            parts=self.parts,
        )

    async def _pulse(self) -> None:
        """Show /healthz that the event loop turns, and keep what /readyz says in this thread's hands."""
        health = Health(self.settings.metrics_host, self.settings.metrics_port, lambda: self._missing)
        health.start()
        log.info("health_door_open", port=health.port)
        try:
            while True:
                self._missing = self.problems()
                health.beat()
                await asyncio.sleep(_PULSE_SECONDS)
        finally:
            health.stop()

    async def _prune(self) -> None:
        while True:
            self.journal.prune(now_utc())
            await asyncio.sleep(_PRUNE_SECONDS)

    async def _say(self, message: Message) -> None:
        envelope = observation_envelope(self.settings.site, message, now_utc())
        await self.link.say(observation_subject(self.settings.site, message), envelope.id, envelope.encode())

    async def _execute(self, command: Envelope, resumed: bool) -> Reply:
        sink = log_sink(self.settings.site, self.journal, self.link.has_outgoing, command)
        return await execute(command, Attempt(self.site, resumed, sink, self.finder))


def _placement_watch(site: Site, settings: SatelliteSettings, say: Say, observer: Observer) -> PlacementWatch | None:
    if site.placement is None:
        return None
    polls, repeats = settings.placement_poll_seconds, settings.repeat_seconds
    return PlacementWatch(site.placement, lambda: observer.node_ids, say, poll_seconds=polls, repeat_seconds=repeats)


def _dhcp_watch(site: Site, settings: SatelliteSettings, say: Say, finder: BmcFinder | None) -> DhcpWatch | None:
    if site.dhcp is None:
        return None
    polls, repeats = settings.dhcp_poll_seconds, settings.repeat_seconds
    leases = finder.look_at_leases if finder else None
    return DhcpWatch(site.dhcp, settings.site, say, poll_seconds=polls, repeat_seconds=repeats, on_leases=leases)


def claim_state_folder(folder: Path) -> Callable[[], None]:
    """Make the folder ours until the process ends; returns what gives it up. Raises StateFolderInUse."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise StateFolderInUse(f"{folder}: another satellite works with this state folder; end it first") from error
    return lock.close


def holder_name(folder: Path) -> str:
    """This satellite's name for good, made at the first start."""
    path = folder / "holder"
    if not path.exists():
        partial = folder / ".holder.partial"
        partial.write_text(new_uuid())
        partial.replace(path)
    return path.read_text()


async def serve(settings: SatelliteSettings) -> None:
    """Run a satellite until it is cancelled. Raises LeaseLost, StateFolderInUse, SettingMissing, SiteError."""
    give_up_folder = claim_state_folder(settings.state_dir)
    journal = Journal(settings.state_dir / "journal.sqlite")
    try:
        site = open_site(settings)
        client = await _connect(settings)
        # The lease and the dispatcher wake each other's parts; the link is made first with what both need.
        lease = Lease(client.jetstream(), holder_name(settings.state_dir), ttl_seconds=settings.lease_ttl_seconds)
        satellite: Satellite | None = None

        def landed() -> None:
            if satellite is not None:
                satellite.dispatcher.wake()

        link = Link(
            client,
            site=settings.site,
            hub_domain=settings.hub_domain,
            journal=journal,
            may_pull=lambda: lease.valid,
            on_landed=landed,
        )
        satellite = Satellite(settings, site, journal, link, lease)
        log.info("satellite_started", site=settings.site, adapters=settings.site_adapters, holder=lease.holder)
        try:
            await satellite.run()
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
    finally:
        journal.close()
        give_up_folder()


async def _connect(settings: SatelliteSettings) -> Client:
    password = settings.leaf_nats_password.get_secret_value() if settings.leaf_nats_password else None
    return await connect(settings.leaf_nats_url, settings.leaf_nats_user, password, f"satellite-{settings.site}")


async def _serve_until_signalled(settings: SatelliteSettings) -> None:
    task = asyncio.create_task(serve(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("satellite_stopped", site=settings.site)


def main() -> int:
    """Returns the process's exit code."""
    try:
        settings = SatelliteSettings()
    except ValidationError as error:
        for wrong in error.errors():
            print(f"SLIPWAY_{'_'.join(map(str, wrong['loc'])).upper()}: {wrong['msg']}", file=sys.stderr)
        return EXIT_SETTINGS
    set_up_logging(f"satellite-{settings.site}", settings.log_format, settings.log_level)
    UPCASTERS.check()
    try:
        asyncio.run(_serve_until_signalled(settings))
    except (SettingMissing, StateFolderInUse, SiteError) as error:
        print(f"satellite: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except LeaseLost as error:
        print(f"satellite: {error}", file=sys.stderr)
        return EXIT_LEASE_LOST
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
