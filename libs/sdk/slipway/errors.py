"""What can go wrong for a caller of the API. Every error says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class SlipwayError(Exception):
    """Base of this package's errors. `next_step` says what to do; `correlation_id` finds the server's log lines."""

    def __init__(self, message: str, next_step: str = "", correlation_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.correlation_id = correlation_id


class ConfigurationError(SlipwayError):
    """This machine's configuration names no API, or cannot be read."""


class NotSignedIn(SlipwayError):
    """There is no token, or the API or the identity provider refused it."""


class Unavailable(SlipwayError):
    """Nobody answered, or the answer was 5xx, and trying again did not help. Whether it was done is not known."""


class ApiError(SlipwayError):
    """The API refused (4xx). `code` is permanent and what programs should look at.

    `errors` are (field, message) of a 422; `document` is the whole problem (RFC 9457).
    """

    def __init__(self, status: int, document: Mapping[str, Any], correlation_id: str = "") -> None:
        super().__init__(
            str(document.get("detail") or document.get("title") or f"HTTP {status}"),
            str(document.get("next_step") or ""),
            str(document.get("correlation_id") or correlation_id),
        )
        self.status = status
        self.code = str(document.get("code") or "unknown")
        self.document = dict(document)
        self.errors: Sequence[tuple[str, str]] = [
            (str(error.get("field")), str(error.get("message")))
            for error in document.get("errors") or ()
            if isinstance(error, Mapping)
        ]
