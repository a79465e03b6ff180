"""
The event store: one append-only journal of opaque bytes per session, on Redis Streams or in memory.

Imports nothing else of the project. Start at `EventStore` (the contract) and `open_store` (from a URL to a
store).
"""

from .commit import JournalWriter
from .connect import open_store
from .errors import (
    CursorLost,
    EntryTooLarge,
    EventStoreError,
    InvalidId,
    InvalidProcessId,
    InvalidSessionId,
    JournalGap,
    JournalRolledBack,
    StoreClosed,
    StoreUnavailable,
    UnknownSession,
)
from .follow import Follower
from .ids import SHARDS, START, EntryId, new_session_id, shard_of
from .memory import MemoryEventStore, MemoryServer
from .options import StoreOptions, StoreStats
from .records import Entry, Process
from .redis_store import RedisEventStore
from .server import ValkeyServer
from .store import EventStore

__all__ = [
    "SHARDS",
    "START",
    "CursorLost",
    "Entry",
    "EntryId",
    "EntryTooLarge",
    "EventStore",
    "EventStoreError",
    "Follower",
    "InvalidId",
    "InvalidProcessId",
    "InvalidSessionId",
    "JournalGap",
    "JournalRolledBack",
    "JournalWriter",
    "MemoryEventStore",
    "MemoryServer",
    "Process",
    "RedisEventStore",
    "StoreClosed",
    "StoreOptions",
    "StoreStats",
    "StoreUnavailable",
    "UnknownSession",
    "ValkeyServer",
    "new_session_id",
    "open_store",
    "shard_of",
]
