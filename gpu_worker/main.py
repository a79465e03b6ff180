"""A worker process: settings in, exit at SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal

import uvloop

from eventstore.connect import open_store
from gpu_worker.registry import create_plugin
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import Worker


def run_worker(settings: WorkerSettings) -> None:
    """
    Serve until a signal; the first one makes the worker hand its sessions over.

    Raises:
        UnknownModel, ModelError: before anything is claimed.
        StoreUnavailable: the store does not answer at the start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


async def serve(settings: WorkerSettings) -> None:
    """The same inside a running event loop, which gets the signal handlers."""
    plugin = create_plugin(settings.model, settings.model_options)
    async with open_store(settings.store_url, durability=settings.durability) as store:
        worker = Worker(store, plugin, settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        try:
            await worker.run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
