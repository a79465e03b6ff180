"""
A scripted client for the worker's tests: appends what a gateway would append, and folds what comes of it.

Its clock is the store's: it moves on only when audio is sent, so every run is the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import numpy as np

from eventstore.ids import new_session_id
from eventstore.memory import MemoryEventStore, MemoryServer
from eventstore.options import StoreOptions
from gpu_worker.audio import Pcm, decode, encode
from gpu_worker.plugin import ModelPlugin
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import Worker
from session_core import events as ev
from session_core import wire
from session_core.commands import AnyCommand, AppendAudio, Heartbeat
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.fleet import slot_member
from session_core.journal import JournalEntry, Role, Stamp, decode_entry, encode_entry
from session_core.reducer import REDUCER_VERSION, Outbound, reduce
from session_core.state import State
from session_core.units import next_unit

CHUNK_MS = 80
PATIENCE_S = 20
"""A test that waits longer has failed; no test depends on how long it takes."""


class Clock:
    """The store's time, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        """The time in ms."""
        return self.now_ms


class Scene:
    """One memory server with its clock, for the length of a test."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[MemoryEventStore]:
        """
        Gives a process's store on the server. It looks for lost hints often: the tests do not wait for that.
        """
        options = StoreOptions(append_coalesce_s=0, read_coalesce_s=0, sweep_s=0.05)
        async with MemoryEventStore(self.server, options) as store:
            yield store

    @asynccontextmanager
    async def worker(
        self, plugin: ModelPlugin, worker_id: str = "worker-a", **settings: float | str
    ) -> AsyncIterator[tuple[Worker, asyncio.Task[None]]]:
        """Runs a worker with a store of its own until the block ends; cancel the task to kill it."""
        async with self.store() as store:
            fixed: dict[str, float | str] = {"heartbeat_s": 0.05, "stop_timeout_s": 5.0, **settings}
            worker = Worker(store, plugin, _settings(worker_id, fixed))
            task = asyncio.create_task(worker.run())
            try:
                yield worker, task
            finally:
                worker.stop()
                with suppress(asyncio.CancelledError):
                    await task


def _settings(worker_id: str, given: dict[str, float | str]) -> WorkerSettings:
    return msgspec.convert({"worker_id": worker_id, **given}, WorkerSettings)


class Client:
    """One session, as its client and its gateway see it."""

    def __init__(
        self, scene: Scene, store: MemoryEventStore, config: SessionConfig, profile: ModelProfile
    ) -> None:
        self.session_id = new_session_id()
        self.state = State()
        self.entries: list[JournalEntry] = []
        """Every entry of the journal."""
        self.outbound: list[Outbound] = []
        self.changes: list[tuple[JournalEntry, bool]] = []
        self._scene = scene
        self._store = store
        self._config = config
        self._profile = profile
        self._follower = store.follow(self.session_id)
        self._n = 0

    async def open(self, worker_id: str | None = "worker-a", *, limits: Limits | None = None) -> None:
        """Opens the session and assigns its first worker, which holds a slot before."""
        opened = ev.SessionOpened(
            self.session_id,
            self._profile,
            self._config,
            limits or Limits(),
            Way.DUPLEX,
            Dialect.GA,
            REDUCER_VERSION,
        )
        await self.append(opened)
        if worker_id is not None:
            await self.assign(worker_id)
        await self.append(ev.ClientAttached("attachment-1", "gateway-a", 1, None, b"hash"))

    async def assign(self, worker_id: str) -> None:
        """Assigns a worker as the next generation, as a reaper does."""
        await self.catch_up()
        generation = self.state.worker.generation + 1
        await self._store.hold(worker_id, slot_member(self.session_id, generation), None)
        await self.append(ev.WorkerAssigned(worker_id, generation))

    async def append(self, body: ev.AnyEvent, stamp: Stamp | None = None) -> None:
        """Appends a fact."""
        await self._store.append(self.session_id, encode_entry(body, stamp))

    async def command(self, command: AnyCommand) -> None:
        """Sends a command."""
        self._n += 1
        await self._store.append(self.session_id, encode_entry(command, Stamp(Role.CLIENT, 1, self._n)))

    async def say(self, pcm: Pcm) -> None:
        """
        Sends audio in real time of the store's clock, and waits for the model to take each whole unit.

        Args:
            pcm: float32 [samples] at the rate of the session's input format.
        """
        audio_format = self._config.input_format
        size = audio_format.sample_rate_hz * CHUNK_MS // 1000
        for start in range(0, len(pcm), size):
            self._scene.clock.now_ms += CHUNK_MS
            await self.command(AppendAudio(encode(pcm[start : start + size], audio_format.encoding)))
            await self.until(
                lambda state: state.position[0] == self._scene.clock.now_ms and _is_served(state)
            )

    async def wait_in_silence(self, duration_ms: int) -> None:
        """Lets time pass in which the client sends nothing but signs of life."""
        for _ in range(duration_ms // CHUNK_MS):
            self._scene.clock.now_ms += CHUNK_MS
            await self.command(Heartbeat())
            await self.until(lambda state: next_unit(state, self._scene.clock.now_ms) is None)

    async def until(self, holds: Callable[[State], bool]) -> None:
        """Folds until a condition on the state holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.state):
                self._fold(await anext(self._follower))

    async def catch_up(self) -> None:
        """Folds everything that is in the journal now."""
        bounds = await self._store.bounds(self.session_id)
        if bounds is not None:
            await self.until(lambda state: state.position >= bounds[1])

    def _fold(self, batch: list[tuple[tuple[int, int], bytes]] | object) -> None:
        assert isinstance(batch, list)
        for position, data in batch:
            entry = decode_entry(data)
            last_n = self.state.worker.last_n
            reduction = reduce(self.state, position, entry)
            self.state = reduction.state
            self.entries.append(entry)
            self.changes.append((entry, bool(reduction.changes) or self.state.worker.last_n != last_n))
            self.outbound += reduction.outbound

    @property
    def reply(self) -> Pcm:
        """All audio that the client was given, float32 at the output format's rate."""
        deltas = [event.delta for event, _ in self.outbound if isinstance(event, wire.AudioDelta)]
        return decode(b"".join(deltas), self._config.output_format.encoding)

    @property
    def transcripts(self) -> list[str]:
        """The transcripts of what the client was told."""
        return [event.delta for event, _ in self.outbound if isinstance(event, wire.TranscriptDelta)]

    def units(self) -> list[ev.ModelUnitCompleted]:
        """The units that counted."""
        return [
            entry.body
            for entry, counted in self.changes
            if counted and isinstance(entry.body, ev.ModelUnitCompleted)
        ]

    def told(self, kind: type[wire.ServerEvent]) -> list[wire.ServerEvent]:
        """The outbound events of one type."""
        return [event for event, _ in self.outbound if isinstance(event, kind)]


def _is_served(state: State) -> bool:
    """Whether no whole unit of input waits for a worker that there is, and all that was said is rendered."""
    if state.worker.worker is None or state.end_reason is not None:
        return True
    profile = state.pinned.profile
    waiting = state.input.received_samples(profile.input_sample_rate_hz) - state.clock.consumed_samples
    return waiting < profile.unit_samples and not state.renders


def in_16_bits(pcm: Pcm) -> Pcm:
    """Gives what is left of audio that went through PCM16."""
    return np.asarray(decode(encode(pcm, "pcm16"), "pcm16"), np.float32)
