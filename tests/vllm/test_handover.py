"""
A worker that dies or leaves at any unit: another one goes on, and clients and model are told the same.

Both roles share one engine, and the first stops dead: its request is aborted, nothing more is appended.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.frames_lm import FramesLmSettings
from gpu_worker.plugin import ModelPlugin
from tests.gpu_worker.client import Scene
from tests.vllm.roles import (
    Break,
    Serving,
    SharedCausal,
    SharedFrames,
    StopsAt,
    Talk,
    Told,
    ended,
    killed,
    loudnesses,
    new_talk,
    patient,
    two_workers,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNITS = 40
QUESTIONS = ("One?", "Two, then?", "And three?", "Four!", "Five")
EVERY_BREAK = [Break(unit, within) for unit in range(UNITS) for within in (False, True)]


async def spoken(first: StopsAt, second: ModelPlugin, breaks: Break | None, *, drain: bool = False) -> Told:
    """Speaks forty units to a worker; where it stops, the other one is assigned."""
    scene = Scene()
    async with two_workers(scene, first, second) as (store, one, _):
        talk = new_talk(scene, store, second)
        await talk.open()
        for unit, pcm in enumerate(loudnesses(UNITS)):
            await talk.hear(pcm)
            if breaks is not None and unit == breaks.unit:
                await _hand_over(talk, one, first, drain=drain)
            await talk.taken(unit + 1)
        return talk.told_all()


async def asked(first: StopsAt, second: ModelPlugin, breaks: Break | None, *, drain: bool = False) -> Told:
    """Asks questions that take eight units each; where the worker stops, the other one is assigned."""
    scene, due = Scene(), breaks
    async with two_workers(scene, first, second) as (store, one, _):
        talk = new_talk(scene, store, second, instructions="Be brief.", max_output_tokens=16)
        await talk.open()
        for question in QUESTIONS:
            await talk.ask(question)
            last_unit = talk.state.clock.next_unit + UNITS // len(QUESTIONS) - 1
            if due is not None and due.unit <= last_unit:
                await talk.taken(due.unit)
                await _hand_over(talk, one, first, drain=drain)
                due = None
            await talk.answered()
        return talk.told_all()


async def _hand_over(talk: Talk, worker: Serving, stops: StopsAt, *, drain: bool) -> None:
    if drain:
        worker[0].stop()
        await talk.until(ended)
    else:
        await patient(stops.stopped)
        await killed(worker)
    await talk.assign("worker-b")


@pytest.fixture
def frames(settings: CausalLmSettings, engine: Engine) -> SharedFrames:
    """The unit-clocked model on the shared engine."""
    return SharedFrames(frames_settings(settings), engine)


@pytest.fixture
def causal(settings: CausalLmSettings, engine: Engine) -> SharedCausal:
    """The commit-clocked model on the shared engine, with short units."""
    return SharedCausal(replace(settings, unit_tokens=2), engine)


def frames_settings(settings: CausalLmSettings) -> FramesLmSettings:
    """Gives `frames_lm`'s settings for the engine of these tests."""
    return FramesLmSettings(
        checkpoint=settings.checkpoint, window_tokens=settings.window_tokens, dtype=settings.dtype
    )


async def test_frames_model_speaks_and_listens(frames: SharedFrames) -> None:
    """The session that is passed on below is no empty one: it has turns, and silence between them."""
    told = await spoken(StopsAt(frames, None, within=False), frames, None)
    decisions = {unit.decision.value for unit in told.completed}
    assert {"listen", "speak", "turn_end"} == decisions
    assert list(range(UNITS)) == [unit.unit for unit in told.completed]
    assert 3 <= len({unit.token_ids for unit in told.completed})


def check(alone: Told, passed_on: Told, breaks: Break) -> None:
    """Units, with tokens and records, and all that clients were told are the same."""
    assert alone.units == passed_on.units, breaks
    assert alone.events == passed_on.events, breaks


async def test_frames_failover_at_every_unit(frames: SharedFrames, engine: Engine) -> None:
    """Whichever unit the first owner dies at, before it or within it, all tokens and events are the same."""
    alone = await spoken(StopsAt(frames, None, within=False), frames, None)
    for breaks in EVERY_BREAK:
        passed_on = await spoken(StopsAt(frames, breaks.unit, within=breaks.within), frames, breaks)
        check(alone, passed_on, breaks)
    assert await engine.is_empty()


async def test_causal_failover_at_every_unit(causal: SharedCausal, engine: Engine) -> None:
    """The same in a conversation of texts: at most one unit is worked on twice, and with the same outcome."""
    alone = await asked(StopsAt(causal, None, within=False), causal, None)
    assert UNITS == len(alone.units)
    for breaks in EVERY_BREAK[1::2]:
        passed_on = await asked(StopsAt(causal, breaks.unit, within=True), causal, breaks)
        check(alone, passed_on, breaks)
    assert await engine.is_empty()


@pytest.mark.parametrize("unit", [0, 7, 8, 20, 39])
async def test_frames_drain(frames: SharedFrames, engine: Engine, unit: int) -> None:
    """A worker that is told to leave hands over between two units: none is lost, none is doubled."""
    alone = await spoken(StopsAt(frames, None, within=False), frames, None)
    drained = await spoken(StopsAt(frames, None, within=False), frames, Break(unit, within=False), drain=True)
    check(alone, drained, Break(unit, within=False))
    assert await engine.is_empty()


@pytest.mark.parametrize("unit", [3, 17])
async def test_causal_drain(causal: SharedCausal, engine: Engine, unit: int) -> None:
    """The same in the middle of an answer."""
    alone = await asked(StopsAt(causal, None, within=False), causal, None)
    drained = await asked(StopsAt(causal, None, within=False), causal, Break(unit, within=False), drain=True)
    check(alone, drained, Break(unit, within=False))
    assert await engine.is_empty()
