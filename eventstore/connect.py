"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import urlsplit

from .memory import MemoryEventStore
from .options import StoreOptions
from .redis_store import Durability, RedisEventStore
from .store import EventStore


def open_store(
    url: str, *, durability: Durability = "relaxed", options: StoreOptions | None = None
) -> EventStore:
    """
    The store at a URL; enter it with `async with` to connect.

    Args:
        url: `redis://`, `rediss://`, `unix://`, or `memory://` for a fresh store of this process alone.
        durability: what an acknowledged append means (a server only).
        options: limits and intervals.

    Raises:
        ValueError: another scheme.
    """
    match urlsplit(url).scheme:
        case "memory":
            return MemoryEventStore(options=options)
        case "redis" | "rediss" | "unix":
            return RedisEventStore(url, durability=durability, options=options)
        case scheme:
            raise ValueError(f"no event store for {scheme!r} URLs")
