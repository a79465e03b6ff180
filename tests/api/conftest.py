"""A gateway on a real socket over a store in memory, a waiting client, and a worker that follows a script."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeAlias

import msgspec
import pytest_asyncio
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from api.app import create_app
from api.gateway import Gateway
from api.main import make_server
from api.settings import GatewaySettings
from eventstore.ids import START
from eventstore.memory import MemoryEventStore, MemoryServer
from session_core import events as ev
from session_core.config import ModelProfile
from session_core.fleet import Advertisement, ProcessRole, encode_advertisement
from session_core.fold import Fold
from session_core.journal import Body, Role, Stamp, decode_entry, encode_entry
from session_core.reducer import REDUCER_VERSION
from session_core.state import State

Event: TypeAlias = dict[str, Any]
PATIENCE_S = 10


def fast(**changes: Any) -> GatewaySettings:
    """Settings with short intervals."""
    base: dict[str, Any] = {
        "ack_interval_s": 0.05,
        "reap_s": 0.05,
        "tick_s": 0.05,
        "beat_s": 0.05,
        "beat_ttl_ms": 1_000,
    }
    return GatewaySettings(**{**base, **changes})


class Client:
    """One WebSocket; lives until closed."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, type_: str, **fields: Any) -> None:
        """Send one client event."""
        await self.connection.send(msgspec.json.encode({"type": type_, **fields}).decode())

    async def raw(self, message: str | bytes) -> None:
        """Send one frame as it is."""
        await self.connection.send(message)

    async def append(self, audio: bytes) -> None:
        """Send audio."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(audio).decode())

    async def next(self) -> Event:
        """Wait for the next server event."""
        async with asyncio.timeout(PATIENCE_S):
            event: Event = msgspec.json.decode(await self.connection.recv())
            return event

    async def until(self, type_: str) -> list[Event]:
        """Read up to and including the next event of a type."""
        events = [await self.next()]
        while events[-1]["type"] != type_:
            events.append(await self.next())
        return events

    async def get(self, type_: str) -> Event:
        """Read up to the next event of a type and give that."""
        return (await self.until(type_))[-1]

    async def closed(self) -> int | None:
        """Read on until the server has closed, and give its code."""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionClosed):
                while True:
                    await self.connection.recv()
            await self.connection.wait_closed()
            return self.connection.close_code


class Site:
    """One gateway behind a port."""

    def __init__(
        self, server: uvicorn.Server, port: int, gateway: Gateway, serving: asyncio.Task[None]
    ) -> None:
        self.gateway = gateway
        self.port = port
        self._server = server
        self._serving = serving
        self._clients = AsyncExitStack()

    async def client(self, target: str = "/v1/realtime", **options: Any) -> Client:
        """Connect; closed with the site."""
        url = f"ws://127.0.0.1:{self.port}{target}"
        options = {"max_size": None, "compression": None, **options}
        return Client(await self._clients.enter_async_context(connect(url, **options)))

    async def duplex(self) -> Client:
        """Connect as DuplexClient does."""
        return await self.client("/v1/realtime?duplex=1&autostart=0&model=loopback")

    async def released(self) -> None:
        """Wait until the gateway holds no attachment any more."""
        async with asyncio.timeout(PATIENCE_S):
            async for held in self.gateway.store.watch_holds(self.gateway.gateway_id):
                if not held:
                    return

    async def stop(self) -> None:
        """Shut down as on SIGTERM."""
        self._server.should_exit = True
        await self._serving

    async def close(self) -> None:
        """Close the clients, then shut down."""
        await self._clients.aclose()
        await self.stop()


class Worker:
    """
    A worker that serves whatever it is given and says what a test tells it to; lives as long as the world.
    """

    def __init__(self, store: MemoryEventStore, worker_id: str, profile: ModelProfile, capacity: int) -> None:
        self.store = store
        self.worker_id = worker_id
        self._info = encode_advertisement(
            Advertisement(ProcessRole.WORKER, REDUCER_VERSION, profile, capacity)
        )
        self._appended: dict[tuple[str, int], int] = {}

    async def beat(self, ttl_ms: int = 3_600_000) -> None:
        """Be alive for so long; 0: be dead at once."""
        await self.store.beat(self.worker_id, self._info, ttl_ms)

    async def state(self, session_id: str, wanted: Callable[[State], bool]) -> State:
        """Wait until the fold of a session is as wanted."""
        follower = self.store.follow(session_id, START)
        fold = Fold()
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

    async def asked(self, session_id: str, epoch: int = 0) -> State:
        """Wait until a response is in progress."""
        return await self.state(session_id, lambda state: state.response is not None and state.epoch == epoch)

    async def detached(self, session_id: str) -> State:
        """Wait until the session's first client is gone."""
        return await self.state(
            session_id, lambda state: state.attachment.generation == 1 and not state.attachment.attached
        )

    async def write(self, session_id: str, state: State, *bodies: Body) -> None:
        """Append as the owner of this generation."""
        generation = state.worker.generation
        for body in bodies:
            n = self._appended.get((session_id, generation), 0) + 1
            self._appended[session_id, generation] = n
            await self.store.append(session_id, encode_entry(body, Stamp(Role.WORKER, generation, n)))

    async def speak(
        self, session_id: str, units: int, audio: bytes = bytes(3_840), *, epoch: int = 0
    ) -> State:
        """Answer the response that was asked for in so many units, the last of which ends the turn."""
        state = await self.asked(session_id, epoch)
        await self.write(session_id, state, *self.units(state, [audio] * units))
        return state

    def units(self, state: State, audio: Sequence[bytes], *, end: bool = True) -> list[ev.ModelUnitCompleted]:
        """The next units in which the model speaks."""
        first = state.clock.next_unit
        assert state.response is not None
        return [
            ev.ModelUnitCompleted(
                unit=first + index,
                epoch=state.epoch,
                first_sample=0,
                input_samples=0,
                silence_samples=1_920,
                decision=ev.Decision.TURN_END if end and index == len(audio) - 1 else ev.Decision.SPEAK,
                text="a",
                audio=chunk,
                answers=state.response.response_id,
            )
            for index, chunk in enumerate(audio)
        ]


class World:
    """A store, and what is started on it; all of it ends with the test."""

    def __init__(self, server: MemoryServer, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack

    async def store(self) -> MemoryEventStore:
        """A connection to the store, as another process would have it."""
        return await self._stack.enter_async_context(MemoryEventStore(self.server))

    async def site(self, settings: GatewaySettings | None = None) -> Site:
        """Start a gateway."""
        return await self._stack.enter_async_context(_site(await self.store(), settings or fast()))

    async def worker(
        self, worker_id: str = "worker-1", *, model: str = "loopback", capacity: int = 8, **profile: Any
    ) -> Worker:
        """Start a worker; `profile` is what its model can do besides."""
        worker = Worker(await self.store(), worker_id, ModelProfile(model, **profile), capacity)
        await worker.beat()
        return worker

    def bodies(self, session_id: str) -> list[Body]:
        """What stands in a journal."""
        return [decode_entry(entry.data).body for entry in self.server.journals[session_id].entries]


@asynccontextmanager
async def _site(store: MemoryEventStore, settings: GatewaySettings) -> AsyncIterator[Site]:
    app = create_app(store, settings)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = make_server(app, settings)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve([listening]))
        await until(lambda: server.started)
        site = Site(server, listening.getsockname()[1], app.state.gateway, serving)
        try:
            yield site
        finally:
            await site.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    """A store with nothing on it."""
    async with AsyncExitStack() as stack:
        yield World(MemoryServer(), stack)
