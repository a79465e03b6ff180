"""`duplex gateway`: one gateway in this process."""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from api.main import serve_gateway
from eventstore import StoreUnavailable

from . import heap, logs
from .errors import StartFailed
from .settings import STORE_FLAGS, add_flags, from_arguments

FLAGS = {**STORE_FLAGS, "--host": "gateway.host", "--port": "gateway.port"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    add_flags(parser, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    settings = from_arguments(arguments).settings
    logs.configure(settings.log_level)
    heap.settle()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve_gateway(settings.for_gateway()))
        except StoreUnavailable as error:
            raise StartFailed("the gateway", str(error)) from error
    return 0
