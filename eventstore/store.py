"""
The event store's contract: what gateways, workers and tools may ask of any back end.

A store holds one append-only journal of opaque bytes per session, and beside it what helps to find and run
sessions: snapshots, a directory, deadlines, heartbeats and slots. Only journals are truth; all the rest are
hints and caches.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from .commit import AppendTransport, GroupCommitter, JournalWriter
from .errors import StoreUnavailable
from .follow import Follower, JournalReader, ReadTransport
from .ids import START, EntryId, shard_of
from .options import StoreOptions, StoreStats
from .records import Entry, Process


class EventStore(ABC):
    """
    A connection to an event store; an async context manager that lives as long as its process (or test).

    Appending and following are the same machinery over every back end; the rest a back end answers
    directly. Any method may raise `StoreUnavailable`, except where it retries for ever: writers and
    followers. Everything that takes a session id raises `InvalidSessionId` for a string that is not one.
    """

    def __init__(self, options: StoreOptions | None = None) -> None:
        self.options = options or StoreOptions()
        self.stats = StoreStats()
        self._committer: GroupCommitter
        self._reader: JournalReader
        self._root: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """
        Connect and start.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        await self._open()
        # The one task without a group: it outlives this call, holds the group of all others, and
        # `__aexit__` awaits it.
        self._root = asyncio.create_task(self._run(), name=f"{type(self).__name__}.run")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """
        Stop: followers get `StoreClosed`, futures of unacknowledged appends are cancelled (`flush` first).
        """
        root, self._root = self._root, None
        if root is None:
            return
        root.cancel()
        await asyncio.wait({root})
        # Again here: a task that is cancelled before it ran at all has not even come to its `finally`.
        await self._shut()
        if not root.cancelled() and (error := root.exception()) is not None:
            raise error

    @property
    def pending_bytes(self) -> int:
        """Unacknowledged bytes of all writers together."""
        return self._committer.pending_bytes

    def writer(self, session_id: str) -> JournalWriter:
        """A new writer of ordered appends to a session's journal, which the first append creates."""
        shard_of(session_id)
        return self._committer.writer(session_id)

    async def append(self, session_id: str, data: bytes) -> EntryId:
        """
        Append one entry and wait for its id; retries until it is acknowledged or this call is cancelled.
        """
        writer = self.writer(session_id)
        try:
            return await writer.append(data)
        finally:
            writer.close()

    def follow(self, session_id: str, after: EntryId = START) -> Follower:
        """
        Follow a journal from a cursor on; from START the follower waits for a journal that does not exist.
        """
        shard_of(session_id)
        return self._reader.follow(session_id, after)

    @abstractmethod
    async def read(self, session_id: str, after: EntryId = START, limit: int = 256) -> list[Entry]:
        """
        The next entries after a cursor, at most `limit`; an empty list if there is nothing newer.

        Raises:
            UnknownSession: there is no such journal.
            JournalGap: an entry after the cursor was trimmed (so also: START, once anything was trimmed).
            The newest
                trimmed entry itself is still a good cursor.
        """

    @abstractmethod
    async def bounds(self, session_id: str) -> tuple[EntryId, EntryId] | None:
        """The first and the last retained entry; None if there is none."""

    @abstractmethod
    async def trim(self, session_id: str, before: EntryId) -> int:
        """Remove all entries older than `before`, exactly; returns how many."""

    @abstractmethod
    async def delete(self, session_id: str) -> None:
        """Remove journal, snapshots, directory entry and deadline; followers get `UnknownSession`."""

    @abstractmethod
    async def save_snapshot(self, session_id: str, at: EntryId, data: bytes) -> None:
        """Keep a snapshot of the state after the entry `at`; only the newest few are kept."""

    @abstractmethod
    async def load_snapshot(
        self, session_id: str, before: EntryId | None = None
    ) -> tuple[EntryId, bytes] | None:
        """The newest snapshot, or the newest at or before `before`; None if there is none."""

    @abstractmethod
    async def register(self, session_id: str) -> None:
        """Put a session into the directory, at the store's time; again changes nothing."""

    @abstractmethod
    async def sessions(self) -> list[str]:
        """The directory, oldest first."""

    @abstractmethod
    async def schedule(self, session_id: str, due_ms: int | None) -> None:
        """Set a session's next deadline in store time, or remove it (None)."""

    @abstractmethod
    async def due(self, now_ms: int, limit: int) -> list[str]:
        """Sessions whose deadline is at or before `now_ms`, the most overdue first."""

    @abstractmethod
    async def beat(self, process_id: str, info: bytes, ttl_ms: int) -> None:
        """
        A process's heartbeat: alive for `ttl_ms` from now.

        Raises:
            InvalidProcessId: as all methods that take a process id.
        """

    @abstractmethod
    async def processes(self) -> list[Process]:
        """Every process that has sent a heartbeat and was not forgotten, sorted by id."""

    @abstractmethod
    async def forget_process(self, process_id: str) -> bool:
        """
        Remove a process and its heartbeat, unless one of its slots is held: somebody sees to that one first.

        Returns:
            Whether it is forgotten.
        """

    @abstractmethod
    async def hold(self, process_id: str, member: str, capacity: int | None) -> bool:
        """
        Take a slot of a process; holding one that is held changes nothing.

        Args:
            process_id: whose slot.
            member: names the slot's use, e.g. `session:generation`.
            capacity: refuse if that many are held; None takes it in any case.

        Returns:
            Whether the slot is held now.
        """

    @abstractmethod
    async def release(self, process_id: str, member: str) -> None:
        """Free a slot; freeing one that is free changes nothing."""

    @abstractmethod
    async def held(self, process_id: str) -> dict[str, int]:
        """A process's slots: member -> store time in ms at which it was taken."""

    async def watch_holds(self, process_id: str) -> AsyncGenerator[dict[str, int], None]:
        """
        Yield a process's slots at once, then after every change and at least once a second.

        While the store does not answer it yields nothing. Close it when done.
        """
        changed = asyncio.Event()
        self._listen(process_id, changed.set)
        try:
            while True:
                changed.clear()
                with suppress(StoreUnavailable):
                    yield await self.held(process_id)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.options.sweep_s):
                        await changed.wait()
        finally:
            self._unlisten(process_id, changed.set)

    @abstractmethod
    def _listen(self, process_id: str, fire: Callable[[], None]) -> None:
        """Have `fire` called when a slot of the process was taken or freed; hints may be lost."""

    @abstractmethod
    def _unlisten(self, process_id: str, fire: Callable[[], None]) -> None:
        """Undo `_listen`."""

    @abstractmethod
    def now_ms(self) -> int:
        """Estimated store time in ms, carried on by this process's clock between answers; never goes back."""

    @abstractmethod
    def last_contact_s(self) -> float:
        """Seconds since the store last answered."""

    def _start(self, appends: AppendTransport, reads: ReadTransport) -> None:
        # Called once by a back end's constructor.
        self._committer = GroupCommitter(appends, self.options, self.stats)
        self._reader = JournalReader(reads, self.options, self.stats)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._committer.run(), name="eventstore.commit")
                tasks.create_task(self._reader.run(), name="eventstore.read")
                tasks.create_task(self._serve(), name="eventstore.serve")
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._committer.close()
        self._reader.close()
        await self._close()

    @abstractmethod
    async def _open(self) -> None:
        """Connect; raises `StoreUnavailable`. For back ends."""

    @abstractmethod
    async def _serve(self) -> None:
        """Whatever else runs as long as the store is open. For back ends."""

    @abstractmethod
    async def _close(self) -> None:
        """Give up connections; again changes nothing. For back ends."""
