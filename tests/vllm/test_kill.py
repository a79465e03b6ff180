"""Worker processes that are killed with -9 on a real store: the next one goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from duplex.guard import guarded
from eventstore.connect import open_store
from eventstore.server import ValkeyServer
from eventstore.store import EventStore
from gpu_worker.audio import Pcm
from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.frames_lm import FramesLmSettings
from gpu_worker.loopback import UNIT_SAMPLES, LoopbackPlugin
from gpu_worker.plugin import ModelPlugin
from gpu_worker.settings import WorkerSettings
from session_core.events import ModelUnitCompleted
from tests.gpu_worker.client import Scene
from tests.gpu_worker.speech import clip, silence
from tests.vllm.roles import SharedFrames, Talk, loudnesses, new_talk

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
BOOT_S = 240
POLL_S = 0.02
UNITS = 40


@asynccontextmanager
async def process(settings: WorkerSettings) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a worker process, which is killed at the end if it still runs, and with the test in any case."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.vllm.worker_process", msgspec.json.encode(settings).decode()),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with guarded(running.pid):
            yield running
            await kill(running)
    finally:
        await kill(running)


async def kill(running: asyncio.subprocess.Process) -> None:
    """Kills -9. An engine's process ends by itself when its worker is gone."""
    if running.returncode is None:
        running.kill()
        await running.wait()


async def serves(store: EventStore, worker_id: str, running: asyncio.subprocess.Process) -> None:
    """Waits for a worker's first heartbeat."""
    async with asyncio.timeout(BOOT_S):
        while all(known.id != worker_id for known in await store.processes()):
            assert running.returncode is None, f"{worker_id} ended"
            await asyncio.sleep(POLL_S)


def remote(store: EventStore, plugin: ModelPlugin, number: int = 0) -> Talk:
    """Gives a client on a real store, whose time passes by itself."""
    return new_talk(Scene(), store, plugin, number)  # type: ignore[arg-type]


def plain(unit: ModelUnitCompleted) -> ModelUnitCompleted:
    """Gives a unit without the id of the response that it answers: that is made of times."""
    return msgspec.structs.replace(unit, answers=None)


async def undisturbed(plugin: ModelPlugin, voices: list[list[Pcm]]) -> list[list[ModelUnitCompleted]]:
    """Gives what sessions come to in one worker that nobody kills, one session after the other."""
    told = []
    for number, voice in enumerate(voices):
        scene = Scene()
        async with scene.store() as store, scene.worker(plugin):
            talk = new_talk(scene, store, plugin, number)
            await talk.open()
            for unit, pcm in enumerate(voice):
                await talk.hear(pcm)
                await talk.taken(unit + 1)
            told.append([plain(unit) for unit in talk.units()])
    return told


async def test_killed_at_a_border_and_within_a_unit(
    settings: CausalLmSettings, engine: Engine, tmp_path: Path
) -> None:
    """One kill ends one session between two units, and one within a unit; both go on elsewhere."""
    held = tmp_path / "held"
    voices = [loudnesses(UNITS, seed=number) for number in range(2)]
    options = {
        "checkpoint": settings.checkpoint,
        "window_tokens": str(settings.window_tokens),
        "dtype": settings.dtype,
        "kv_cache_bytes": str(settings.kv_cache_bytes),
        "prefix_caching": "false",
        "eager": "true",
        "silence_grace_ms": "600000",
    }
    plugin = SharedFrames(FramesLmSettings.from_options(options), engine)
    expected = await undisturbed(plugin, voices)
    holds = {"hold_session": f"sess_44_{1:022d}", "hold_unit": "20", "hold_file": str(held)}

    def worker(name: str, url: str) -> WorkerSettings:
        return WorkerSettings(
            worker_id=name,
            model="tests.vllm.worker_process:holding",
            model_options=options | holds,
            store_url=url,
            heartbeat_s=0.2,
        )

    async with (
        ValkeyServer(tmp_path, fsync="never") as valkey,
        open_store(valkey.url) as store,
        process(worker("worker-a", valkey.url)) as first,
        process(worker("worker-b", valkey.url)) as second,
    ):
        await asyncio.gather(serves(store, "worker-a", first), serves(store, "worker-b", second))
        talks = [remote(store, plugin, number) for number in range(2)]
        for talk in talks:
            await talk.open()
        for unit in range(UNITS):
            for talk, voice in zip(talks, voices, strict=True):
                await talk.hear(voice[unit])
            if unit == 20:
                await talks[0].taken(21)
                async with asyncio.timeout(BOOT_S):
                    while not held.exists():  # noqa: ASYNC110 - another process makes it
                        await asyncio.sleep(POLL_S)
                await kill(first)
                for talk in talks:
                    await talk.assign("worker-b")
            for talk in talks:
                await talk.taken(unit + 1)
    told = [[plain(unit) for unit in talk.units()] for talk in talks]
    assert expected == told
    assert [2, 2] == [talk.state.worker.generation for talk in talks]


@pytest.mark.integration
async def test_loopback_is_killed_after_every_unit(tmp_path: Path) -> None:
    """Forty workers in a row are killed, each after one unit; every sample of the reply is there."""
    rate_hz = 24_000
    said = np.concatenate((silence(200, rate_hz), clip("cards_001.wav", rate_hz)))
    pcm = np.concatenate((said[: 20 * UNIT_SAMPLES], silence(3_200, rate_hz)))
    voice = [pcm[at : at + UNIT_SAMPLES] for at in range(0, UNITS * UNIT_SAMPLES, UNIT_SAMPLES)]
    plugin = LoopbackPlugin()
    expected = (await undisturbed(plugin, [voice]))[0]
    assert any(unit.audio for unit in expected)

    def worker(number: int, url: str) -> WorkerSettings:
        return WorkerSettings(worker_id=f"worker-{number}", store_url=url, heartbeat_s=0.2)

    async with ValkeyServer(tmp_path, fsync="never") as valkey, open_store(valkey.url) as store:
        talk = remote(store, plugin)
        await talk.open(None)
        for unit, chunk in enumerate(voice):
            async with process(worker(unit, valkey.url)) as running:
                await serves(store, f"worker-{unit}", running)
                await talk.hear(chunk)
                await talk.assign(f"worker-{unit}")
                await talk.taken(unit + 1)
    assert expected == [plain(unit) for unit in talk.units()]
    assert UNITS == talk.state.worker.generation
