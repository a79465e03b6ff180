"""`frames_lm` on a real engine: its window, its context after cancels, and many sessions at once."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling
from gpu_worker.engine.stream import EngineStream
from gpu_worker.frames_lm import (
    BEGIN_TOKEN,
    UNIT_SAMPLES,
    FramesLmSettings,
    decode_position,
    loudness,
    window_start,
)
from session_core import commands as cmd
from session_core.config import SessionPatch
from session_core.events import ModelUnitCompleted
from session_core.state import Phase
from tests.gpu_worker.client import Scene
from tests.vllm.roles import (
    Break,
    SharedCausal,
    SharedFrames,
    StopsAt,
    Talk,
    killed,
    loudnesses,
    new_talk,
    patient,
    two_workers,
)
from tests.vllm.test_handover import frames_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHORT_WINDOW = 96


@pytest.fixture
def frames(settings: CausalLmSettings, engine: Engine) -> SharedFrames:
    """The model with the engine's whole window."""
    return SharedFrames(frames_settings(settings), engine)


@pytest.fixture
def short(settings: CausalLmSettings, engine: Engine) -> SharedFrames:
    """The model with a window of thirty units."""
    return SharedFrames(replace(frames_settings(settings), window_tokens=SHORT_WINDOW), engine)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> list[EngineStream]:
    """Every stream that is opened from here on."""
    streams: list[EngineStream] = []
    begin = engine.open

    def record(request_key: str, token_ids: tuple[int, ...], *, salt: str | None = None) -> EngineStream:
        streams.append(begin(request_key, token_ids, salt=salt))
        return streams[-1]

    monkeypatch.setattr(engine, "open", record)
    return streams


async def test_window_begins_where_the_units_number_says() -> None:
    """The window moves on by half of it, and holds never more than its size."""
    starts = [window_start(unit, 30) for unit in range(100)]
    assert [0] * 30 + [15] * 15 + [30] * 15 + [45] * 15 + [60] * 15 + [75] * 10 == starts
    assert 30 == max(unit - start + 1 for unit, start in enumerate(starts))


async def test_loudness_has_steps() -> None:
    """Silence is level 0, full scale the highest, and neighbouring levels are 5 dB apart."""
    levels = [loudness(np.full(UNIT_SAMPLES, 10 ** (-db / 20), np.float32)) for db in range(2, 82, 5)]
    assert [*range(15, -1, -1)] == levels
    assert 0 == loudness(np.zeros(UNIT_SAMPLES, np.float32))


async def reference(
    engine: Engine, units: list[ModelUnitCompleted], prompts: dict[int, tuple[int, ...]], window_units: int
) -> list[tuple[int, ...]]:
    """Gives what the model says at each unit when its whole window is computed anew, in one piece."""
    tokens = [decode_position(unit.codes).token for unit in units]
    said = []
    for unit in range(len(units)):
        start = window_start(unit, window_units)
        stream = engine.open("reference", (*prompts[start], *tokens[start : unit + 1]))
        said.append(await stream.append((), UnitSampling(max_tokens=1)))
        await stream.aclose()
    return said


async def rolled(first: StopsAt, second: SharedFrames, breaks: Break | None) -> list[ModelUnitCompleted]:
    """Gives a session of 80 units whose instructions change in the middle of a window."""
    scene = Scene()
    async with two_workers(scene, first, second) as (store, one, _):
        talk = new_talk(scene, store, second, instructions="Be brief.")
        await talk.open()
        for unit, pcm in enumerate(loudnesses(80, seed=3)):
            if unit == 37:
                await talk.command(cmd.UpdateSession(SessionPatch(instructions="Be long.")))
            await talk.hear(pcm)
            if breaks is not None and unit == breaks.unit:
                await patient(first.stopped)
                await killed(one)
                await talk.assign("worker-b")
            await talk.taken(unit + 1)
        return talk.units()


def prompt(instructions: str) -> tuple[int, ...]:
    """Gives the prompt of instructions."""
    return (BEGIN_TOKEN, *(byte + 3 for byte in instructions.encode()))


async def test_rollover_keeps_the_prompt_and_the_newest_units(
    short: SharedFrames, engine: Engine, opened: list[EngineStream]
) -> None:
    """At every unit the model says what it says to the prompt and the window computed in one piece."""
    units = await rolled(StopsAt(short, None, within=False), short, None)
    assert 1 + len({window_start(unit, 30) for unit in range(1, 80)} - {0}) == len(opened)
    prompts = {0: prompt("Be brief."), 15: prompt("Be brief.")}
    prompts |= {start: prompt("Be long.") for start in (30, 45, 60)}
    assert [unit.token_ids for unit in units] == await reference(engine, units, prompts, 30)
    recorded = {unit.unit: found for unit in units if (found := decode_position(unit.codes).prompt)}
    assert {unit: prompts[window_start(unit, 30)] for unit in (0, 30, 45, 60, 75)} == recorded


@pytest.mark.parametrize("unit", [1, 29, 30, 31, 38, 44, 45, 46, 60, 79])
async def test_failover_around_a_rollover(short: SharedFrames, unit: int) -> None:
    """A worker that takes over has the window that the first one had, and its prompt."""
    alone = await rolled(StopsAt(short, None, within=False), short, None)
    passed_on = await rolled(StopsAt(short, unit, within=True), short, Break(unit, within=True))
    assert alone == passed_on


async def test_cancel_every_50_ms(frames: SharedFrames, engine: Engine, opened: list[EngineStream]) -> None:
    """For ten seconds the clock goes on unit by unit, and nothing is computed twice."""
    scene = Scene()
    async with scene.store() as store, scene.worker(frames):
        talk = new_talk(scene, store, frames)
        await talk.open()
        cancelled = 0
        for unit, pcm in enumerate(loudnesses(125)):
            before = scene.clock.now_ms
            for at_ms in range(-(-before // 50) * 50, before + 80, 50):
                scene.clock.now_ms = at_ms
                await talk.command(cmd.CancelResponse() if cancelled % 2 else cmd.BargeIn())
                cancelled += 1
            scene.clock.now_ms = before
            await talk.hear(pcm)
            await talk.taken(unit + 1)
        units = talk.units()
        assert 200 == cancelled
        assert 125 == len(units)
        assert 0 == sum(unit.silence_samples for unit in units)
        assert talk.state.epoch > 5
        assert 1 == len(opened)
        assert 1 + len(units) == opened[0].computed
        assert [unit.token_ids for unit in units] == await reference(
            engine, units, {0: (BEGIN_TOKEN,)}, frames.window_units
        )


async def conversation(plugin: SharedFrames, numbers: list[int]) -> list[list[ModelUnitCompleted]]:
    """Gives the units of sessions that speak at the same time."""
    scene = Scene()
    async with scene.store() as store, scene.worker(plugin):
        talks = [new_talk(scene, store, plugin, number) for number in numbers]
        voices = [loudnesses(40, seed=number) for number in numbers]
        for talk in talks:
            await talk.open()
        for unit in range(40):
            for talk, voice in zip(talks, voices, strict=True):
                await talk.hear(voice[unit])
            for talk in talks:
                await talk.taken(unit + 1)
        return [talk.units() for talk in talks]


async def test_eight_sessions_equal_their_solo_runs(frames: SharedFrames) -> None:
    """Sessions in one batch say what each says alone."""
    together = await conversation(frames, [*range(8)])
    for number in range(8):
        alone = (await conversation(frames, [number]))[0]
        assert [unit.token_ids for unit in alone] == [unit.token_ids for unit in together[number]]
        assert [unit.decision for unit in alone] == [unit.decision for unit in together[number]]
    assert len({tuple(unit.token_ids for unit in units) for units in together}) == 8


async def stir(talk: Talk, dice: random.Random, *, typed: bool) -> None:
    """Opens a session and does to it what comes to mind; mostly it ends with a close."""
    await talk.open()
    for pcm in loudnesses(dice.randrange(1, 12), seed=dice.randrange(100)):
        match dice.randrange(6):
            case 0:
                await talk.command(cmd.CancelResponse())
            case 1:
                await talk.command(cmd.BargeIn())
            case 2:
                await talk.command(cmd.CreateResponse())
            case 3:
                await talk.command(cmd.ClearOutput())
            case _ if typed:
                await talk.command(cmd.CreateResponse())
            case _:
                await talk.hear(pcm)
        # A moment that is random by design: anything from not begun to long done.
        await asyncio.sleep(dice.random() * 0.02)
    await talk.command(cmd.CloseSession())
    await talk.until(lambda state: state.phase is Phase.ENDED)


@pytest.mark.parametrize("model", ["frames_lm", "causal_lm"])
async def test_storm_through_the_worker_leaves_nothing(
    settings: CausalLmSettings, engine: Engine, model: str
) -> None:
    """Two hundred sessions that open, cancel, barge in and close at any moment leave no request and no KV."""
    plugin = (
        SharedFrames(frames_settings(settings), engine)
        if model == "frames_lm"
        else SharedCausal(settings, engine)
    )
    scene, dice, gate = Scene(), random.Random(11), asyncio.Semaphore(24)
    async with scene.store() as store, scene.worker(plugin) as (worker, _):

        async def one(number: int) -> None:
            async with gate:
                talk = new_talk(scene, store, plugin, number, max_output_tokens=12)
                await stir(talk, dice, typed=model == "causal_lm")

        await asyncio.gather(*(one(number) for number in range(200)))
        async with asyncio.timeout(20):
            while engine.stats.streams or worker.sessions:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
    assert (0, 0, 0) == tuple(engine.stats)
    assert await engine.is_empty()


async def test_settings_hold_a_window(settings: CausalLmSettings) -> None:
    """The window in units leaves room for the prompt, and one that holds nothing is refused."""
    assert 30 == FramesLmSettings(checkpoint="x", window_tokens=SHORT_WINDOW).window_units
    with pytest.raises(Exception, match="holds no units"):
        SharedFrames(FramesLmSettings(checkpoint="x", window_tokens=60), None)  # type: ignore[arg-type]
