"""Transition tables for lifecycles: data that can be read aloud, checked at import and drawn."""

from libs.fsm.table import IllegalTransition, Limit, Repeat, Table, Transition

__all__ = ["IllegalTransition", "Limit", "Repeat", "Table", "Transition"]
