"""Logging of every process: one event a line on stderr, JSON for machines and `key=value` on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str) -> None:
    """Set structlog up, once, at the process's start."""
    renderer: structlog.typing.Processor
    if sys.stderr.isatty():
        renderer = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
