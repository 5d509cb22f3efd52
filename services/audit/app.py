"""Wires audit together. Run: python -m services.audit.app"""

from __future__ import annotations

from libs.runtime.service import Service, main
from services.audit import archive, calls, past, proofs, queries, store
from services.audit.periodic import periodic
from services.audit.projections import PROJECTIONS
from services.audit.settings import Settings
from services.audit.signing import read_signer


def make_service(settings: Settings) -> Service:
    """The service with these settings. Raises NoSigningKey when a key is configured and is none."""
    signer = read_signer(settings.audit_signing_key) if settings.audit_signing_key is not None else None
    return Service(
        name="audit",
        metadata=store.metadata,
        projections=PROJECTIONS,
        queries={**queries.QUERIES, **proofs.QUERIES, **past.QUERIES, **calls.QUERIES, **archive.QUERIES},
        calls=calls.calls(lambda: signer),
        periodic=periodic(settings, lambda: signer),
        settings=settings,
    )


service = make_service(Settings())

if __name__ == "__main__":
    main(service)
