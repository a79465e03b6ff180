# ruff: noqa: D102 - the contract's docstrings stand in EventStore and the transports' in their protocols
"""
The event store in memory: for tests and tools, with faults on demand.

A `MemoryServer` stands for the server; the stores of several "processes" share one. Appending and following
run through the same machinery as over Redis; only the transport is a method call.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from .commit import Ack, Group
from .errors import JournalGap, StoreUnavailable, UnknownSession
from .follow import Fetched, Standing, Want
from .ids import START, EntryId, process_keys, shard_of
from .options import StoreOptions
from .records import Entry, Process
from .store import EventStore

_entry_id = attrgetter("id")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Journal:
    entries: list[Entry] = field(default_factory=list)
    last: EntryId = START
    """The newest id ever given; ids go on from it even when the clock does not."""
    floor: EntryId = START
    """The newest trimmed entry."""

    def append(self, data: bytes, now_ms: int) -> EntryId:
        self.last = EntryId(now_ms, 0) if now_ms > self.last.ms else self.last.next()
        self.entries.append(Entry(self.last, data))
        return self.last

    def after(self, cursor: EntryId, limit: int) -> list[Entry]:
        first = bisect_right(self.entries, cursor, key=_entry_id)
        return self.entries[first : first + limit]

    def newest_up_to(self, position: EntryId) -> EntryId:
        end = bisect_right(self.entries, position, key=_entry_id)
        return self.entries[end - 1].id if end else START

    def trim(self, before: EntryId) -> int:
        end = bisect_left(self.entries, before, key=_entry_id)
        if end:
            self.floor = self.entries[end - 1].id
            del self.entries[:end]
        return end


@dataclass(slots=True)
class _Heartbeat:
    info: bytes
    expires_ms: int


class MemoryServer:
    """What a server would hold. Lives as long as the test or tool that made it; for one event loop."""

    def __init__(self, clock_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self.clock_ms = clock_ms
        self.available = True
        """False: every call fails with `StoreUnavailable`, as if the server were down."""
        self.losing_hints = False
        """True: no hint reaches anyone; the sweep has to find the entries."""
        self.journals: dict[str, _Journal] = {}
        self.snapshots: dict[str, dict[EntryId, bytes]] = {}
        self.directory: dict[str, int] = {}
        self.deadlines: dict[str, int] = {}
        self.heartbeats: dict[str, _Heartbeat] = {}
        self.slots: dict[str, dict[str, int]] = {}
        self.listeners: dict[str, list[Callable[[], None]]] = {}
        """Called back on each hint, by session or process id."""
        self.restarts = 0

    def check(self) -> None:
        """Raises `StoreUnavailable` while the server is down."""
        if not self.available:
            raise StoreUnavailable("the memory server is down")

    def restart(self) -> None:
        """Come (back) up, with every reader's connection lost."""
        self.available = True
        self.restarts += 1

    def lose_tail(self, session_id: str, after: EntryId) -> None:
        """Lose acknowledged entries after a position, as a crash may under `relaxed`; call `restart` next."""
        journal = self.journals[session_id]
        del journal.entries[bisect_right(journal.entries, after, key=_entry_id) :]
        journal.last = after

    def hint(self, name: str) -> None:
        """Announce a change of a session's journal or a process's slots."""
        if not self.losing_hints:
            for listener in list(self.listeners.get(name, ())):
                listener()


class _Transport:
    """Appends and reads of one store; lives as long as it."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._restarts = server.restarts

    async def append_groups(self, groups: Sequence[Group]) -> Sequence[Ack]:
        await asyncio.sleep(0)
        self._server.check()
        acks = []
        for session_id, payloads in groups:
            journal = self._server.journals.setdefault(session_id, _Journal())
            acks.append(Ack([journal.append(data, self._server.clock_ms()) for data in payloads]))
            self._server.hint(session_id)
        return acks

    async def connect(self) -> None:
        self._server.check()
        self._restarts = self._server.restarts

    async def fetch(self, wants: Sequence[Want], limit: int) -> Sequence[Fetched]:
        await self._check()
        journals = [self._server.journals.get(want.session_id, _Journal()) for want in wants]
        return [Fetched(j.after(want.after, limit), j.floor) for j, want in zip(journals, wants, strict=True)]

    async def standings(self, wants: Sequence[Want]) -> Sequence[Standing]:
        await self._check()
        return [self._standing(want) for want in wants]

    async def existing(self, session_ids: Sequence[str]) -> Sequence[bool]:
        await self._check()
        return [session_id in self._server.journals for session_id in session_ids]

    async def sample_time(self) -> None:
        await self._check()

    def listen(self, session_id: str, on_hint: Callable[[], None]) -> None:
        self._server.listeners.setdefault(session_id, []).append(on_hint)

    def unlisten(self, session_id: str, on_hint: Callable[[], None]) -> None:
        listeners = self._server.listeners[session_id]
        listeners.remove(on_hint)
        if not listeners:
            del self._server.listeners[session_id]

    def _standing(self, want: Want) -> Standing:
        journal = self._server.journals.get(want.session_id)
        if journal is None:
            return Standing(False, START, START)
        return Standing(True, journal.newest_up_to(want.after), journal.floor)

    async def _check(self) -> None:
        # Yields, as a real connection would: others run between a reader's calls.
        await asyncio.sleep(0)
        self._server.check()
        if self._restarts != self._server.restarts:
            raise StoreUnavailable("the memory server was restarted")


class MemoryEventStore(EventStore):
    """
    One process's store on a `MemoryServer` (its own if none is given).

    Does not coalesce unless `options` say so.
    """

    def __init__(self, server: MemoryServer | None = None, options: StoreOptions | None = None) -> None:
        super().__init__(options or StoreOptions(append_coalesce_s=0, read_coalesce_s=0))
        self.server = server or MemoryServer()
        self._transport = _Transport(self.server)
        self._now_ms = 0
        self._contact_s = time.monotonic()
        self._start(self._transport, self._transport)

    async def read(self, session_id: str, after: EntryId = START, limit: int = 256) -> list[Entry]:
        journal = self._journal(session_id)
        if journal is None:
            raise UnknownSession(session_id)
        entries = journal.after(after, limit)
        if after < journal.floor:
            raise JournalGap(session_id, after, entries[0].id if entries else journal.floor.next())
        return entries

    async def bounds(self, session_id: str) -> tuple[EntryId, EntryId] | None:
        journal = self._journal(session_id)
        if journal is None or not journal.entries:
            return None
        return journal.entries[0].id, journal.entries[-1].id

    async def trim(self, session_id: str, before: EntryId) -> int:
        journal = self._journal(session_id)
        return journal.trim(before) if journal is not None else 0

    async def delete(self, session_id: str) -> None:
        self._check_session(session_id)
        self.server.journals.pop(session_id, None)
        self.server.snapshots.pop(session_id, None)
        self.server.directory.pop(session_id, None)
        self.server.deadlines.pop(session_id, None)

    async def save_snapshot(self, session_id: str, at: EntryId, data: bytes) -> None:
        self._check_session(session_id)
        snapshots = self.server.snapshots.setdefault(session_id, {})
        snapshots[at] = data
        for old in sorted(snapshots)[: -self.options.snapshots_kept]:
            del snapshots[old]

    async def load_snapshot(
        self, session_id: str, before: EntryId | None = None
    ) -> tuple[EntryId, bytes] | None:
        self._check_session(session_id)
        snapshots = self.server.snapshots.get(session_id, {})
        at = max((at for at in snapshots if before is None or at <= before), default=None)
        return None if at is None else (at, snapshots[at])

    async def register(self, session_id: str) -> None:
        self._check_session(session_id)
        self.server.directory.setdefault(session_id, self.server.clock_ms())

    async def sessions(self) -> list[str]:
        self.server.check()
        return sorted(self.server.directory, key=self.server.directory.__getitem__)

    async def schedule(self, session_id: str, due_ms: int | None) -> None:
        self._check_session(session_id)
        if due_ms is None:
            self.server.deadlines.pop(session_id, None)
        else:
            self.server.deadlines[session_id] = due_ms

    async def due(self, now_ms: int, limit: int) -> list[str]:
        self.server.check()
        passed = [
            (due_ms, session_id) for session_id, due_ms in self.server.deadlines.items() if due_ms <= now_ms
        ]
        return [session_id for _, session_id in sorted(passed)[:limit]]

    async def beat(self, process_id: str, info: bytes, ttl_ms: int) -> None:
        self._check_process(process_id)
        self.server.heartbeats[process_id] = _Heartbeat(info, self.server.clock_ms() + ttl_ms)

    async def processes(self) -> list[Process]:
        self.server.check()
        now_ms = self.server.clock_ms()
        return [
            Process(name, beat.info, beat.expires_ms > now_ms)
            for name, beat in sorted(self.server.heartbeats.items())
        ]

    async def forget_process(self, process_id: str) -> bool:
        self._check_process(process_id)
        if self.server.slots.get(process_id):
            return False
        self.server.heartbeats.pop(process_id, None)
        self.server.hint(process_id)
        return True

    async def hold(self, process_id: str, member: str, capacity: int | None) -> bool:
        self._check_process(process_id)
        slots = self.server.slots.setdefault(process_id, {})
        if member in slots:
            return True
        if capacity is not None and len(slots) >= capacity:
            return False
        slots[member] = self.server.clock_ms()
        self.server.hint(process_id)
        return True

    async def release(self, process_id: str, member: str) -> None:
        self._check_process(process_id)
        if self.server.slots.get(process_id, {}).pop(member, None) is not None:
            self.server.hint(process_id)

    async def held(self, process_id: str) -> dict[str, int]:
        self._check_process(process_id)
        return dict(self.server.slots.get(process_id, {}))

    def _listen(self, process_id: str, fire: Callable[[], None]) -> None:
        process_keys(process_id)
        self._transport.listen(process_id, fire)

    def _unlisten(self, process_id: str, fire: Callable[[], None]) -> None:
        self._transport.unlisten(process_id, fire)

    def now_ms(self) -> int:
        self._now_ms = max(self._now_ms, self.server.clock_ms())
        return self._now_ms

    def last_contact_s(self) -> float:
        if self.server.available:
            self._contact_s = time.monotonic()
        return time.monotonic() - self._contact_s

    async def _open(self) -> None:
        self.server.check()

    async def _serve(self) -> None:
        # Nothing runs beside appending and following.
        return

    async def _close(self) -> None:
        # There is no connection.
        return

    def _journal(self, session_id: str) -> _Journal | None:
        self._check_session(session_id)
        return self.server.journals.get(session_id)

    def _check_session(self, session_id: str) -> None:
        shard_of(session_id)
        self.server.check()

    def _check_process(self, process_id: str) -> None:
        process_keys(process_id)
        self.server.check()
