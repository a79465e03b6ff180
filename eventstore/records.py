"""What the store hands out."""

from __future__ import annotations

from typing import NamedTuple

from .ids import EntryId


class Entry(NamedTuple):
    """One journal entry: its position, which is also its time, and its payload."""

    id: EntryId
    data: bytes


class Process(NamedTuple):
    """A process that has sent a heartbeat and was not forgotten."""

    id: str
    info: bytes
    """What it said with its last heartbeat."""
    alive: bool
    """False once that heartbeat's time to live has passed."""
