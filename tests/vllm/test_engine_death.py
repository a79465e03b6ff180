"""An engine of its own, with prefix caching: what the cache keeps, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.errors import EngineDied
from gpu_worker.engine.sampling import UnitSampling
from session_core import commands as cmd
from session_core.events import ModelFailed
from tests.gpu_worker.client import Scene
from tests.vllm.roles import SharedCausal, SharedFrames, ended, loudnesses, new_talk, two_workers
from tests.vllm.test_causal_lm import chat
from tests.vllm.test_handover import frames_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE_S = 20
"""A test that waits longer has failed: nothing may hang."""
CONTEXT = tuple(range(40, 300))


def children() -> set[int]:
    """Gives the processes that this one has started and that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, after_name = stat.read_text().rpartition(")")
        except OSError:
            continue
        if int(after_name.split()[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doomed(settings: CausalLmSettings) -> AsyncIterator[tuple[Engine, set[int]]]:
    """An engine that may be killed, and its processes."""
    before = children()
    loaded = await Engine.start(replace(settings, prefix_caching=True))
    try:
        yield loaded, children() - before
    finally:
        loaded.shutdown()


def greedy(tokens: int) -> UnitSampling:
    """Gives the sampling of a unit that says the likeliest tokens."""
    return UnitSampling(max_tokens=tokens)


async def test_context_from_the_cache_says_the_same(doomed: tuple[Engine, set[int]]) -> None:
    """A stream that begins with what another one left in the cache says what it would say anyway."""
    engine, _ = doomed
    first = engine.open("first", CONTEXT, salt="one")
    said = await first.append((), greedy(40))
    await first.aclose()
    fresh = engine.open("fresh", (*CONTEXT, *said[:10]), salt="two")
    cached = engine.open("cached", (*CONTEXT, *said[:10]), salt="one")
    assert said[10:] == await fresh.append((), greedy(30)) == await cached.append((), greedy(30))
    await fresh.aclose()
    await cached.aclose()
    assert await engine.is_empty()


async def test_conversation_with_the_cache_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
    settings: CausalLmSettings,
    engine: Engine,
    doomed: tuple[Engine, set[int]],
) -> None:
    """A conversation whose context is rebuilt at every answer has the same tokens with the cache."""
    runs = []
    for used in (engine, doomed[0]):
        async with chat(monkeypatch, SharedCausal(settings, used)) as talk:
            for number in range(4):
                # Other instructions change the context from its beginning.
                await talk.ask(
                    f"{number}?", cmd.ResponseOptions(instructions="Be brief. " * (number % 2 + 5))
                )
            runs.append(talk.units())
        assert await used.is_empty()
    assert runs[0] == runs[1]


@pytest_asyncio.fixture(loop_scope="session")
async def second_doomed(settings: CausalLmSettings) -> AsyncIterator[tuple[Engine, set[int]]]:
    """Another engine that may be killed, and its processes."""
    before = children()
    loaded = await Engine.start(settings)
    try:
        yield loaded, children() - before
    finally:
        loaded.shutdown()


async def test_sessions_leave_a_dead_engine(
    settings: CausalLmSettings, engine: Engine, second_doomed: tuple[Engine, set[int]]
) -> None:
    """Killed under load, an engine takes its worker along; its sessions go on in another one."""
    doomed_engine, processes = second_doomed
    voices = [loudnesses(30, seed=number) for number in range(4)]
    alive = SharedFrames(frames_settings(settings), engine)
    told = []
    for first in (alive, SharedFrames(frames_settings(settings), doomed_engine)):
        scene = Scene()
        async with two_workers(scene, first, alive) as (store, (_, serving), _other):
            talks = [new_talk(scene, store, alive, number) for number in range(4)]
            for talk in talks:
                await talk.open()
            for unit in range(30):
                for talk, voice in zip(talks, voices, strict=True):
                    await talk.hear(voice[unit])
                if unit == 15 and first is not alive:
                    for process in processes:
                        os.kill(process, signal.SIGKILL)
                    for talk in talks:
                        await talk.until(ended)
                        await talk.assign("worker-b")
                    async with asyncio.timeout(PATIENCE_S):
                        await serving
                for talk in talks:
                    await talk.taken(unit + 1)
            told.append([[unit.token_ids for unit in talk.units()] for talk in talks])
    assert told[0] == told[1]
    assert await engine.is_empty()


async def test_dead_engine_ends_every_stream_at_once(
    monkeypatch: pytest.MonkeyPatch, settings: CausalLmSettings, doomed: tuple[Engine, set[int]]
) -> None:
    """Killed, the engine gives `EngineDied` to all streams, new ones too; sessions are given up."""
    engine, processes = doomed
    idle = [engine.open("idle", CONTEXT) for _ in range(3)]
    for stream in idle:
        await stream.append((), greedy(2))
    working = [
        asyncio.create_task(engine.open("working", (50, 51)).append((), greedy(500))) for _ in range(3)
    ]
    async with chat(monkeypatch, SharedCausal(settings, engine), max_output_tokens=400) as talk:
        await talk.ask("One?", wait=False)
        await talk.until(lambda state: state.clock.next_unit >= 2)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            for outcome in await asyncio.gather(*working, return_exceptions=True):
                assert isinstance(outcome, EngineDied)
            for stream in idle:
                with pytest.raises(EngineDied):
                    await stream.append((), greedy(2))
            assert "gone" in await engine.failed()
            with pytest.raises(EngineDied):
                await engine.open("new", CONTEXT).prefill()
            for stream in idle:
                await stream.aclose()
        await talk.until(lambda state: state.worker.worker is None)
        assert any(isinstance(entry.body, ModelFailed) for entry in talk.entries)
