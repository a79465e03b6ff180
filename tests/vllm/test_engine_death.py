"""
An engine of its own, with prefix caching: what the cache keeps, and what is left when it is killed.
"""

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
from tests.vllm.test_causal_lm import SharedPlugin, chat

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
    """
    A stream that begins with what another one left in the cache says what it would say anyway.
    """
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
        async with chat(monkeypatch, SharedPlugin(settings, used)) as talk:
            for number in range(4):
                # Other instructions change the context from its beginning.
                await talk.ask(
                    f"{number}?", cmd.ResponseOptions(instructions="Be brief. " * (number % 2 + 5))
                )
            runs.append(talk.units())
        assert await used.is_empty()
    assert runs[0] == runs[1]


async def test_dead_engine_ends_every_stream_at_once(
    monkeypatch: pytest.MonkeyPatch, settings: CausalLmSettings, doomed: tuple[Engine, set[int]]
) -> None:
    """
    Killed, the engine gives `EngineDied` to waiting and idle streams and to new ones; sessions are given up.
    """
    engine, processes = doomed
    idle = [engine.open("idle", CONTEXT) for _ in range(3)]
    for stream in idle:
        await stream.append((), greedy(2))
    working = [
        asyncio.create_task(engine.open("working", (50, 51)).append((), greedy(500))) for _ in range(3)
    ]
    async with chat(monkeypatch, SharedPlugin(settings, engine), max_output_tokens=400) as talk:
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
