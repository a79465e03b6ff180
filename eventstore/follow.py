"""
Following journals: one reader per process behind any number of followers.

The reader's cost follows the entries: hints name the sessions that changed, and one read covers only those,
at once when idle and a few milliseconds apart under load. Hints may be lost, so a slow sweep reads every
followed session. Positions are explicit entry ids, so nothing is skipped or read twice over reconnects. A
follower whose buffer is full is not read
for: it lags on its position and costs nothing until it has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from .backoff import Backoff
from .errors import (
    EventStoreError,
    JournalGap,
    JournalRolledBack,
    StoreClosed,
    StoreUnavailable,
    UnknownSession,
)
from .ids import START, EntryId
from .options import StoreOptions, StoreStats
from .records import Entry


class Want(NamedTuple):
    """What to read: entries of a session after a position."""

    session_id: str
    after: EntryId


class Fetched(NamedTuple):
    """What was read for a `Want`."""

    entries: Sequence[Entry]
    floor: EntryId
    """The newest trimmed entry, asked for after the entries were read; START if none was."""


class Standing(NamedTuple):
    """How a journal stands to a position."""

    exists: bool
    newest: EntryId
    """The newest retained entry at or before the position; START if there is none."""
    floor: EntryId
    """The newest trimmed entry; START if none was."""


class ReadTransport(Protocol):
    """
    How the multiplexed reader reaches the store.

    Every call raises `StoreUnavailable` when the connection is lost, and goes on so until the next `connect`.
    """

    async def connect(self) -> None:
        """(Re)connect; raises `StoreUnavailable`."""
        ...

    async def fetch(self, wants: Sequence[Want], limit: int) -> Sequence[Fetched]:
        """Read at most `limit` entries for each want, without blocking. No two wants are equal."""
        ...

    async def standings(self, wants: Sequence[Want]) -> Sequence[Standing]:
        """How each journal stands to its position."""
        ...

    async def existing(self, session_ids: Sequence[str]) -> Sequence[bool]:
        """Whether each journal exists."""
        ...

    async def sample_time(self) -> None:
        """Ask the store for its time."""
        ...

    def listen(self, session_id: str, on_hint: Callable[[], None]) -> None:
        """Call back on each hint of a session, and whenever hints may have been missed."""
        ...

    def unlisten(self, session_id: str, on_hint: Callable[[], None]) -> None:
        """Undo `listen`."""
        ...


class _Feed:
    """What the reader has read for one follower and the follower has not yet handed out."""

    def __init__(self, session_id: str, after: EntryId, limit_bytes: int) -> None:
        self.session_id = session_id
        self.position = after
        """The last entry read."""
        self.buffer: list[Entry] = []
        self.buffered_bytes = 0
        self.error: EventStoreError | None = None
        """Why nothing more will come; raised when the buffer is empty."""
        self.closed = False
        self.changed = asyncio.Event()
        self._limit_bytes = limit_bytes

    @property
    def is_full(self) -> bool:
        """Whether to stop reading until the follower has handed out what is buffered."""
        return self.buffered_bytes >= self._limit_bytes

    def put(self, entries: Sequence[Entry]) -> None:
        self.buffer += entries
        self.buffered_bytes += sum([len(entry.data) for entry in entries])
        self.position = entries[-1].id
        self.changed.set()

    def take(self) -> list[Entry]:
        batch, self.buffer = self.buffer, []
        self.buffered_bytes = 0
        return batch

    def fail(self, error: EventStoreError) -> None:
        if self.error is None:
            self.error = error
            if isinstance(error, JournalRolledBack):
                self.buffer = [entry for entry in self.buffer if entry.id <= error.last]
            self.changed.set()

    def check(self, standing: Standing) -> EventStoreError | None:
        """
        Whether the store lost what the position stands on; a gap is found by reading, which sees its end.
        """
        if not standing.exists:
            return None if self.position == START else UnknownSession(self.session_id)
        if self.position <= standing.floor or self.position in (START, standing.newest):
            return None
        return JournalRolledBack(self.session_id, self.position, max(standing.newest, standing.floor))


class Follower:
    """
    Reads one journal from a cursor on, and goes on with what is appended; lives until `close` or an error.

    An async iterator of non-empty batches, for one consumer: every entry once, in order, without gaps. A
    cancelled iteration loses nothing: the next one goes on where the last batch ended.
    """

    def __init__(self, feed: _Feed, reader: JournalReader) -> None:
        self.cursor = feed.position
        """The last entry handed out."""
        self._feed = feed
        self._reader = reader

    @property
    def session_id(self) -> str:
        """Whose journal is followed."""
        return self._feed.session_id

    @property
    def buffered_bytes(self) -> int:
        """Payload bytes read but not yet handed out."""
        return self._feed.buffered_bytes

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> list[Entry]:
        """
        The next entries, at least one.

        Raises:
            JournalGap: entries after the cursor were trimmed before they were read.
            JournalRolledBack: the store lost the last entry that was read.
            UnknownSession: the cursor is not START, and there is no such journal (any more).
            StoreClosed: the store was closed.
        """
        feed = self._feed
        while not feed.buffer:
            if feed.closed:
                raise StopAsyncIteration
            if feed.error is not None:
                raise feed.error
            feed.changed.clear()
            await feed.changed.wait()
        was_full = feed.is_full
        batch = feed.take()
        self.cursor = batch[-1].id
        if was_full:
            self._reader.mark(feed.session_id)
        return batch

    def close(self) -> None:
        """Stop following; a waiting iteration ends. Again changes nothing."""
        self._feed.closed = True
        self._feed.buffer.clear()
        self._feed.changed.set()
        self._reader.remove(self._feed)


class JournalReader:
    """The one reader of a process, behind all its followers. Lives as long as the store."""

    def __init__(self, transport: ReadTransport, options: StoreOptions, stats: StoreStats) -> None:
        self.options = options
        self._transport = transport
        self._stats = stats
        self._feeds: dict[str, list[_Feed]] = {}
        self._hints: dict[str, Callable[[], None]] = {}
        self._unchecked: list[_Feed] = []
        """Feeds whose position is to be checked before anything is read for them."""
        self._changed: dict[str, None] = {}
        """Sessions to read, the longest waiting first."""
        self._sweeping: dict[str, None] = {}
        """Sessions that the sweep has still to read: they fill up reads of what changed, never delay it."""
        self._wake = asyncio.Event()
        self._sweep_at_s = 0.0
        self._time_at_s = 0.0
        self.closed = False

    def follow(self, session_id: str, after: EntryId) -> Follower:
        """
        A new follower; the caller closes it.

        Raises:
            StoreClosed: the store is closed.
        """
        if self.closed:
            raise StoreClosed
        feed = _Feed(session_id, after, self.options.follower_buffer_bytes)
        if session_id not in self._feeds:
            self._feeds[session_id] = []
            self._hints[session_id] = partial(self._hinted, session_id)
            self._transport.listen(session_id, self._hints[session_id])
        self._feeds[session_id].append(feed)
        self._unchecked.append(feed)
        self.mark(session_id)
        return Follower(feed, self)

    def remove(self, feed: _Feed) -> None:
        """Stop reading for a follower; again changes nothing."""
        session_id = feed.session_id
        feeds = self._feeds.get(session_id, [])
        if feed in feeds:
            feeds.remove(feed)
            if not feeds:
                del self._feeds[session_id]
                self._changed.pop(session_id, None)
                self._sweeping.pop(session_id, None)
                self._transport.unlisten(session_id, self._hints.pop(session_id))

    def mark(self, session_id: str) -> None:
        """A session may have something to read."""
        if session_id in self._feeds:
            self._changed[session_id] = None
            self._wake.set()

    def close(self) -> None:
        """Fail every follower with `StoreClosed`."""
        self.closed = True
        for feed in self._all_feeds():
            self._drop(feed, StoreClosed(feed.session_id))

    async def run(self) -> None:
        """Read until cancelled, reconnecting for ever."""
        backoff = Backoff(self.options.backoff_min_s, self.options.backoff_max_s)
        while True:
            try:
                await self._transport.connect()
                self._stats.reader_connects += 1
                # The server may have come back without entries that it had acknowledged.
                self._unchecked = self._all_feeds()
                self._sweep_at_s = self._time_at_s = 0.0
                await self._serve(backoff)
            except StoreUnavailable:
                await asyncio.sleep(backoff.next_s())

    async def _serve(self, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        read_at_s = 0.0
        while True:
            now_s = loop.time()
            if now_s >= self._time_at_s:
                await self._transport.sample_time()
                backoff.reset()
                self._time_at_s = now_s + self.options.keepalive_s
            if now_s >= self._sweep_at_s:
                await self._sweep()
                self._sweep_at_s = now_s + self.options.sweep_s
            if not self._changed and not self._sweeping:
                await self._idle(min(self._time_at_s, self._sweep_at_s))
                continue
            if (wait_s := read_at_s + self.options.read_coalesce_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            read_at_s = loop.time()
            await self._check_positions()
            await self._read()

    async def _idle(self, until_s: float) -> None:
        self._wake.clear()
        timer = asyncio.get_running_loop().call_at(until_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _sweep(self) -> None:
        self._stats.sweeps += 1
        started = [f.session_id for f in self._all_feeds() if f.position != START]
        session_ids = list(dict.fromkeys(started))
        for first in range(0, len(session_ids), self.options.read_sessions):
            chunk = session_ids[first : first + self.options.read_sessions]
            for session_id, exists in zip(chunk, await self._transport.existing(chunk), strict=True):
                if not exists:
                    self._journal_gone(session_id)
        self._sweeping = dict.fromkeys(self._feeds)

    def _journal_gone(self, session_id: str) -> None:
        for feed in list(self._feeds.get(session_id, [])):
            if feed.position != START:
                self._drop(feed, UnknownSession(session_id))

    async def _check_positions(self) -> None:
        while self._unchecked:
            chunk = [f for f in self._unchecked[: self.options.read_sessions] if not f.closed]
            wants = [Want(f.session_id, f.position) for f in chunk]
            standings = await self._transport.standings(wants) if wants else []
            del self._unchecked[: self.options.read_sessions]
            for feed, standing in zip(chunk, standings, strict=True):
                if (error := feed.check(standing)) is not None:
                    self._drop(feed, error)

    async def _read(self) -> None:
        readers: dict[Want, list[_Feed]] = {}
        for session_id in self._next_sessions():
            for feed in self._feeds[session_id]:
                if not feed.is_full:
                    readers.setdefault(Want(session_id, feed.position), []).append(feed)
        if not readers:
            return
        wants = list(readers)
        fetched = await self._transport.fetch(wants, self.options.read_entries)
        self._stats.reads += 1
        self._stats.read_positions += len(wants)
        for want, (entries, floor) in zip(wants, fetched, strict=True):
            self._stats.read_entries += len(entries)
            for feed in readers[want]:
                self._deliver(feed, want, entries, floor)
            if len(entries) >= self.options.read_entries:
                self.mark(want.session_id)

    def _next_sessions(self) -> list[str]:
        chosen: list[str] = []
        for waiting in (self._changed, self._sweeping):
            while waiting and len(chosen) < self.options.read_sessions:
                session_id = next(iter(waiting))
                del waiting[session_id]
                self._sweeping.pop(session_id, None)
                chosen.append(session_id)
        return chosen

    def _deliver(self, feed: _Feed, want: Want, entries: Sequence[Entry], floor: EntryId) -> None:
        if feed.closed:
            return
        if want.after < floor:
            # The floor was read after the entries: what was trimmed may have been missing among them.
            first = entries[0].id if entries else floor.next()
            self._drop(feed, JournalGap(want.session_id, want.after, first))
        elif entries:
            feed.put(entries)

    def _drop(self, feed: _Feed, error: EventStoreError) -> None:
        feed.fail(error)
        self.remove(feed)

    def _hinted(self, session_id: str) -> None:
        self._stats.hints += 1
        self.mark(session_id)

    def _all_feeds(self) -> list[_Feed]:
        return [feed for feeds in self._feeds.values() for feed in feeds]
