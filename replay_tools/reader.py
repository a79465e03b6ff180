"""Journals as iterators: the entries of a store, and the steps of their fold."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import NamedTuple

from eventstore import START, Entry, EntryId, EventStore, JournalGap
from session_core.errors import UnreadableEntry
from session_core.fold import Fold, decode_snapshot
from session_core.journal import JournalEntry, Role, decode_entry
from session_core.reducer import TABLE, Reduction

from .errors import JournalCut

BATCH = 512
"""Entries per read."""


class Beginning(NamedTuple):
    """Where the fold of a journal begins: at its first entry, or at a snapshot if that entry was trimmed."""

    fold: Fold = Fold()
    cursor: EntryId = START


class Step(NamedTuple):
    """One entry, and what folding it did. `entry` is None for bytes that cannot be decoded."""

    number: int
    """Place among the entries that were read, from 1."""
    id: EntryId
    data: bytes
    entry: JournalEntry | None
    before: Fold
    after: Fold
    reduction: Reduction

    @property
    def refused(self) -> bool:
        """
        The fold moved past the entry and nothing else: wrong phase, or a writer out of office or out of turn.
        """
        if self.entry is None:
            return False
        rule, before, after = TABLE[type(self.entry.body)], self.before.state, self.after.state
        if rule.phase is not before.phase:
            return True
        if rule.role is None or self.reduction.changes:
            return False
        if rule.role is Role.CLIENT:
            return after.attachment.last_n == before.attachment.last_n
        return after.worker.last_n == before.worker.last_n


async def beginning(store: EventStore, session_id: str) -> Beginning:
    """
    Find where the fold of a session begins.

    Raises:
        UnknownSession: there is no such journal.
        JournalCut: its beginning is gone and no snapshot stands in for it.
    """
    try:
        await store.read(session_id, START, 1)
    except JournalGap as gap:
        saved = await store.load_snapshot(session_id)
        fold = decode_snapshot(saved[1]) if saved is not None else None
        # The newest trimmed entry is still a good cursor, so a snapshot just before the cut serves too.
        if saved is None or fold is None or not await _continues(store, session_id, saved[0]):
            raise JournalCut(session_id, gap.first) from gap
        return Beginning(fold, saved[0])
    return Beginning()


async def read_journal(
    store: EventStore, session_id: str, after: EntryId = START
) -> AsyncGenerator[Entry, None]:
    """
    Give a journal's entries up to its present end.

    Raises:
        UnknownSession, JournalGap: as `EventStore.read`.
    """
    while batch := await store.read(session_id, after, BATCH):
        for entry in batch:
            yield entry
        after = batch[-1].id


async def follow_journal(
    store: EventStore, session_id: str, after: EntryId = START
) -> AsyncGenerator[Entry, None]:
    """
    Give a journal's entries, and go on with what is appended, until the caller stops or the store closes.
    """
    follower = store.follow(session_id, after)
    try:
        async for batch in follower:
            for entry in batch:
                yield entry
    finally:
        follower.close()


async def read_steps(
    store: EventStore, session_id: str, start: Beginning | None = None, *, live: bool = False
) -> AsyncGenerator[Step, None]:
    """
    Fold a journal from its beginning, entry by entry; `live` goes on after its present end.

    Raises:
        UnknownSession: there is no such journal.
        JournalCut: its beginning is gone and no snapshot stands in for it.
    """
    fold, cursor = start or await beginning(store, session_id)
    entries = (follow_journal if live else read_journal)(store, session_id, cursor)
    number = 0
    async for entry in entries:
        number += 1
        step = fold_entry(fold, entry, number)
        yield step
        fold = step.after


def fold_steps(entries: Iterable[Entry], fold: Fold | None = None) -> Iterator[Step]:
    """The same over entries at hand."""
    fold = fold or Fold()
    for number, entry in enumerate(entries, 1):
        step = fold_entry(fold, entry, number)
        yield step
        fold = step.after


def fold_entry(before: Fold, entry: Entry, number: int) -> Step:
    """Fold one more entry. Never raises for what the entry holds."""
    after, reduction = before.step(entry.id, entry.data)
    try:
        decoded = decode_entry(entry.data)
    except UnreadableEntry:
        decoded = None
    return Step(number, entry.id, entry.data, decoded, before, after, reduction)


async def _continues(store: EventStore, session_id: str, cursor: EntryId) -> bool:
    try:
        await store.read(session_id, cursor, 1)
    except JournalGap:
        return False
    return True
