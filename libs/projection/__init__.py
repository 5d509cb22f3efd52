"""Read models of others' events: batch and position in one transaction, rebuilt beside the live one, digested."""

from libs.projection.projection import Projection, digest, upsert_newer
from libs.projection.projector import Projector
from libs.projection.rebuild import Rebuild

__all__ = ["Projection", "Projector", "Rebuild", "digest", "upsert_newer"]
