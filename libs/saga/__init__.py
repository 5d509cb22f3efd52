"""Durable processes: a DSL, a pure core that decides, an engine that keeps it in PostgreSQL."""

from libs.saga.dsl import Data, Item, Saga, Step, Swap, ToSite, saga, step, swap, to_site

__all__ = ["Data", "Item", "Saga", "Step", "Swap", "ToSite", "saga", "step", "swap", "to_site"]
