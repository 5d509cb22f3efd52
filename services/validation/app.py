"""Wires validation together. Run: python -m services.validation.app"""

from __future__ import annotations

from libs.contracts.validation import (
    ValidationOperationFinished,
    ValidationOperationProgressed,
    ValidationOperationStarted,
)
from libs.runtime.service import Service, main
from services.validation import store
from services.validation.handlers import COMMANDS
from services.validation.queries import QUERIES
from services.validation.sagas import SAGAS
from services.validation.settings import Settings

service = Service(
    name="validation",
    metadata=store.metadata,
    commands=COMMANDS,
    sagas=SAGAS,
    operation_events=(ValidationOperationStarted, ValidationOperationProgressed, ValidationOperationFinished),
    queries=QUERIES,
    settings=Settings(),
)

if __name__ == "__main__":
    main(service)
