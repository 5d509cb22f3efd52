"""Serve the emulated BMCs: `python serve.py --lab FOLDER --port PORT`, run by Ironic's interpreter.

sushy-tools' application keeps the protocol (routes, actions, virtual media, registries); this file puts the
fleet's facts in, adds PCIe devices and drives, and lets faults be injected while it runs. It reads
`bmc/systems.json`, `bmc/credentials.json` and `ironic/faults/` below FOLDER, and keeps `bmc/state` and `bmc/power`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import documents
import flask
from accounts import Accounts, add_accounts
from doors import Doors
from kept import KeptDict
from power import LabSystems
from sushy_tools import error
from sushy_tools.emulator import main as emulator
from sushy_tools.emulator import memoize
from sushy_tools.emulator.resources.systems import fakedriver

_SYSTEM = "/redfish/v1/Systems/<identity>"


@dataclass(frozen=True)
class Lab:
    """Where the BMCs live: `folder` is the lab's `bmc`, `facts` are by system uuid."""

    folder: Path
    fault_folder: Path
    facts: dict[str, documents.Facts]

    def faults(self, identity: str) -> documents.Faults:
        """The injected faults of a system, {} when there are none."""
        facts = self.facts.get(identity)
        if facts is None:
            return {}
        try:
            return dict(json.loads((self.fault_folder / f"{facts['name']}.json").read_text()))
        except FileNotFoundError:
            return {}


def read_lab(folder: Path) -> Lab:
    """The lab below `folder`; raises OSError or ValueError when its files are missing or broken."""
    systems = json.loads((folder / "bmc" / "systems.json").read_text())
    (folder / "bmc" / "power").mkdir(parents=True, exist_ok=True)
    return Lab(folder / "bmc", folder / "ironic" / "faults", {system["uuid"]: system for system in systems})


def configure(app: flask.Flask, lab: Lab) -> None:
    """Give sushy-tools' application the lab's systems, storage and volumes."""
    systems = lab.facts.values()
    app.config.update(
        SUSHY_EMULATOR_FAKE_DRIVER=True,
        SUSHY_EMULATOR_STATE_DIR=str(lab.folder / "state"),
        SUSHY_EMULATOR_FAKE_SYSTEMS=[
            {
                "uuid": facts["uuid"],
                "name": facts["name"],
                "power_state": "Off",
                "nics": [{"mac": mac, "ip": ""} for mac in facts["nic_macs"]],
            }
            for facts in systems
        ],
        SUSHY_EMULATOR_STORAGE={
            facts["uuid"]: [{"Id": documents.STORAGE_ID, "Name": "NVMe drives"}] for facts in systems
        },
        SUSHY_EMULATOR_VOLUMES={
            (facts["uuid"], documents.STORAGE_ID): [
                {
                    "Id": drive["id"],
                    "Name": drive["id"],
                    "VolumeType": "RawDevice",
                    "RAIDType": "None",
                    "CapacityBytes": drive["capacity_bytes"],
                }
                for drive in facts["drives"]
            ]
            for facts in systems
        },
    )
    memoize.PersistentDict = KeptDict
    LabSystems.lab = lab
    fakedriver.FakeDriver = LabSystems


def _one(found: dict[str, documents.Document], name: str) -> documents.Document:
    try:
        return found[name]
    except KeyError:
        raise error.NotFound(f"{name} was not found") from None


def add_documents(app: flask.Flask, lab: Lab) -> None:
    """Answer for processors, PCIe devices, storage and drives from the facts."""

    def of(identity: str) -> tuple[documents.Facts, documents.Faults]:
        facts = lab.facts.get(identity)
        if facts is None:
            raise error.NotFound(f"System {identity} was not found")
        return facts, lab.faults(identity)

    def function(identity: str, device: str) -> documents.Facts:
        facts, faults = of(identity)
        _one(documents.pcie_devices(facts, faults), device)
        return facts

    replaced: dict[str, Callable[..., documents.Document]] = {
        "processors_collection": lambda identity: documents.processor_collection(*of(identity)),
        "processor": lambda identity, processor_id: _one(documents.processors(*of(identity)), processor_id),
        "storage": lambda identity, storage_id: _one(
            {documents.STORAGE_ID: documents.storage(of(identity)[0])}, storage_id
        ),
        "drive_resource": lambda identity, stg_id, drv_id: _one(documents.drives(of(identity)[0]), drv_id),
    }
    app.view_functions.update(replaced)
    added: dict[str, Callable[..., documents.Document]] = {
        "/PCIeDevices": lambda identity: documents.pcie_collection(*of(identity)),
        "/PCIeDevices/<device>": lambda identity, device: _one(documents.pcie_devices(*of(identity)), device),
        "/PCIeDevices/<device>/PCIeFunctions": lambda identity, device: documents.pcie_function_collection(
            function(identity, device), device
        ),
        "/PCIeDevices/<device>/PCIeFunctions/0": lambda identity, device: documents.pcie_function(
            function(identity, device), device
        ),
    }
    for path, view in added.items():
        app.add_url_rule(_SYSTEM + path, endpoint=f"lab{path}", view_func=view)


def add_hooks(app: flask.Flask, lab: Lab) -> None:
    """Put facts into the documents sushy-tools renders, and make a BMC fail when its fault file says so."""

    def identity() -> str:
        return str((flask.request.view_args or {}).get("identity", ""))

    @app.before_request
    def fail_when_told() -> Any:
        status = lab.faults(identity()).get("bmc", {}).get("status")
        if status is None:
            return None
        return flask.jsonify(error={"code": "Base.1.0.GeneralError", "message": "injected fault"}), int(status)

    @app.after_request
    def enrich(response: flask.Response) -> flask.Response:
        facts = lab.facts.get(identity())
        if facts is None or flask.request.method != "GET" or response.status_code != 200:
            return response
        if flask.request.endpoint == "system_resource":
            document = documents.enrich_system(json.loads(response.get_data()), facts, lab.faults(identity()))
        elif flask.request.endpoint == "manager_resource":
            document = documents.enrich_manager(json.loads(response.get_data()), facts)
        else:
            return response
        response.set_data(json.dumps(document))
        return response


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, required=True, help="the lab's folder (var/lab)")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    arguments = parser.parse_args()
    lab = read_lab(arguments.lab)
    accounts = Accounts(lab.folder / "credentials.json")
    app = emulator.app
    # A line per request would fill the disk: Ironic and the satellite poll every few seconds.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    configure(app, lab)
    add_documents(app, lab)
    add_accounts(app, accounts, lab.faults)
    add_hooks(app, lab)
    app.wsgi_app = Doors(app.wsgi_app, accounts)
    _ = app.systems  # Made now, so that the power rails are in step before the first request.
    app.run(host="127.0.0.1", port=arguments.port, threaded=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
