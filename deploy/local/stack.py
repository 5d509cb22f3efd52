"""Bring the whole system up on one machine and take it down again.

Up is idempotent: what runs is left alone, what died (kill -9 included) is started again on its own state. A
failure names the part, the reason and the remedy, and stops whatever this call had started.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from deploy.lab.oidc.provider import OidcLab
from deploy.local import nats_servers, people
from deploy.local.layout import REPOSITORY, SERVICES, SITE, Ports
from deploy.local.nats_users import secret_name
from deploy.local.preparation import database_url, prepare
from deploy.local.site_parts import FLEET_FILE, SOFTWARE, Progress, RealSite, SimulatedSite, SiteParts
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import owner_role, running_role
from libs.runtime.processes import Process, StartError, require_free_disk, require_free_port
from services.audit.signing import make_key

HUB_DISK_BYTES = 300_000_000
SERVICE_READY_SECONDS = 90.0


@dataclass(frozen=True)
class Stack:
    """A local deployment in `var`. `site` chooses the real parts or the simulated site."""

    var: Path
    ports: Ports
    site: Literal["real", "sim"] = "real"
    log_format: Literal["pretty", "json"] = "json"

    @property
    def postgres(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(self.var, self.ports.postgres)

    @property
    def oidc(self) -> OidcLab:
        return OidcLab(self.var, self.ports.oidc, SOFTWARE)

    @property
    def parts(self) -> SiteParts:
        return RealSite(self.var, self.ports) if self.site == "real" else SimulatedSite(self.var, self.ports)

    @property
    def tenant_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.tenant_door}/v1"

    @property
    def operator_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.operator_door}/operator/v1"

    # -- up and down ----------------------------------------------------------------------------

    def install(self, progress: Progress) -> None:
        """Install what the first start needs, below `var`. Raises StartError."""
        self.var.mkdir(parents=True, exist_ok=True)
        require_free_disk(self.var, HUB_DISK_BYTES)
        self._same_site()
        self.oidc.install(progress)
        self.parts.install(progress)

    def up(self, progress: Progress) -> None:
        """Start everything and wait until it is ready. Raises StartError; then nothing new is left running."""
        running_before = {p.name for p in self.processes() if p.pid() is not None}
        self._require_free_ports()
        try:
            self.install(progress)
            self.start_hub(progress)
            self.parts.start(progress)
            self.start_services(progress)
        except BaseException:
            for process in self.processes():
                if process.name not in running_before:
                    process.stop()
            raise

    def start_hub(self, progress: Progress) -> None:
        """PostgreSQL, both NATS servers, sign-in; roles, schemas, streams."""
        progress("starting PostgreSQL, NATS (hub and leaf) and sign-in")
        self.postgres.start()
        nats_servers.hub(self.var, self.ports).start()
        nats_servers.leaf(self.var, self.ports).start()
        self.oidc.start()
        prepare(self.var, self.ports, self.postgres)
        people.bootstrap_file(self.var, self.oidc.issuer)
        people.price_file(self.var)
        make_key(self.signing_key)
        people.sign_in_command_line(self.var, self.ports, self.oidc)

    def start_services(self, progress: Progress) -> None:
        """All services and the satellite, together."""
        progress("starting the services and the satellite")
        processes = list(self.services())
        for process in processes:
            process.launch()
        for process in processes:
            process.wait_ready()

    def down(self) -> None:
        """Stop everything, servers last. Harmless when nothing runs."""
        for process in self.services():
            process.stop()
        self.parts.stop()
        self.oidc.stop()
        for process in self._servers():
            process.stop()

    def processes(self) -> list[Process]:
        """Every process of this deployment, whether it runs or not."""
        found = [*self._servers()]
        for more in (self.oidc.processes, self.parts.processes, self.services):
            try:
                found += list(more())
            except (StartError, OSError, ValueError):
                continue  # Not installed yet: there is no such process.
        return found

    def _require_free_ports(self) -> None:
        """Name a port that somebody else has before minutes are spent on what needs it."""
        for process in self.processes():
            if process.pid() is None:
                for port in process.ports:
                    require_free_port(process.name, port)

    def _servers(self) -> Iterator[Process]:
        yield nats_servers.leaf(self.var, self.ports).process()
        yield nats_servers.hub(self.var, self.ports).process()
        yield self.postgres.process()

    def _same_site(self) -> None:
        """A folder belongs to one kind of site: mixing them would show machines that are not there."""
        marker = self.var / "site-kind"
        kept = marker.read_text().strip() if marker.exists() else self.site
        if kept != self.site:
            raise StartError(
                f"{self.var} holds a deployment with SITE={kept}; use it, or remove the folder to start afresh"
            )
        marker.write_text(self.site)

    # -- services -------------------------------------------------------------------------------

    def services(self) -> Iterator[Process]:
        """The hub's services, the gateway and the satellite."""
        for service in SERVICES:
            yield self.service(service)
        yield self.gateway()
        yield self.satellite()

    @property
    def signing_key(self) -> Path:
        """What audit's checkpoints are signed with."""
        return self.var / "secrets" / "audit-signing.pem"

    def service(self, name: str) -> Process:
        """One service that has a schema of its own."""
        environment = {
            "SLIPWAY_DATABASE_URL": database_url(self.var, self.ports, running_role(name)),
            "SLIPWAY_OWNER_DATABASE_URL": database_url(self.var, self.ports, owner_role(name)),
            **self._bus_environment(name),
        }
        match name:
            case "inventory":
                environment |= self.parts.inventory_environment()
                environment |= {"SLIPWAY_NETBOX_POLL_SECONDS": "3"}
            case "identity":
                environment["SLIPWAY_BOOTSTRAP_GRANTS"] = str((self.var / "config" / "grants.yaml").resolve())
            case "subscription":
                environment |= {
                    "SLIPWAY_SUBSCRIBERS_ISSUER_SEED": nats_servers.subscribers_seed(self.var),
                    "SLIPWAY_WEBHOOK_KEY": nats_servers.secret(self.var, "webhooks"),
                    # Receivers of a local deployment run on this machine.
                    "SLIPWAY_WEBHOOK_PLAIN_HTTP": "true",
                    "SLIPWAY_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
                }
            case "audit":
                environment["SLIPWAY_AUDIT_SIGNING_KEY"] = str(self.signing_key.resolve())
            case "cost":
                environment["SLIPWAY_BOOTSTRAP_PRICES"] = str((self.var / "config" / "prices.yaml").resolve())
        return self._process(name, environment)

    def gateway(self) -> Process:
        return self._process(
            "gateway",
            {
                **self._bus_environment("gateway"),
                "SLIPWAY_TENANT_PORT": str(self.ports.tenant_door),
                "SLIPWAY_OPERATOR_PORT": str(self.ports.operator_door),
                "SLIPWAY_OIDC_ISSUER": self.oidc.issuer,
                "SLIPWAY_OIDC_KEYS_FILE": str((self.var / "gateway" / "keys.json").resolve()),
            },
            (self.ports.tenant_door, self.ports.operator_door),
        )

    def satellite(self) -> Process:
        state = self.var / "satellite"
        return self._process(
            "satellite",
            {
                "SLIPWAY_SITE": SITE,
                "SLIPWAY_LEAF_NATS_URL": f"nats://127.0.0.1:{self.ports.leaf}",
                "SLIPWAY_LEAF_NATS_USER": "satellite",
                "SLIPWAY_LEAF_NATS_PASSWORD": nats_servers.secret(self.var, f"nats-satellite-{SITE}"),
                "SLIPWAY_STATE_DIR": str(state.resolve()),
                "SLIPWAY_FLEET_FILE": str(FLEET_FILE),
                **self.parts.satellite_environment(state),
            },
        )

    def _bus_environment(self, user: str) -> dict[str, str]:
        return {
            "SLIPWAY_NATS_URL": f"nats://127.0.0.1:{self.ports.hub}",
            "SLIPWAY_NATS_USER": user,
            "SLIPWAY_NATS_PASSWORD": nats_servers.secret(self.var, secret_name(user)),
        }

    def _process(self, name: str, environment: dict[str, str], ports: tuple[int, ...] = ()) -> Process:
        metrics = self.ports.metrics(name)
        return Process(
            name=name,
            argv=[sys.executable, "-m", f"services.{name}.app"],
            var=self.var,
            cwd=REPOSITORY,
            env={
                "SLIPWAY_METRICS_PORT": str(metrics),
                "SLIPWAY_LOG_FORMAT": self.log_format,
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            ports=(metrics, *ports),
            ready=is_ready(metrics),
            ready_within_seconds=SERVICE_READY_SECONDS,
        )


def is_ready(port: int) -> Callable[[], bool]:
    """Whether the process behind the metrics port says that it is ready."""

    def probe() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    return probe


def seconds(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
