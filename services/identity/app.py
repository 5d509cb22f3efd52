"""Wires identity together. Run: python -m services.identity.app"""

from __future__ import annotations

from libs.runtime.service import App, Service, main
from services.identity import store
from services.identity.bootstrap import apply_bootstrap, read_bootstrap
from services.identity.handlers import CALLS
from services.identity.queries import QUERIES
from services.identity.settings import Settings


async def apply_bootstrap_file(app: App) -> None:
    """On every start, before requests are answered."""
    settings = app.settings
    assert isinstance(settings, Settings)
    if settings.bootstrap_grants is None:
        return
    content = read_bootstrap(settings.bootstrap_grants)
    async with app.transaction(actor="system:bootstrap") as ctx:
        await apply_bootstrap(ctx, content)


service = Service(
    name="identity",
    metadata=store.metadata,
    queries=QUERIES,
    calls=CALLS,
    on_start=apply_bootstrap_file,
    entities={"grant": store.role_grant},
    settings=Settings(),
)

if __name__ == "__main__":
    main(service)
