"""Reading a journal up to its end, from the nearest snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from eventstore.errors import JournalGap
from eventstore.ids import START, EntryId
from eventstore.store import EventStore
from session_core import wire
from session_core.fold import Fold, decode_snapshot

READ_ENTRIES = 64


class Head(NamedTuple):
    """A fold and the last entry in it."""

    fold: Fold = Fold()
    cursor: EntryId = START


@dataclass(slots=True)
class Replay:
    """
    What a resuming client needs.

    Attributes:
        head: the newest state.
        sent: the newest state in which the client had everything; what comes after it has to be sent.
        cancelled: responses that were cancelled after `sent`.
    """

    head: Head
    sent: Head
    cancelled: set[str]


async def snapshot_head(store: EventStore, session_id: str, upto_seq: int | None = None) -> Head:
    """Give the newest usable snapshot, with nothing after event `upto_seq` in it, else the beginning."""
    before: EntryId | None = None
    while (found := await store.load_snapshot(session_id, before)) is not None:
        at, data = found
        fold = decode_snapshot(data)
        usable = fold is not None and (upto_seq is None or fold.state.seq <= upto_seq)
        if usable and fold is not None and await _stands(store, session_id, at):
            return Head(fold, at)
        before = _just_before(at)
    return Head()


async def _stands(store: EventStore, session_id: str, at: EntryId) -> bool:
    """Tell whether the journal holds the entry or trimmed it. What the store lost makes a snapshot void."""
    try:
        entries = await store.read(session_id, _just_before(at), 1)
    except JournalGap:
        return True
    return bool(entries) and entries[0].id == at


def _just_before(at: EntryId) -> EntryId:
    return EntryId(at.ms, at.seq - 1) if at.seq else EntryId(at.ms - 1, 2**63)


async def newest_head(store: EventStore, session_id: str, start: Head | None = None) -> Head:
    """
    Fold a journal up to its end.

    Args:
        store: where it lies.
        session_id: whose it is.
        start: from where on; None: from the newest snapshot.

    Raises:
        UnknownSession: there is no such journal.
        JournalGap: it cannot be folded, its beginning is trimmed and there is no snapshot.
        StoreUnavailable: no answer.
    """
    fold, cursor = await snapshot_head(store, session_id) if start is None else start
    while entries := await store.read(session_id, cursor, READ_ENTRIES):
        for entry in entries:
            fold, _ = fold.step(entry.id, entry.data)
        cursor = entries[-1].id
    return Head(fold, cursor)


async def replay(store: EventStore, session_id: str, received_seq: int) -> Replay:
    """
    Fold a journal up to its end and find from where on a client has to be sent events.

    Raises:
        UnknownSession, JournalGap, StoreUnavailable: as `newest_head`.
    """
    head = sent = await snapshot_head(store, session_id, received_seq)
    cancelled: set[str] = set()
    while entries := await store.read(session_id, head.cursor, READ_ENTRIES):
        for entry in entries:
            fold, reduction = head.fold.step(entry.id, entry.data)
            head = Head(fold, entry.id)
            if fold.state.seq <= received_seq:
                sent = head
            for event, _ in reduction.outbound:
                if isinstance(event, wire.ResponseDone) and event.response.status == "cancelled":
                    cancelled.add(event.response_id)
    return Replay(head, sent, cancelled)
