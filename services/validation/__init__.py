"""Validation: is a machine fit? See README.md."""
