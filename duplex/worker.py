"""`duplex worker`: one worker in this process."""

from __future__ import annotations

import argparse

from eventstore import StoreUnavailable
from gpu_worker.main import run_worker

from . import heap, logs
from .errors import StartFailed
from .settings import STORE_FLAGS, add_flags, from_arguments

FLAGS = {**STORE_FLAGS, "--model": "worker.model", "--capacity": "worker.capacity"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    add_flags(parser, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    settings = from_arguments(arguments).settings
    logs.configure(settings.log_level)
    heap.settle()
    try:
        run_worker(settings.for_worker())
    except StoreUnavailable as error:
        raise StartFailed("the worker", str(error)) from error
    return 0
