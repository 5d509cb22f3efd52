"""Audit: every event, kept in order, for good. See README.md."""
