"""
The whole service as an operator would run it: one Valkey, gateways and workers, each a process of its own.

No process outlives the test that started it: the stack ends them, and guards end them if the test process is
killed. What the processes say goes to files, which `logs` gives for the report of a test that failed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from duplex.background import background
from duplex.guard import guarded
from duplex.ports import free_port
from eventstore.connect import open_store
from eventstore.records import Process
from eventstore.server import Fsync, ValkeyServer
from eventstore.store import EventStore
from session_core.fleet import ProcessRole, decode_advertisement
from session_core.fold import Fold
from session_core.state import State

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0
"""How long anything may take that does not come by itself. Never reached unless something is wrong."""
POLL_S = 0.02
STOP_S = 15.0
LIVENESS_MS = 1_500
"""
A process whose heartbeat is older is suspected: short, so that failover is quick, and long enough for a slow
machine to keep its promise of four heartbeats in that time.
"""

GATEWAY_SETTINGS: Mapping[str, str] = {
    "gateway.beat_s": "0.3",
    "gateway.beat_ttl_ms": str(LIVENESS_MS),
    "gateway.reap_s": "0.2",
    "gateway.tick_s": "0.3",
    "gateway.limits.disconnect_grace_ms": "4000",
}
WORKER_SETTINGS: Mapping[str, str] = {
    "worker.heartbeat_s": "0.3",
    "worker.heartbeat_ttl_ms": str(LIVENESS_MS),
}


class Options(NamedTuple):
    """What a module of tests wants of its stack: as its `STACK`."""

    model: str = "loopback"
    """What the workers serve."""
    fsync: Fsync = "never"
    """What the store keeps if it is killed."""
    settings: Mapping[str, str] = MappingProxyType({})
    """Changes of settings, by key."""


DEFAULT = Options()


class Health(msgspec.Struct):
    """What a gateway's `/health` says."""

    status: str
    gateway: str
    stats: dict[str, int]


class LogLine(msgspec.Struct):
    """Of a line in a log, what tests read."""

    event: str = ""
    worker: str = ""
    level: str = ""


_lines = msgspec.json.Decoder(LogLine)


class Child:
    """
    One process of the service under its name in the stack; may run, end and be started again.

    Attributes:
        name: "gateway-1", "worker-2".
        starts: how often it was started.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.starts = 0
        self._arguments = arguments
        self._log = folder / f"{name}.log"
        self._said_before = 0
        """Length of the log when the newest process was started."""
        self._process: asyncio.subprocess.Process | None = None
        self._guard = AsyncExitStack()

    @property
    def running(self) -> bool:
        """Whether its process has been started and not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> str:
        """What its processes have said so far."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def worker_id(self) -> str | None:
        """The name under which its newest process serves, if it is a worker that has begun to."""
        log = self.log[self._said_before :]
        lines = [_lines.decode(line) for line in log.splitlines() if line.startswith("{")]
        names = [line.worker for line in lines if line.event == "worker.started"]
        return names[-1] if names else None

    async def start(self) -> None:
        """Start a process; it is not ready when this returns."""
        self._said_before = len(self.log)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "duplex", *self._arguments),
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("DUPLEX_")},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        await self._guard.enter_async_context(guarded(self._process.pid))

    async def kill(self) -> None:
        """Kill -9."""
        self._signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """End it in good order; gives its exit code."""
        self._signal(signal.SIGTERM)
        return await self.ended()

    def suspend(self) -> None:
        """Let it stand still, as a machine does that swaps or a debugger."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    async def ended(self) -> int:
        """Wait for its end; gives its exit code."""
        assert self._process is not None
        async with asyncio.timeout(STOP_S):
            code = await self._process.wait()
        await self._guard.aclose()
        return code

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Stack:
    """
    One Valkey, and gateways and workers on it; an async context manager that ends them all.

    Args:
        folder: for data and logs; must exist.
        options: what is not as usual.

    Attributes:
        store: a connection of the test's own to the event store.
    """

    def __init__(
        self, folder: Path, options: Options = DEFAULT, *, gateways: int = 2, workers: int = 2
    ) -> None:
        self.store: EventStore
        self._folder = folder
        self._stack = AsyncExitStack()
        self._settings = options.settings
        self._valkey = ValkeyServer(folder, fsync=options.fsync)
        self._ports = [free_port() for _ in range(gateways)]
        self.gateways = [
            self._child(f"gateway-{number}", GATEWAY_SETTINGS, "gateway", "--port", str(port))
            for number, port in enumerate(self._ports, 1)
        ]
        self.workers = [
            self._child(f"worker-{number}", WORKER_SETTINGS, "worker", "--model", options.model)
            for number in range(1, workers + 1)
        ]

    @property
    def children(self) -> list[Child]:
        """Gateways and workers."""
        return [*self.gateways, *self.workers]

    @property
    def store_url(self) -> str:
        """Where the event store is."""
        return self._valkey.url

    def url(self, gateway: int = 0, scheme: str = "ws") -> str:
        """The address of a gateway, without a path."""
        return f"{scheme}://127.0.0.1:{self._ports[gateway]}"

    def port(self, gateway: int = 0) -> int:
        """Where a gateway listens."""
        return self._ports[gateway]

    async def __aenter__(self) -> Self:
        """Start everything and wait until every process serves."""
        try:
            await self._stack.enter_async_context(self._valkey)
            await self._guard_store()
            self.store = await self._stack.enter_async_context(open_store(self.store_url))
            self._stack.push_async_callback(self._stop)
            for child in self.children:
                await child.start()
            await self.ready()
        except BaseException:
            print(self.logs())
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def ready(self) -> None:
        """
        Wait until every gateway is ready, every worker takes sessions, and workers that died are forgotten.
        """
        for gateway in range(len(self.gateways)):
            await until(partial(self._answers, gateway))
        await until(self._workers_known)

    async def crash_store(self, down_s: float) -> None:
        """Kill -9 the store, and start it again on what is on its disk, so many seconds later."""
        await self._valkey.kill()
        await asyncio.sleep(down_s)
        await self._valkey.start()
        await self._guard_store()

    async def suspend_store(self, out_s: float) -> None:
        """Let the store stand still for so long: it takes connections and answers nothing."""
        assert self._valkey.pid is not None
        os.kill(self._valkey.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(out_s)
        finally:
            os.kill(self._valkey.pid, signal.SIGCONT)

    def logs(self) -> str:
        """The last lines of every process."""
        return "\n".join(
            f"--- {child.name}\n" + "\n".join(child.log.splitlines()[-30:]) for child in self.children
        )

    # --- who is who -----------------------------------------------------------------------------------------

    async def state(self, session_id: str) -> State:
        """Fold a session up to its present end."""
        fold = Fold()
        for entry in await self.store.read(session_id, limit=1_000_000):
            fold, _ = fold.step(entry.id, entry.data)
        return fold.state

    async def state_when(self, session_id: str, wanted: Callable[[State], bool]) -> State:
        """Follow a session until its state is as wanted, at whichever entry that is."""
        fold = Fold()
        follower = self.store.follow(session_id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for entries in follower:
                    for entry in entries:
                        fold, _ = fold.step(entry.id, entry.data)
                        if wanted(fold.state):
                            return fold.state
        finally:
            follower.close()
        raise AssertionError("the journal ended")

    async def owner(self, session_id: str) -> Child:
        """The worker process that has the session now, by the log."""
        worker_id = (await self.state(session_id)).worker.worker
        return next(child for child in self.workers if worker_id is not None and worker_id == child.worker_id)

    async def processes(self, role: ProcessRole) -> list[Process]:
        """What the store knows of processes of this role, dead ones included."""
        return [process for process in await self.store.processes() if _role(process) is role]

    # --- in the end -----------------------------------------------------------------------------------------

    async def health(self, gateway: int = 0) -> Health:
        """Ask a gateway how it is."""
        return msgspec.json.decode(await http_get(f"{self.url(gateway, 'http')}/health"), type=Health)

    async def settled(self) -> None:
        """Wait until every process is at rest: no slot and no attachment held, every gauge at zero."""
        await until(self._holds_nothing)
        for gateway in range(len(self.gateways)):
            await until(partial(self._is_idle, gateway))

    def complaints(self) -> list[str]:
        """Everything in the logs that a service in good order does not say."""
        return [
            f"{child.name}: {line}"
            for child in self.children
            for line in child.log.splitlines()
            if '"level": "error"' in line or "Traceback" in line or "exception" in line.lower()
        ]

    @asynccontextmanager
    async def keeping_workers(self) -> AsyncIterator[None]:
        """Start workers again that end, as a supervisor would, for as long as the context lasts."""

        async def keep() -> None:
            while True:
                for worker in self.workers:
                    if not worker.running:
                        await worker.ended()
                        await worker.start()
                await asyncio.sleep(POLL_S)

        async with background(keep(), "keep workers"):
            yield

    # --- private --------------------------------------------------------------------------------------------

    def _child(self, name: str, settings: Mapping[str, str], *arguments: str) -> Child:
        own = {key: value for key, value in self._settings.items() if key.startswith(arguments[0])}
        flags = [part for key, value in {**settings, **own}.items() for part in ("--set", f"{key}={value}")]
        return Child(name, [*arguments, "--redis", self._valkey.url, *flags], self._folder)

    async def _guard_store(self) -> None:
        assert self._valkey.pid is not None
        await self._stack.enter_async_context(guarded(self._valkey.pid, delay_s=1))

    async def _answers(self, gateway: int) -> bool:
        if not self.gateways[gateway].running or not any(worker.running for worker in self.workers):
            raise AssertionError("a process ended at its start")
        try:
            await http_get(f"{self.url(gateway, 'http')}/ready")
        except OSError:
            return False
        return True

    async def _workers_known(self) -> bool:
        known = {process.id: process.alive for process in await self.processes(ProcessRole.WORKER)}
        return all(known.values()) and set(known) == {w.worker_id for w in self.workers if w.running}

    async def _holds_nothing(self) -> bool:
        return not any([await self.store.held(process.id) for process in await self.store.processes()])

    async def _is_idle(self, gateway: int) -> bool:
        if not self.gateways[gateway].running:
            return True
        stats = (await self.health(gateway)).stats
        return stats["sockets"] == 0 and stats["pending_bytes"] == 0

    async def _stop(self) -> None:
        # Whoever still holds a socket first: sessions need workers to end in good order.
        for group in (self.gateways, self.workers):
            await asyncio.gather(*(_end(child) for child in group))


async def _end(child: Child) -> None:
    if not child.running:
        return
    child.resume()
    try:
        await child.stop()
    except TimeoutError:
        await child.kill()
        raise AssertionError(f"{child.name} did not end\n{child.log[-4000:]}") from None


def _role(process: Process) -> ProcessRole | None:
    advertisement = decode_advertisement(process.info)
    return advertisement.role if advertisement is not None else None


async def until(condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    """Wait for something in other processes."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(POLL_S)


async def http_get(url: str) -> bytes:
    """
    The body of a GET.

    Raises:
        OSError: nobody answers, or the answer is not 200.
    """
    parts = urlsplit(url)
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(
                f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise OSError(head.decode(errors="replace"))
    return body


async def run_duplex(*arguments: str) -> tuple[int, str]:
    """Run a command of the service to its end; gives exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duplex", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()
