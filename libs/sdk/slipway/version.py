"""The version of this package, from its own metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("slipway-fleet")
except PackageNotFoundError:  # Imported from a source tree that was never installed.
    __version__ = "0+unknown"
