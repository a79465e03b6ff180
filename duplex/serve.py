"""`duplex serve`: the whole service as one process tree, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from . import logs
from .keys import Resolved
from .process_tree import process_tree
from .settings import STORE_FLAGS, Settings, add_flags, from_arguments

FLAGS = {
    **STORE_FLAGS,
    "--host": "gateway.host",
    "--port": "gateway.port",
    "--model": "worker.model",
    "--gateways": "serve.gateways",
    "--workers": "serve.workers",
    "--data-dir": "serve.data_dir",
    "--store-port": "serve.store_port",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    add_flags(parser, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until asked to stop."""
    resolved = from_arguments(arguments)
    logs.configure(resolved.settings.log_level)
    asyncio.run(until_signalled(_serve(resolved)))
    return 0


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; SIGINT or SIGTERM cancels it, and this returns when it has cleaned up."""
    me, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert me is not None
    signalled = False

    def stop() -> None:
        nonlocal signalled
        if not signalled:  # a second signal must not cut the cleaning up short
            signalled = True
            me.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await work
    except asyncio.CancelledError:
        if not signalled:
            raise


async def _serve(resolved: Resolved[Settings]) -> None:
    async with process_tree(resolved) as tree:
        for url in tree.urls:
            print(f"ready: {url}", flush=True)
        print(f"journals: {tree.store_url}", flush=True)
        await asyncio.Event().wait()
