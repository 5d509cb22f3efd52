"""Tools for those who work on Slipway; nothing here is needed to run it."""
