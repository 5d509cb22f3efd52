"""Inventory: what is there, and the only owner of a machine's lifecycle."""
