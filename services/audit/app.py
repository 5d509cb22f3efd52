"""Wires audit together. Run: python -m services.audit.app"""

from __future__ import annotations

from libs.runtime.service import Service, main
from services.audit import store
from services.audit.projections import PROJECTIONS
from services.audit.queries import QUERIES
from services.audit.settings import Settings

service = Service(
    name="audit",
    metadata=store.metadata,
    projections=PROJECTIONS,
    queries=QUERIES,
    settings=Settings(),
)

if __name__ == "__main__":
    main(service)
