"""Transition tables for lifecycles: data that can be read aloud, checked at import and drawn."""

from libs.fsm.table import IllegalTransition, Limit, Table, Transition

__all__ = ["IllegalTransition", "Limit", "Table", "Transition"]
