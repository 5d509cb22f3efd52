"""Provisioning as a process: `python -m services.provisioning.app`."""

from __future__ import annotations

from libs.contracts.provisioning import (
    ProvisioningOperationFinished,
    ProvisioningOperationProgressed,
    ProvisioningOperationStarted,
)
from libs.runtime.service import App, Service, main
from services.provisioning import catalogue, store
from services.provisioning.calls import create_cluster, delete_cluster
from services.provisioning.handlers import COMMANDS
from services.provisioning.projections import PROJECTIONS
from services.provisioning.queries import QUERIES
from services.provisioning.run_log import OBSERVATIONS, list_run_lines
from services.provisioning.sagas import SAGAS
from services.provisioning.settings import Settings

CALLS = {
    "create_cluster": create_cluster,
    "delete_cluster": delete_cluster,
    "put_image": catalogue.put_image,
    "put_template": catalogue.put_template,
}


async def seed_catalogue(app: App) -> None:
    """On every start, before requests are answered; what exists stays as it is."""
    settings = app.settings
    assert isinstance(settings, Settings)
    async with app.transaction(actor="system:seed") as ctx:
        await catalogue.seed(ctx, settings.image_base_url)


service = Service(
    name="provisioning",
    metadata=store.metadata,
    settings=Settings(),
    commands=COMMANDS,
    observations=OBSERVATIONS,
    sagas=SAGAS,
    operation_events=(
        ProvisioningOperationStarted,
        ProvisioningOperationProgressed,
        ProvisioningOperationFinished,
    ),
    projections=PROJECTIONS,
    queries={**QUERIES, "list_run_lines": list_run_lines},
    calls=CALLS,
    on_start=seed_catalogue,
)

if __name__ == "__main__":
    main(service)
