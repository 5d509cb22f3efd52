"""Structured logs: pretty for people, JSON for production; the correlation id on every line of a request."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up_logging(
    service: str, fmt: Literal["pretty", "json"] = "json", level: Literal["debug", "info", "warning", "error"] = "info"
) -> None:
    """Configure structlog and the standard library's loggers for this process."""
    renderer: structlog.typing.Processor
    if fmt == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=service)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
