"""The event store's settings, in one frozen object that lives as long as the store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Limits and intervals. The defaults are for production; tests shorten the intervals."""

    append_coalesce_s: float = 0.002
    """Least time between two append pipelines: an append after a pause goes at once, a busy store batches."""
    read_coalesce_s: float = 0.003
    """Least time between two reads of the multiplexed reader."""
    sweep_s: float = 1.0
    """How often all followed sessions are read, whether hinted or not: hints may be lost."""
    keepalive_s: float = 0.5
    """How often the store is asked for its time."""
    timeout_s: float = 5.0
    """Longest wait for one answer; after it the connection is given up."""
    backoff_min_s: float = 0.02
    backoff_max_s: float = 1.0

    entry_bytes: int = 16 << 20
    """Largest entry."""
    writer_pending_bytes: int = 256 << 10
    """`JournalWriter.room` waits while its writer has this much unacknowledged."""
    store_pending_bytes: int = 64 << 20
    """... or all writers together this much."""
    pipeline_bytes: int = 4 << 20
    """About the largest append pipeline (one entry always fits)."""

    follower_buffer_bytes: int = 1 << 20
    """A follower with this much unread is not read for until it has room."""
    read_entries: int = 32
    """Entries per session in one read of the multiplexed reader."""
    read_sessions: int = 64
    """Sessions in one read of the multiplexed reader."""

    snapshots_kept: int = 4


@dataclass(slots=True)
class StoreStats:
    """Counters of one store since it was opened; they only grow."""

    append_pipelines: int = 0
    appended_entries: int = 0
    append_failures: int = 0
    """Pipelines, or one writer's part of one, that were not acknowledged and went out again."""
    reads: int = 0
    read_positions: int = 0
    """Sessions in those reads, a session counted once for each position: what reading costs the store."""
    read_entries: int = 0
    hints: int = 0
    sweeps: int = 0
    reader_connects: int = 0
