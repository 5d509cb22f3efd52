"""How a command ends: exit codes that programs can rely on, and errors that people can act on."""

from __future__ import annotations

from enum import IntEnum

from rich.console import Console
from rich.text import Text

from slipway.errors import ApiError, ConfigurationError, NotSignedIn, SlipwayError, Unavailable


class Exit(IntEnum):
    OK = 0
    FAILED = 1  # The operation that was watched ended FAILED or CANCELLED.
    USAGE = 2  # The command line or the configuration is wrong.
    REFUSED = 3  # The API refused (4xx).
    NOT_FOUND = 4
    UNAVAILABLE = 5  # Nobody answered, or 5xx.
    NOT_SIGNED_IN = 6
    INTERRUPTED = 130


EXIT_CODES_HELP = """\
Exit codes: 0 done · 1 the operation ended FAILED or CANCELLED · 2 wrong usage or configuration · 3 refused ·
4 not found · 5 unavailable · 6 not signed in · 130 interrupted"""


def code_of(error: SlipwayError) -> Exit:
    """The exit code for an error."""
    match error:
        case ApiError(status=404):
            return Exit.NOT_FOUND
        case ApiError():
            return Exit.REFUSED
        case NotSignedIn():
            return Exit.NOT_SIGNED_IN
        case Unavailable():
            return Exit.UNAVAILABLE
        case ConfigurationError():
            return Exit.USAGE
        case _:
            return Exit.USAGE


def show_error(error: SlipwayError, console: Console) -> None:
    """What happened, to what, what to do next, and the id to name when asking for help."""
    console.print(Text.assemble(("Error: ", "bold red"), error.message), soft_wrap=True)
    if isinstance(error, ApiError):
        for field, message in error.errors:
            console.print(Text.assemble("  ", (field, "bold"), f" {message}"), soft_wrap=True)
    if error.next_step:
        console.print(Text.assemble(("Next:  ", "bold"), error.next_step), soft_wrap=True)
    if isinstance(error, ApiError):
        console.print(Text(f"Code:  {error.code}", "dim"), soft_wrap=True)
    if error.correlation_id:
        console.print(Text(f"Correlation id: {error.correlation_id}", "dim"), soft_wrap=True)
