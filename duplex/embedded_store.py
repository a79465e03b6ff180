"""The event store that comes with the service: a Valkey server of its own, kept running and guarded."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from eventstore import StoreUnavailable, ValkeyServer

from .background import Backoff, background
from .errors import StartFailed
from .guard import guarded
from .ports import is_free
from .settings import ServeSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger()

OUTLIVES_S = 3.0
"""How long the store outlives a killed `serve`: the others write their last entries."""


@asynccontextmanager
async def embedded_store(settings: ServeSettings) -> AsyncIterator[str]:
    """
    Run a store for as long as the context lasts; gives its URL.

    Raises:
        StartFailed: it does not start.
    """
    async with AsyncExitStack() as stack:
        if settings.data_dir:
            folder = Path(settings.data_dir)
            folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - once, before anything runs
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duplex-")))
        # A server that finds its port taken ends, but the one that has the port answers for it.
        if settings.store_port and not is_free(settings.store_port):
            raise StartFailed("store", f"port {settings.store_port} is in use (serve.store_port)")
        server = ValkeyServer(folder, port=settings.store_port or None, fsync=settings.fsync)
        stack.push_async_callback(server.stop)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await stack.enter_async_context(background(_keep(server, settings, first), "keep store"))
        try:
            await first
        except (StoreUnavailable, FileNotFoundError) as error:
            raise StartFailed("store", str(error)) from error
        yield server.url


async def _keep(server: ValkeyServer, settings: ServeSettings, first: asyncio.Future[None]) -> None:
    """
    Start the server, again and again.

    `first` is told how the first start went; if that failed there is no second.
    """
    backoff = Backoff(settings.restart_min_s, settings.restart_max_s)
    clock = asyncio.get_running_loop().time
    while True:
        started_s = clock()
        try:
            async with _started(server) as pid:
                log.info("process.started", process="store", pid=pid, url=server.url)
                if not first.done():
                    first.set_result(None)
                await _until_gone(pid)
        except (StoreUnavailable, FileNotFoundError) as error:
            if not first.done():
                first.set_exception(error)
                return
            log.error("process.start_failed", process="store", reason=str(error))
        pause_s = backoff.next_s(clock() - started_s)
        log.warning("process.exited", process="store", restart_in_s=pause_s)
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def _started(server: ValkeyServer) -> AsyncIterator[int]:
    """
    Start the server, and guard it from its first moment on: it may load its data for long before it answers.
    """
    before = server.pid
    async with AsyncExitStack() as stack:
        start = asyncio.ensure_future(server.start())
        stack.push_async_callback(_cancelled, start)
        while server.pid == before and not start.done():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
        if server.pid is not None:
            await stack.enter_async_context(guarded(server.pid, delay_s=OUTLIVES_S))
        await start
        assert server.pid is not None
        yield server.pid


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _until_gone(pid: int) -> None:
    # The server object reaps its process; after that, and only then, the id names nothing.
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.2)
