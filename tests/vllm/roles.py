"""Workers' roles on one engine: plugins that share it, and owners that stop dead where a test wants."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from eventstore.memory import MemoryEventStore
from gpu_worker.audio import Pcm, encode
from gpu_worker.causal_lm import CausalLmPlugin, CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.frames_lm import UNIT_SAMPLES, FramesLmPlugin, FramesLmSettings
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, UnitInput, UnitOutput
from gpu_worker.worker import Worker
from session_core import commands as cmd
from session_core import wire
from session_core.config import Clock, Limits, Modality, SessionConfig
from session_core.events import ModelUnitCompleted
from session_core.items import Item, Part, Role
from session_core.state import State
from tests.gpu_worker.client import CHUNK_MS, PATIENCE_S, Client, Scene

Serving = tuple[Worker, asyncio.Task[None]]


class SharedCausal(CausalLmPlugin):
    """A worker's plugin on an engine that others use too: it neither loads nor stops it."""

    def __init__(self, settings: CausalLmSettings, engine: Engine) -> None:
        super().__init__(settings)
        self._shared = engine

    async def start(self) -> None:
        """Takes the engine that is there."""
        self.use(self._shared)

    async def aclose(self) -> None:
        """Leaves the engine to the others."""


class SharedFrames(FramesLmPlugin):
    """The same for `frames_lm`."""

    def __init__(self, settings: FramesLmSettings, engine: Engine) -> None:
        super().__init__(settings)
        self._shared = engine

    async def start(self) -> None:
        """Takes the engine that is there."""
        self.use(self._shared)

    async def aclose(self) -> None:
        """Leaves the engine to the others."""


class _Stopping(ModelSession):
    def __init__(self, session: ModelSession, stops: StopsAt) -> None:
        self._session = session
        self._stops = stops

    async def step(self, unit: UnitInput) -> UnitOutput:
        stops = self._stops
        is_last = unit.plan.unit == stops.unit
        if is_last and not stops.within:
            await stops.dead()
        output = await self._session.step(unit)
        if is_last:
            await stops.dead()
        return output

    async def aclose(self) -> None:
        await self._session.aclose()


class StopsAt(ModelPlugin):
    """
    Another plugin's sessions, which do nothing more from one unit on: before it, or after the model's work.

    Attributes:
        stopped: set when a session has come there.
    """

    def __init__(self, plugin: ModelPlugin, unit: int | None, *, within: bool) -> None:
        self._plugin = plugin
        self.profile = plugin.profile
        self.window_units = plugin.window_units
        self.window_samples = plugin.window_samples
        self.unit = unit
        self.within = within
        self.stopped = asyncio.Event()

    async def dead(self) -> None:
        """Stops for good."""
        self.stopped.set()
        await asyncio.Event().wait()

    async def start(self) -> None:
        """Starts the plugin."""
        await self._plugin.start()

    async def open(self, context: Context) -> ModelSession:
        """Gives a session that will stop."""
        return _Stopping(await self._plugin.open(context), self)

    async def aclose(self) -> None:
        """Closes the plugin."""
        await self._plugin.aclose()


class Break(NamedTuple):
    """How the first worker's service ends: at which unit, before the model works on it or after."""

    unit: int
    within: bool


class Told(NamedTuple):
    """
    What a session came to, in a form that compares well: units and outbound events as JSON.

    Ids are made of an entry's place: time, and number within it. The numbers are left out: an assignment is
    an entry more.
    """

    units: list[bytes]
    events: list[bytes]
    completed: list[ModelUnitCompleted]

    @classmethod
    def of(cls, units: list[ModelUnitCompleted], events: list[wire.ServerEvent]) -> Told:
        """Takes them down."""
        return cls(
            [_NUMBER.sub(rb"\1", msgspec.json.encode(unit)) for unit in units],
            [_NUMBER.sub(rb"\1", msgspec.json.encode(event)) for event in events],
            units,
        )


_NUMBER = re.compile(rb"(_1\d{6})_\d+")


def session_id(number: int = 0) -> str:
    """Gives an id: seeds are made of it, so it is the same in every run."""
    return f"sess_44_{number:022d}"


class Settled(Client):
    """A client that waits for each owner to begin: so the same entries come in the same order."""

    async def open(self, worker_id: str | None = "worker-a", *, limits: Limits | None = None) -> None:
        """Opens the session, and waits for its first owner, if there is one."""
        await super().open(worker_id, limits=limits)
        if worker_id is not None:
            await self.until(lambda state: state.worker.serving)

    async def assign(self, worker_id: str) -> None:
        """Assigns a worker, and waits for it, unless the session is not open yet."""
        await super().assign(worker_id)
        if self.state.attachment.generation:
            generation = self.state.worker.generation + 1
            await self.until(lambda state: state.worker.generation == generation and state.worker.serving)


class Talk(Settled):
    """A client that speaks unit by unit, or types, at times of its own: so ids are the same in every run."""

    async def hear(self, pcm: Pcm) -> None:
        """Sends a unit of audio."""
        self._scene.clock.now_ms += CHUNK_MS
        await self.command(cmd.AppendAudio(encode(pcm, "pcm16")))

    async def taken(self, units: int) -> None:
        """Waits until so many units are completed."""
        await self.until(lambda state: state.clock.next_unit >= units or state.end_reason is not None)

    async def ask(self, text: str, options: cmd.ResponseOptions | None = None) -> None:
        """Puts a question, and waits until it is being answered."""
        for command in (
            cmd.CreateItem(Item("", role=Role.USER, parts=(Part("input_text", text=text),))),
            cmd.CreateResponse(options or cmd.ResponseOptions()),
        ):
            self._scene.clock.now_ms += 100
            await self.command(command)
        await self.until(lambda state: state.response is not None)

    async def answered(self) -> None:
        """Waits until there is no response in progress."""
        await self.until(lambda state: state.response is None)

    def told_all(self) -> Told:
        """Gives what the session came to."""
        return Told.of(self.units(), [event for event, _ in self.outbound])


def new_talk(
    scene: Scene, store: MemoryEventStore, plugin: ModelPlugin, number: int = 0, **config: object
) -> Talk:
    """Gives a client of this model; it is not opened."""
    modality = Modality.AUDIO if plugin.profile.clock is Clock.UNIT else Modality.TEXT
    settings = SessionConfig(
        plugin.profile.model, auto_response=modality is Modality.AUDIO, output_modality=modality
    )
    talk = Talk(scene, store, replace(settings, **config), plugin.profile)
    talk.session_id = session_id(number)
    talk._follower.close()
    talk._follower = store.follow(talk.session_id)
    return talk


def loudnesses(units: int, seed: int = 0) -> list[Pcm]:
    """Gives units of noise, each as loud as it happens to be."""
    random = np.random.default_rng(seed)
    return [
        np.clip(random.standard_normal(UNIT_SAMPLES) * 10 ** random.uniform(-4, -0.7), -1, 1).astype(
            np.float32
        )
        for _ in range(units)
    ]


async def killed(serving: Serving) -> None:
    """Ends a worker as a crash would: nothing more is appended, its requests are gone."""
    serving[1].cancel()
    with suppress(asyncio.CancelledError):
        await serving[1]


@asynccontextmanager
async def two_workers(
    scene: Scene, first: ModelPlugin, second: ModelPlugin
) -> AsyncIterator[tuple[MemoryEventStore, Serving, Serving]]:
    """Runs "worker-a" and "worker-b", and gives a gateway's store and both."""
    async with (
        scene.store() as store,
        scene.worker(first, "worker-a") as one,
        scene.worker(second, "worker-b") as other,
    ):
        yield store, one, other


async def patient(event: asyncio.Event) -> None:
    """Waits for an event, but not for ever."""
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


def ended(state: State) -> bool:
    """Tells whether nobody has the session."""
    return state.worker.worker is None
