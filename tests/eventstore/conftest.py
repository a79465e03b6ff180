"""One contract, three back ends."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis

from eventstore import MemoryServer, RedisEventStore, ValkeyServer
from tests.eventstore.support import Backend, memory_backend, redis_backend


@pytest.fixture(params=["memory", "fakeredis", pytest.param("redis", marks=pytest.mark.integration)])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Every back end in turn, each empty."""
    match request.param:
        case "memory":
            yield memory_backend(MemoryServer())
        case "fakeredis":
            server = FakeServer()
            yield Backend(
                "fakeredis",
                lambda chosen: RedisEventStore(client=FakeRedis(server=server, protocol=2), options=chosen),
            )
        case _:
            async with ValkeyServer(tmp_path, fsync="never") as valkey:
                yield redis_backend(valkey.url)


@pytest.fixture
def scripting(backend: Backend) -> Backend:
    """The back ends that can run Lua: fakeredis only where lupa is installed."""
    if backend.name == "fakeredis" and importlib.util.find_spec("lupa") is None:
        pytest.skip("fakeredis needs lupa to run Lua")
    return backend
