"""Running one gateway as a process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
import uvloop

from api.app import create_app
from api.settings import GatewaySettings
from eventstore.connect import open_store


def run_gateway(settings: GatewaySettings) -> None:
    """
    Serve until SIGTERM or SIGINT; then close sockets with 1012 and detach clients, so that they resume.

    Raises:
        StoreUnavailable: the store does not answer at the start.
    """
    configure_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings))


async def serve_gateway(settings: GatewaySettings) -> None:
    """Open the store and serve on it until SIGTERM or SIGINT, inside a running loop."""
    async with open_store(settings.store_url, durability=settings.durability) as store:
        server = make_server(create_app(store, settings), settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.handle_exit, number, None)
        try:
            await server.serve()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """
    uvicorn's server, which leaves signals to its caller.

    By itself it raises a caught signal again at its end: the process would die of it before the store is
    closed, and a graceful stop would look like a kill.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def make_server(app: object, settings: GatewaySettings) -> uvicorn.Server:
    """Give the HTTP server with the settings that the WebSocket contract needs."""
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            host=settings.host,
            port=settings.port,
            ws="websockets-sansio",
            ws_max_size=settings.max_frame_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=settings.ws_ping_interval_s,
            ws_ping_timeout=settings.ws_ping_timeout_s,
            timeout_graceful_shutdown=max(1, round(settings.detach_timeout_s)),
            log_config=None,
            log_level="warning",  # Its "accepted" lines would show the tokens of resuming URLs.
            access_log=False,
            server_header=False,
        )
    )


def configure_logging() -> None:
    """Log to stderr: one JSON object a line, or key=value for a person at a terminal."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
