"""What the tests here share: back ends, a hand-set clock, short options, ways to wait for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from eventstore import (
    Entry,
    EventStore,
    Follower,
    MemoryEventStore,
    MemoryServer,
    RedisEventStore,
    StoreOptions,
)

PATIENCE_S = 20.0
"""How long a test waits before it fails; no test waits for this long when it passes."""


def options(**changes: Any) -> StoreOptions:
    """Options with short intervals."""
    defaults: dict[str, Any] = {
        "append_coalesce_s": 0.001,
        "read_coalesce_s": 0.001,
        "sweep_s": 0.05,
        "keepalive_s": 0.05,
        "backoff_min_s": 0.005,
        "backoff_max_s": 0.05,
    }
    return StoreOptions(**(defaults | changes))


class HandClock:
    """A clock in ms that moves only when told."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time it was last set to."""
        return self.now_ms


class Backend:
    """Makes stores that share one server; `name` says of which kind."""

    def __init__(self, name: str, make: Callable[[StoreOptions], EventStore]) -> None:
        self.name = name
        self._make = make

    def store(self, **changes: Any) -> EventStore:
        """A store that is not yet open."""
        return self._make(options(**changes))


def memory_backend(server: MemoryServer) -> Backend:
    """Stores on a memory server."""
    return Backend("memory", lambda chosen: MemoryEventStore(server, chosen))


def redis_backend(url: str) -> Backend:
    """Stores on a real server."""
    return Backend("redis", lambda chosen: RedisEventStore(url, options=chosen))


async def collect(follower: Follower, count: int) -> list[Entry]:
    """The next `count` entries of a follower (or a few more, if the last batch holds them)."""
    entries: list[Entry] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(entries) < count:
            entries += await anext(follower)
    return entries


async def payloads(follower: Follower, count: int) -> list[bytes]:
    """The payloads of the next `count` entries."""
    return [entry.data for entry in await collect(follower, count)]


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the condition is not ours to signal
            await asyncio.sleep(0.002)


def numbered(count: int, first: int = 1) -> list[bytes]:
    """Payloads that carry their own number."""
    return [b"%d" % n for n in range(first, first + count)]
