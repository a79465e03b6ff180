"""
The process tree of `duplex serve`: an embedded store, workers and gateways, each a process of its own.

A process that ends while the service runs is started again, with growing pauses. They are started in the
order store, workers, gateways and stopped in reverse, so that whoever writes last still has something to
write to.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import structlog

from .background import Backoff, background
from .embedded_store import embedded_store
from .errors import StartFailed
from .guard import guarded
from .health import http_status
from .keys import Resolved, variable
from .ports import free_port
from .settings import ServeSettings, Settings, as_environment

log: structlog.stdlib.BoundLogger = structlog.get_logger()

READY_INTERVAL_S = 0.05


class Tree(NamedTuple):
    """A running service."""

    urls: tuple[str, ...]
    """One of each gateway, `http://host:port`."""
    store_url: str


class Child:
    """One process of ours, kept running while `keep` runs. `exits` counts how often it ended by itself."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], settings: ServeSettings
    ) -> None:
        self.name = name
        self.exits = 0
        self.last_status: int | None = None
        self._command = command
        self._environment = environment
        self._settings = settings

    async def keep(self) -> None:
        """Run the process, again and again, until cancelled; then stop it in good order."""
        backoff = Backoff(self._settings.restart_min_s, self._settings.restart_max_s)
        clock = asyncio.get_running_loop().time
        while True:
            started_s = clock()
            self.last_status = await self._run_once()
            self.exits += 1
            pause_s = backoff.next_s(clock() - started_s)
            log.warning("process.exited", process=self.name, status=self.last_status, restart_in_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        log.info("process.started", process=self.name, pid=process.pid)
        try:
            async with guarded(process.pid):
                return await process.wait()
        except asyncio.CancelledError:
            await _stop(process, self._settings.stop_timeout_s)
            log.info("process.stopped", process=self.name, status=process.returncode)
            raise


async def _stop(process: asyncio.subprocess.Process, timeout_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@asynccontextmanager
async def process_tree(resolved: Resolved[Settings]) -> AsyncIterator[Tree]:
    """
    Start the service, wait until a session could be opened at every gateway; stop it when the context ends.

    Raises:
        StartFailed: a process ended before the service was ready.
    """
    settings = resolved.settings
    async with AsyncExitStack() as stack:
        store_url = settings.redis or await stack.enter_async_context(embedded_store(settings.serve))
        environment = as_environment(resolved) | {variable("redis"): store_url}
        children: list[Child] = []

        async def start(name: str, *arguments: str) -> None:
            command = [sys.executable, "-m", "duplex", *arguments]
            children.append(Child(name, command, environment, settings.serve))
            await stack.enter_async_context(background(children[-1].keep(), f"keep {name}"))

        for number in range(1, settings.serve.workers + 1):
            await start(f"worker-{number}", "worker")
        urls = []
        for number in range(1, settings.serve.gateways + 1):
            port = settings.gateway.port + number - 1 if settings.gateway.port else free_port()
            await start(f"gateway-{number}", "gateway", "--port", str(port))
            urls.append(f"http://{_reachable(settings.gateway.host)}:{port}")
        for url in urls:
            await _until_ready(url, children)
        yield Tree(tuple(urls), store_url)


async def _until_ready(url: str, children: list[Child]) -> None:
    while await http_status(f"{url}/ready") != 200:
        for child in children:
            if child.exits:
                raise StartFailed(child.name, f"it ended with status {child.last_status}")
        await asyncio.sleep(READY_INTERVAL_S)


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - compared with, not bound to
