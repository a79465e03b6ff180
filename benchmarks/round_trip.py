"""
The whole round trip under load: socket, append, worker, append, socket; and the bare echo beside it.

Every load gets a service of its own (Valkey with `appendfsync everysec`, one worker, one gateway), then the
same load goes to the echo. All of it shares one machine with the load's own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.load_client import Load
from duplex.guard import guarded
from duplex.health import http_status
from duplex.ports import free_port
from eventstore import ValkeyServer

PLUGIN = "benchmarks.echo_plugin:EchoPlugin"
IDLE_WARM_UP_SESSIONS = 8
START_TIMEOUT_S = 20
_POLL_S = 0.05


class Service(NamedTuple):
    """A running server to load."""

    port: int
    pids: Mapping[str, int]


class Trip(NamedTuple):
    """One load on the service, and the same on the echo."""

    service: Load
    echo: Load

    @property
    def ratio(self) -> float:
        """Gateway CPU per frame over the echo's."""
        return self.service.cpu_us["gateway"] / self.echo.cpu_us["echo"]


@asynccontextmanager
async def service(sessions: int) -> AsyncIterator[Service]:
    """A whole service with room for so many sessions."""
    capacity = str(sessions + IDLE_WARM_UP_SESSIONS)
    port = free_port()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="duplex-bench-"))
        valkey = await stack.enter_async_context(ValkeyServer(Path(folder)))
        assert valkey.pid is not None
        await stack.enter_async_context(guarded(valkey.pid))
        common = ("--redis", valkey.url, "--set", "log_level=warning")
        worker = _process("duplex", "worker", *common, "--model", PLUGIN, "--capacity", capacity)
        gateway = _process("duplex", "gateway", *common, "--port", str(port))
        pids = {
            "gateway": await stack.enter_async_context(gateway),
            "worker": await stack.enter_async_context(worker),
            "valkey": valkey.pid,
        }
        await _until_ok(f"http://127.0.0.1:{port}/ready")
        yield Service(port, pids)


@asynccontextmanager
async def echo() -> AsyncIterator[Service]:
    """The bare echo."""
    port = free_port()
    async with _process("benchmarks.echo_server", str(port)) as pid:
        await _until_ok(f"http://127.0.0.1:{port}/health")
        yield Service(port, {"echo": pid})


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments)
    try:
        async with guarded(process.pid):
            yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until_ok(url: str) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while await http_status(url) != 200:  # noqa: ASYNC110 - a process has no event for it
            await asyncio.sleep(_POLL_S)


async def load(target: Service, sessions: int, seconds: float) -> Load:
    """
    Run one load from a process of its own.

    Raises:
        RuntimeError: the load broke off.
    """
    command = [
        *(sys.executable, "-m", "benchmarks.load_client"),
        *("--port", str(target.port), "--sessions", str(sessions), "--seconds", str(seconds)),
        *("--pids", ",".join(f"{name}={pid}" for name, pid in target.pids.items())),
        *(["--echo"] if "echo" in target.pids else []),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the load of {sessions} sessions ended with status {process.returncode}")
    return msgspec.json.decode(output, type=Load)


async def trip(sessions: int, seconds: float) -> Trip:
    """Load a service, then the echo."""
    async with service(sessions) as target:
        served = await load(target, sessions, seconds)
    async with echo() as target:
        echoed = await load(target, sessions, seconds)
    return Trip(served, echoed)


async def session_bytes(sessions: int) -> dict[str, float]:
    """Memory of one session that is open and idle, by process. The first few sessions are not counted."""
    async with service(sessions) as target:
        await load(target, IDLE_WARM_UP_SESSIONS, 0)
        idle = await load(target, sessions, 0)
    return {
        name: (idle.resident_open_bytes[name] - before) / sessions
        for name, before in idle.resident_before_bytes.items()
    }
