"""What stands behind a site: the real systems of deploy/lab, or the simulated site's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.bmc import BmcLab
from deploy.lab.hosts import HostsLab
from deploy.lab.ironic import IronicLab
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from deploy.local.layout import REPOSITORY, Ports
from libs.runtime.processes import Process
from services.satellite.adapters.secret_file import FileSecrets, create_key

Progress = Callable[[str], None]
IRONIC_DATABASE = "ironic"
SOFTWARE = REPOSITORY / "var"  # Installed once, whatever deployments there are.
FLEET_FILE = REPOSITORY / "deploy" / "lab" / "fleet.yaml"


def write_private(path: Path, content: object) -> Path:
    """JSON readable by its owner only, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content, indent=2))
    draft.replace(path)
    return path


@dataclass(frozen=True)
class RealSite:
    """NetBox, Ironic, Redfish BMCs and SSH hosts, all real programs on loopback."""

    var: Path
    ports: Ports

    @property
    def netbox(self) -> NetBoxLab:
        ports = NetBoxPorts(self.ports.netbox, self.ports.netbox_postgres, self.ports.netbox_redis)
        return NetBoxLab(self.var.resolve(), ports, software=SOFTWARE)

    @property
    def bmc(self) -> BmcLab:
        return BmcLab(self.var, self.ports.bmc, SOFTWARE)

    @property
    def hosts(self) -> HostsLab:
        return HostsLab(self.var, self.ports.first_host)

    def ironic(self) -> IronicLab:
        """Ironic, with a database of its own on NetBox's PostgreSQL."""
        facts = self.netbox.postgres.facts
        url = f"postgresql://{facts.user}:{facts.password}@{facts.host}:{facts.port}/{IRONIC_DATABASE}"
        return IronicLab(self.var, self.ports.ironic, url, SOFTWARE)

    def install(self, progress: Progress) -> None:
        """Everything that needs a package index, once."""
        self.netbox.install()
        self.bmc.install(progress)

    def start(self, progress: Progress) -> None:
        """Start all parts; NetBox and Ironic together, for both take seconds of one core."""
        progress("starting NetBox's PostgreSQL")
        self.netbox.start_postgres()
        with ThreadPoolExecutor(max_workers=2) as pool:
            both = [pool.submit(self._start_netbox, progress), pool.submit(self._start_ironic, progress)]
            for part in both:
                part.result()

    def _start_netbox(self, progress: Progress) -> None:
        self.netbox.start()
        progress("NetBox answers; filling in the racks")
        self.netbox.seed()

    def _start_ironic(self, progress: Progress) -> None:
        self.bmc.install(progress)
        self.bmc.start()
        self.hosts.install(progress)
        self.netbox.postgres.create_database(IRONIC_DATABASE)
        ironic = self.ironic()
        ironic.install(progress)
        ironic.start()
        self.hosts.start()
        progress("Ironic, BMCs and hosts answer")

    def stop(self) -> None:
        """Stop all parts, the databases last."""
        self.hosts.stop()
        self.ironic().stop()
        self.bmc.stop()
        self.netbox.stop()

    def processes(self) -> list[Process]:
        labs = (self.hosts, self.ironic(), self.bmc, self.netbox)
        return [process for lab in labs for process in lab.processes()]

    def inventory_environment(self) -> dict[str, str]:
        token = self.var / "secrets" / "netbox.token"
        token.touch(mode=0o600)
        token.write_text(self.netbox.token)
        return {"SLIPWAY_NETBOX_URL": self.netbox.url, "SLIPWAY_NETBOX_TOKEN_FILE": str(token.resolve())}

    def satellite_environment(self, state: Path) -> dict[str, str]:
        """Files that stand for the site's own configuration, and the BMC passwords in the site's own store."""
        self._fill_secret_store(state)
        hosts = {
            name: {"address": address.host, "ssh_port": address.port}
            for name, address in self.hosts.addresses().items()
        }
        return {
            "SLIPWAY_SITE_ADAPTERS": "real",
            "SLIPWAY_IRONIC_URL": f"http://127.0.0.1:{self.ports.ironic}",
            "SLIPWAY_IRONIC_CREDENTIALS_FILE": str(self.ironic().credentials_file.resolve()),
            "SLIPWAY_IRONIC_DRIVER": "sim-redfish",
            "SLIPWAY_ENDPOINTS_FILE": str(self.bmc.endpoints_file.resolve()),
            "SLIPWAY_HOSTS_FILE": str(write_private(state / "hosts.json", hosts).resolve()),
            "SLIPWAY_SECRETS_DIR": str((state / "secrets").resolve()),
            "SLIPWAY_SECRETS_KEY_FILE": str((state / "secret-store.key").resolve()),
        }

    def _fill_secret_store(self, state: Path) -> None:
        key = state / "secret-store.key"
        if not key.exists():
            create_key(key)
        store = FileSecrets(state / "secrets", key)
        for machine, credentials in self.bmc.credentials.items():
            store.put(f"bmc/{machine}", json.dumps(credentials).encode())

    def faults_folder(self) -> Path:
        return self.var / "lab" / "ironic" / "faults"


@dataclass(frozen=True)
class SimulatedSite:
    """The same 13 machines behind the simulated adapters: no NetBox, no Ironic."""

    var: Path
    ports: Ports

    def install(self, progress: Progress) -> None:
        """Nothing to install."""

    def start(self, progress: Progress) -> None:
        """Nothing to start: the adapters live in the satellite."""

    def stop(self) -> None:
        """Nothing to stop."""

    def processes(self) -> list[Process]:
        return []

    @property
    def faults_file(self) -> Path:
        return self.var / "site" / "faults.json"

    def inventory_environment(self) -> dict[str, str]:
        return {"SLIPWAY_MANIFEST_FILE": str(FLEET_FILE)}

    def satellite_environment(self, state: Path) -> dict[str, str]:
        if not self.faults_file.exists():
            write_private(self.faults_file, {})
        return {
            "SLIPWAY_SITE_ADAPTERS": "simulated",
            "SLIPWAY_FLEET_FILE": str(FLEET_FILE),
            "SLIPWAY_FAULTS_FILE": str(self.faults_file.resolve()),
        }


SiteParts = RealSite | SimulatedSite
