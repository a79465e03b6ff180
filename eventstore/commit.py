"""
Appending: ordered writers, and the group commit behind all of them.

Everything that was queued, over all sessions, while one pipeline is in flight goes out in the next. An
entry leaves its writer's queue only when it is acknowledged; after a failure or an unknown outcome the
writer therefore sends again from its first unacknowledged entry, in order. So a journal gets each writer's
entries at least once and in order, and the reader's fold removes what came twice by the number that each
payload carries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from .backoff import Backoff
from .errors import EntryTooLarge, StoreClosed, StoreUnavailable
from .ids import EntryId
from .options import StoreOptions, StoreStats


class Group(NamedTuple):
    """Consecutive entries of one writer inside one pipeline."""

    session_id: str
    payloads: Sequence[bytes]


class Ack(NamedTuple):
    """What became of a group."""

    ids: Sequence[EntryId]
    """Of the entries that are in the journal, up to the first that was refused."""
    refused: Exception | None = None
    """Why the entry after those was refused; None if none was."""


class AppendTransport(Protocol):
    """How a pipeline reaches the store."""

    async def append_groups(self, groups: Sequence[Group]) -> Sequence[Ack]:
        """
        Append all groups and return one acknowledgement each.

        Raises:
            StoreUnavailable: the outcome of all of them is unknown.
        """
        ...


class _Pending(NamedTuple):
    data: bytes
    acknowledged: asyncio.Future[EntryId]


class _Queue:
    """One writer's unacknowledged entries, the oldest first."""

    def __init__(self, session_id: str, options: StoreOptions) -> None:
        self.session_id = session_id
        self.size_bytes = 0
        self.queued = 0
        """Entries ever put in."""
        self.backoff = Backoff(options.backoff_min_s, options.backoff_max_s)
        """Waiting times while the store refuses the first entry."""
        self.closed = False
        self._pending: deque[_Pending] = deque()
        # Asked for once, not for each entry: finding the running loop is a system call before Python 3.12.
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def settled(self) -> int:
        """Entries ever acknowledged."""
        return self.queued - len(self._pending)

    def put(self, data: bytes) -> asyncio.Future[EntryId]:
        acknowledged: asyncio.Future[EntryId] = self._loop.create_future()
        self._pending.append(_Pending(data, acknowledged))
        self.size_bytes += len(data)
        self.queued += 1
        return acknowledged

    def head(self, limit_bytes: int) -> list[bytes]:
        """The first entries up to a size; the very first whatever its size."""
        total_bytes = 0
        payloads: list[bytes] = []
        for pending in self._pending:
            total_bytes += len(pending.data)
            if payloads and total_bytes > limit_bytes:
                break
            payloads.append(pending.data)
        return payloads

    def settle(self, ids: Sequence[EntryId]) -> int:
        """Acknowledge the first entries; returns their size in bytes. A queue closed meanwhile has none."""
        settled_bytes = 0
        for entry_id in islice(ids, len(self._pending)):
            data, acknowledged = self._pending.popleft()
            settled_bytes += len(data)
            if not acknowledged.done():
                acknowledged.set_result(entry_id)
        self.size_bytes -= settled_bytes
        return settled_bytes

    def close(self) -> None:
        """Drop what is pending and cancel its futures."""
        self.closed = True
        for pending in self._pending:
            pending.acknowledged.cancel()
        self._pending.clear()
        self.size_bytes = 0


class JournalWriter:
    """
    One writer's ordered appends to one journal; lives until `close`.

    Retries for ever until closed and never drops. Several writers of a session have no order between them.
    """

    def __init__(self, queue: _Queue, committer: GroupCommitter) -> None:
        self._queue = queue
        self._committer = committer

    @property
    def session_id(self) -> str:
        """Whose journal is written."""
        return self._queue.session_id

    @property
    def pending_bytes(self) -> int:
        """Bytes queued or in flight, not yet acknowledged."""
        return self._queue.size_bytes

    @property
    def has_room(self) -> bool:
        """Whether this writer and the whole store are under their limits of pending bytes."""
        options = self._committer.options
        return (
            self._queue.size_bytes < options.writer_pending_bytes
            and self._committer.pending_bytes < options.store_pending_bytes
        )

    def append(self, data: bytes) -> asyncio.Future[EntryId]:
        """
        Queue an entry behind this writer's earlier ones. Never waits, and is not bounded: await `room` first.

        Returns:
            A future that gets the entry's id when it is acknowledged. Cancelling it does not take the entry
            back.

        Raises:
            EntryTooLarge: over the limit for one entry; nothing was queued.
            StoreClosed: the writer or the store is closed.
        """
        if self._queue.closed:
            raise StoreClosed(self.session_id)
        if len(data) > self._committer.options.entry_bytes:
            raise EntryTooLarge(len(data), self._committer.options.entry_bytes)
        acknowledged = self._queue.put(data)
        self._committer.queued(self._queue, len(data))
        return acknowledged

    async def room(self) -> None:
        """
        Wait until `has_room`.

        Raises:
            StoreClosed: closed before that.
        """
        while not self._queue.closed and not self.has_room:
            await self._committer.progress()
        if self._queue.closed:
            raise StoreClosed(self.session_id)

    async def flush(self) -> None:
        """
        Wait until everything appended before this call is acknowledged.

        Raises:
            StoreClosed: closed before that.
        """
        target = self._queue.queued
        while not self._queue.closed and self._queue.settled < target:
            await self._committer.progress()
        if self._queue.closed:
            raise StoreClosed(self.session_id)

    def close(self) -> None:
        """Drop what is pending (what is in flight may still arrive) and cancel its futures."""
        self._committer.close_queue(self._queue)


class GroupCommitter:
    """Sends what all writers of a store have queued, one pipeline at a time. Lives as long as the store."""

    def __init__(self, transport: AppendTransport, options: StoreOptions, stats: StoreStats) -> None:
        self.options = options
        self.pending_bytes = 0
        """Unacknowledged bytes of all writers together."""
        self._transport = transport
        self._stats = stats
        self._open: set[_Queue] = set()
        self._ready: dict[_Queue, None] = {}
        """Queues with something to send, the longest waiting first."""
        self._retries: dict[_Queue, asyncio.TimerHandle] = {}
        """Queues whose first entry the store refuses; each is ready again when its timer fires."""
        self._wake = asyncio.Event()
        self._progress: asyncio.Future[None] | None = None
        self._closed = False

    def writer(self, session_id: str) -> JournalWriter:
        """
        A new writer; the caller closes it.

        Raises:
            StoreClosed: the store is closed.
        """
        if self._closed:
            raise StoreClosed
        queue = _Queue(session_id, self.options)
        self._open.add(queue)
        return JournalWriter(queue, self)

    def queued(self, queue: _Queue, size_bytes: int) -> None:
        """A queue has one entry more."""
        self.pending_bytes += size_bytes
        if queue not in self._retries:
            self._ready[queue] = None
            self._wake.set()

    def close_queue(self, queue: _Queue) -> None:
        """Drop what a queue holds; again changes nothing."""
        self.pending_bytes -= queue.size_bytes
        queue.close()
        self._open.discard(queue)
        self._ready.pop(queue, None)
        if (timer := self._retries.pop(queue, None)) is not None:
            timer.cancel()
        self._notify()

    async def progress(self) -> None:
        """Wait until pending entries were acknowledged or dropped."""
        if self._progress is None:
            self._progress = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._progress)

    def close(self) -> None:
        """Close every writer."""
        self._closed = True
        for queue in list(self._open):
            self.close_queue(queue)

    async def run(self) -> None:
        """Commit until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self.options.backoff_min_s, self.options.backoff_max_s)
        not_before_s = 0.0
        while True:
            await self._wake.wait()
            if (wait_s := not_before_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            not_before_s = loop.time() + self.options.append_coalesce_s
            queues, groups = self._take()
            try:
                acks = await self._transport.append_groups(groups) if groups else []
            except StoreUnavailable:
                self._stats.append_failures += 1
                self._make_ready(queues)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._settle(queues, acks)

    def _take(self) -> tuple[list[_Queue], list[Group]]:
        room_bytes = self.options.pipeline_bytes
        queues: list[_Queue] = []
        groups: list[Group] = []
        while self._ready and room_bytes > 0:
            queue = next(iter(self._ready))
            del self._ready[queue]
            payloads = queue.head(room_bytes)
            room_bytes -= sum(map(len, payloads))
            queues.append(queue)
            groups.append(Group(queue.session_id, payloads))
        if not self._ready:
            self._wake.clear()
        return queues, groups

    def _settle(self, queues: Sequence[_Queue], acks: Sequence[Ack]) -> None:
        self._stats.append_pipelines += bool(queues)
        loop = asyncio.get_running_loop()
        for queue, (ids, refused) in zip(queues, acks, strict=True):
            self.pending_bytes -= queue.settle(ids)
            self._stats.appended_entries += len(ids)
            if ids:
                queue.backoff.reset()
            if refused is not None and not queue.closed:
                self._stats.append_failures += 1
                self._ready.pop(queue, None)
                self._retries[queue] = loop.call_later(queue.backoff.next_s(), self._retry, queue)
            else:
                self._make_ready([queue])
        self._notify()

    def _retry(self, queue: _Queue) -> None:
        del self._retries[queue]
        self._make_ready([queue])

    def _make_ready(self, queues: Sequence[_Queue]) -> None:
        for queue in queues:
            if queue:
                self._ready[queue] = None
                self._wake.set()

    def _notify(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None
