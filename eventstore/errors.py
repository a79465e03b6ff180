"""
What can go wrong with the event store, as one tree.

    EventStoreError
    ├── InvalidId                 the caller (or a client): not an id of ours
    │   ├── InvalidSessionId
    │   └── InvalidProcessId
    ├── EntryTooLarge             the caller: one entry over the limit
    ├── UnknownSession            the journal does not exist
    ├── CursorLost                the journal cannot be continued from this cursor:
    │   ├── JournalGap            entries after it were trimmed
    │   └── JournalRolledBack     the store lost the entry at the cursor
    ├── StoreUnavailable          infrastructure: no answer, or one that leaves the outcome unknown
    └── StoreClosed               used after close, or closed while waiting
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ids import EntryId


class EventStoreError(Exception):
    """The root of this package's errors."""


class InvalidId(EventStoreError):
    """A string that must name something, and whose form is not that of an id."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"{type(self).__name__}: {self.value[:80]!r}"


class InvalidSessionId(InvalidId):
    """Not of the form `sess_<shard>_<22 url-safe characters>`."""


class InvalidProcessId(InvalidId):
    """Not 1 to 128 letters, digits, dots, dashes, colons and underscores."""


class EntryTooLarge(EventStoreError):
    """One entry, in bytes, over the configured limit; nothing was appended."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"an entry of {self.size_bytes} bytes is over the limit of {self.limit_bytes}"


class UnknownSession(EventStoreError):
    """There is no journal of this session (never opened, or deleted)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return f"no journal for {self.session_id}"


class CursorLost(EventStoreError):
    """The journal exists but cannot be continued from this cursor without skipping something."""

    def __init__(self, session_id: str, cursor: EntryId) -> None:
        super().__init__(session_id, cursor)
        self.session_id = session_id
        self.cursor = cursor


class JournalGap(CursorLost):
    """Entries after the cursor were trimmed; `first` is where the retained ones begin (at the earliest)."""

    def __init__(self, session_id: str, cursor: EntryId, first: EntryId) -> None:
        super().__init__(session_id, cursor)
        self.first = first

    def __str__(self) -> str:
        return (
            f"{self.session_id}: entries after {self.cursor} are trimmed, the journal begins at {self.first}"
        )


class JournalRolledBack(CursorLost):
    """
    The store lost the entry at the cursor; `last` is the newest entry before it that survived (START: none).

    After this the caller must drop every state past `last`, fold again and follow from there.
    """

    def __init__(self, session_id: str, cursor: EntryId, last: EntryId) -> None:
        super().__init__(session_id, cursor)
        self.last = last

    def __str__(self) -> str:
        return f"{self.session_id}: the entry at {self.cursor} is lost, the one before it is {self.last}"


class StoreUnavailable(EventStoreError):
    """The store did not answer, or refused for now. A write that raised this may or may not have happened."""


class StoreClosed(EventStoreError):
    """The store or the writer is closed."""
