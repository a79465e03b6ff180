"""A conversation whose worker changes after every single unit is the conversation of one worker."""

from __future__ import annotations

import asyncio

import pytest

from gpu_worker import causal_lm
from gpu_worker.causal_lm import CausalLmPlugin, CausalLmSettings
from gpu_worker.engine.context_tokens import WHOLE_EVERY
from gpu_worker.engine.engine import Engine
from gpu_worker.plugin import Context, ModelSession, UnitInput, UnitOutput
from session_core import wire
from session_core.config import Modality, SessionConfig
from tests.gpu_worker import client as gateway
from tests.gpu_worker.client import Scene
from tests.vllm.roles import SharedCausal
from tests.vllm.test_causal_lm import SESSION_ID, Chat

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTIONS = ("One?", "Two, then?", "And three?", "Four!", "Five and all", "Six")
LEAST_UNITS = 40


class OneUnit(ModelSession):
    """A session that works on one unit, and on the next only when somebody else owns it: too late."""

    def __init__(self, session: ModelSession, over: asyncio.Event) -> None:
        self._session = session
        self._over = over
        self._worked = False

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Works, or waits until it is too late."""
        if self._worked:
            await self._over.wait()
        self._worked = True
        return await self._session.step(unit)

    async def aclose(self) -> None:
        """Gives up the place."""
        await self._session.aclose()


class OneUnitPlugin(SharedCausal):
    """Gives sessions that work on one unit; `over` tells the last one that it is."""

    def __init__(self, settings: CausalLmSettings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.over = asyncio.Event()

    async def open(self, context: Context) -> ModelSession:
        """Gives a session for one unit."""
        self.over = asyncio.Event()
        return OneUnit(await super().open(context), self.over)


def config(plugin: CausalLmPlugin, temperature: float) -> SessionConfig:
    """Gives the settings of a conversation whose answers take eight units each."""
    return SessionConfig(
        plugin.profile.model,
        instructions="Be brief.",
        output_modality=Modality.TEXT,
        max_output_tokens=64,
        temperature=temperature,
    )


async def undisturbed(plugin: CausalLmPlugin, temperature: float) -> Chat:
    """Gives the conversation of one worker."""
    scene = Scene()
    async with scene.store() as store, scene.worker(plugin):
        talk = Chat(scene, store, config(plugin, temperature), plugin.profile)
        await talk.open()
        for question in QUESTIONS:
            await talk.ask(question)
        return talk


async def disturbed(plugins: tuple[OneUnitPlugin, OneUnitPlugin], temperature: float) -> Chat:
    """Gives the same conversation, with the other worker assigned after every unit."""
    scene = Scene()
    ours, other = ("worker-a", plugins[0]), ("worker-b", plugins[1])
    async with (
        scene.store() as store,
        scene.worker(plugins[0], "worker-a"),
        scene.worker(plugins[1], "worker-b"),
    ):
        talk = Chat(scene, store, config(plugins[0], temperature), plugins[0].profile)
        await talk.open()
        for question in QUESTIONS:
            await talk.ask(question, wait=False)
            while talk.state.response is not None:
                await talk.until(lambda state: state.worker.completed_units > 0)
                ours, other = other, ours
                await talk.assign(ours[0])
                other[1].over.set()
        return talk


def told(talk: Chat) -> list[wire.ServerEvent]:
    """Gives what clients were told. Ids are made of times, which are the same in both runs."""
    return [event for event, _ in talk.outbound]


@pytest.mark.parametrize(
    ("temperature", "whole_every"),
    [(0.0, WHOLE_EVERY), (1.0, WHOLE_EVERY), (0.0, 3)],
    ids=["greedy", "drawn", "short window"],
)
async def test_worker_changes_after_every_unit(
    monkeypatch: pytest.MonkeyPatch,
    settings: CausalLmSettings,
    engine: Engine,
    temperature: float,
    whole_every: int,
) -> None:
    """Tokens, records and outbound events are the same; not one unit was worked on twice with effect."""
    monkeypatch.setattr(gateway, "new_session_id", lambda: SESSION_ID)
    monkeypatch.setattr(causal_lm, "WHOLE_EVERY", whole_every)
    monkeypatch.setattr(CausalLmPlugin, "window_units", whole_every)
    alone = await undisturbed(SharedCausal(settings, engine), temperature)
    passed_on = await disturbed(
        (OneUnitPlugin(settings, engine), OneUnitPlugin(settings, engine)), temperature
    )
    assert len(alone.units()) >= LEAST_UNITS
    assert alone.units() == passed_on.units()
    assert told(alone) == told(passed_on)
    assert passed_on.state.worker.generation >= len(passed_on.units())
    assert await engine.is_empty()
