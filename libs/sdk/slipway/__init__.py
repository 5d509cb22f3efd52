"""Slipway's public client: a typed async client (`Client`) and the command line `slipway`.

Speaks only the REST API, as any other program would.
"""

from slipway.client import Client
from slipway.doors import Door
from slipway.errors import ApiError, ConfigurationError, NotSignedIn, SlipwayError, Unavailable
from slipway.transport import StaticToken, TokenSource
from slipway.version import __version__

__all__ = [
    "ApiError",
    "Client",
    "ConfigurationError",
    "Door",
    "NotSignedIn",
    "SlipwayError",
    "StaticToken",
    "TokenSource",
    "Unavailable",
    "__version__",
]
