"""A real OpenStack Placement on loopback, its tables in a PostgreSQL that somebody else runs."""

from deploy.lab.placement.lab import TOKEN, PlacementLab

__all__ = ["TOKEN", "PlacementLab"]
