"""Wires inventory together; the only place that knows which source is behind the port."""

from __future__ import annotations

import yaml

from libs.contracts.inventory import (
    InventoryOperationFinished,
    InventoryOperationProgressed,
    InventoryOperationStarted,
    ProfileFacts,
)
from libs.runtime.service import App, Periodic, Service, main
from services.inventory import (
    bulk,
    dhcp,
    discovery,
    expected,
    invariants,
    leaving,
    periodic,
    placement,
    power_calls,
    rotation,
    sagas_dhcp,
    sagas_discovery,
    store,
    stuck,
)
from services.inventory.adapters.manifest import ManifestFile
from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.source import MachineSource
from services.inventory.calls import CALLS, save_profile
from services.inventory.handlers import COMMANDS, OBSERVATIONS
from services.inventory.projections import PROJECTIONS
from services.inventory.queries import QUERIES
from services.inventory.sagas import SAGAS
from services.inventory.settings import InventorySettings
from services.inventory.source_calls import SOURCE_CALLS


def source_from(settings: InventorySettings) -> MachineSource | None:
    """The source that is configured; None when there is none, and then machines come from nowhere."""
    if settings.netbox_url:
        return RestNetBox(settings.netbox_url, settings.token, settings.netbox_roles, settings.netbox_timeout_seconds)
    if settings.manifest_file is not None:
        return ManifestFile(settings.manifest_file)
    return None


async def start(app: App) -> None:
    """Put in the profiles that are not there yet, and open the source."""
    settings = app.settings
    assert isinstance(settings, InventorySettings)
    app.state["source"] = source_from(settings)
    declared = yaml.safe_load(settings.profiles_file.read_text())["profiles"]
    async with app.transaction(actor="system:profiles") as ctx:
        await store.source_state(ctx.conn)
        for entry in declared:
            facts = ProfileFacts.model_validate({**entry, "version": 1})
            if await store.profile(ctx.conn, facts.name) is None:
                await save_profile(ctx, facts)


def inventory(settings: InventorySettings | None = None) -> Service:
    """The service, ready to be run."""
    settings = settings or InventorySettings()
    return Service(
        name="inventory",
        metadata=store.metadata,
        settings=settings,
        commands={**COMMANDS, **rotation.COMMANDS, **bulk.COMMANDS, **leaving.COMMANDS, **dhcp.COMMANDS},
        observations={**OBSERVATIONS, **discovery.OBSERVATIONS, **invariants.OBSERVATIONS, **placement.OBSERVATIONS},
        sagas=(*SAGAS, *sagas_discovery.SAGAS, *sagas_dhcp.SAGAS),
        operation_events=(InventoryOperationStarted, InventoryOperationProgressed, InventoryOperationFinished),
        projections=PROJECTIONS,
        queries={**QUERIES, **discovery.QUERIES, **dhcp.QUERIES, **invariants.QUERIES, **stuck.QUERIES},
        calls={
            **CALLS,
            **SOURCE_CALLS,
            **rotation.CALLS,
            **bulk.CALLS,
            **leaving.CALLS,
            **discovery.CALLS,
            **expected.CALLS,
            **invariants.CALLS,
            **power_calls.CALLS,
            **stuck.CALLS,
        },
        periodic=(
            Periodic("read_source", settings.netbox_poll_seconds, periodic.read_source),
            Periodic("follow_hints", 0.5, periodic.follow_hints),
            Periodic("follow_wishes", 3.0, periodic.follow_wishes),
            Periodic("write_back", 1.0, periodic.write_back),
            Periodic("end_overdue", 5.0, periodic.end_overdue),
            Periodic("follow_findings", 2.0, periodic.follow_findings),
            Periodic("revalidate_old", 60.0, periodic.revalidate_old),
            *discovery.PERIODIC,
            *dhcp.PERIODIC,
            *invariants.PERIODIC,
            *placement.PERIODIC,
        ),
        on_start=start,
        entities={"source": store.source_table},
    )


service = inventory()

if __name__ == "__main__":
    main(service)
