"""How many sessions a worker takes is what its KV cache holds: the next one is refused before it begins."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from eventstore.memory import MemoryServer
from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import Worker
from session_core.fleet import decode_advertisement
from tests.api.conftest import World, fast
from tests.gpu_worker.client import PATIENCE_S
from tests.vllm.roles import SharedFrames
from tests.vllm.test_handover import frames_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_session_beyond_the_kv_budget_is_refused(settings: CausalLmSettings, engine: Engine) -> None:
    """With room for two windows the third client gets a retryable refusal before any session."""
    budget = engine.kv_budget
    window_tokens = (budget.blocks - 1) // 2 * budget.block_tokens
    roomy = replace(frames_settings(settings), window_tokens=window_tokens)
    plugin = SharedFrames(roomy, Engine(engine._backend, roomy))
    async with AsyncExitStack() as stack:
        world = World(MemoryServer(), stack)
        store = await world.store()
        worker = Worker(store, plugin, WorkerSettings(worker_id="worker-a", heartbeat_s=0.05, capacity=64))
        serving = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE_S):
            while not (infos := [one.info for one in await store.processes() if one.id == "worker-a"]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        advertised = decode_advertisement(infos[0])
        assert advertised is not None
        assert 2 == advertised.capacity
        site = await world.site(fast())
        for _ in range(2):
            client = await site.client()
            first = await client.next()
            assert "session.created" == first["type"], first
        third = await site.client()
        refusal = await third.next()
        assert ("error", "resource_exhausted") == (refusal["type"], refusal["error"]["code"])
        assert 1013 == await third.closed()
        assert 2 == len(await store.held("worker-a"))
        worker.stop()
        await serving
