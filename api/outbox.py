"""
What a connection has to send: the live fold of its session's journal, and the send position behind it.

Two positions, one journal. The *live fold* takes every entry as soon as it is there, so that a takeover or an
end is seen at once, however slow the client reads. The *send position* is a state of the past: everything up
to it was handed to the socket. Between them lies a buffer of events; when that is full it is dropped, and the
sender reads and folds the journal again from the send position until it has caught up. A slow client costs
reading twice, never memory.

`replay` cannot differ from what was dropped: both are the fold of the same entries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import NamedTuple

from api.errors import ResumeFailed
from api.heads import Head
from api.stats import Stats
from eventstore.errors import CursorLost, JournalRolledBack, StoreClosed, StoreUnavailable, UnknownSession
from eventstore.records import Entry
from eventstore.store import EventStore
from session_core import wire
from session_core.reducer import Outbound
from session_core.state import Phase, State

_EVENT_BYTES = 1_000
"""About what an event takes beside its audio."""
_REREAD_ENTRIES = 16
_RETRY_S = 0.2


class Verdict(Enum):
    """Why a connection's hold on its session is over, as the journal says."""

    REFUSED = "refused"
    REPLACED = "replaced"
    DETACHED = "detached"
    ENDED = "ended"
    GAP = "journal_gap"
    ROLLBACK = "journal_rollback"


class _Due(NamedTuple):
    events: Sequence[wire.ServerEvent]
    size_bytes: int
    after: Head


class Due(NamedTuple):
    """An event to send. `discarded`: it is audio of a response that is cancelled by now."""

    event: wire.ServerEvent
    discarded: bool


class Outbox:
    """
    The outbound side of one attachment; lives as long as it. One task follows, one task sends.

    Attributes:
        live: the fold of everything read.
        welcome: the addressed event that answers the attachment, as soon as the journal has it.
        replaced: what to tell the client if another attachment took over.
    """

    def __init__(
        self,
        store: EventStore,
        session_id: str,
        attachment_id: str,
        *,
        stats: Stats,
        limit_bytes: int,
        live: Head | None = None,
        sent: Head | None = None,
        sent_seq: int = 0,
        cancelled: set[str] | None = None,
    ) -> None:
        self.live = live or Head()
        self.welcome: asyncio.Future[wire.AddressedEvent] = asyncio.get_running_loop().create_future()
        self.replaced: wire.SessionReplaced | None = None
        self.on_batch: Callable[[State], None] | None = None
        """Called after each batch of entries; must not block."""
        self.folded_entries = 0
        self._store = store
        self._session_id = session_id
        self._attachment_id = attachment_id
        self._stats = stats
        self._limit_bytes = limit_bytes
        self._sent = sent or self.live
        self._sent_seq = sent_seq
        self._cancelled = cancelled or set()
        """Responses whose cancel the live fold has passed and the sender has not."""
        self._pending: deque[_Due] = deque()
        self._pending_bytes = 0
        self._lagging = self._sent.cursor != self.live.cursor
        """The buffer is not in use: the sender reads the journal again."""
        self._verdict: Verdict | None = None
        self._news = asyncio.Event()

    @property
    def state(self) -> State:
        """The newest state."""
        return self.live.fold.state

    @property
    def pending_bytes(self) -> int:
        """What the buffer holds, at most its limit."""
        return self._pending_bytes

    @property
    def lagging(self) -> bool:
        """Whether the sender is behind and reads the journal again."""
        return self._lagging

    # --- the live fold --------------------------------------------------------------------------------------

    async def follow(self) -> Verdict:
        """Fold the journal as it grows, until it says that this attachment is over."""
        follower = self._store.follow(self._session_id, self.live.cursor)
        self._stats.followers += 1
        try:
            async for entries in follower:
                self._verdict = self._fold(entries)
                if self._pending or self._lagging:
                    self._news.set()
                if self._verdict is not None:
                    return self._verdict
                if self.on_batch is not None:
                    self.on_batch(self.state)
        except JournalRolledBack:
            self._verdict = Verdict.ROLLBACK
        except (CursorLost, UnknownSession):
            self._verdict = Verdict.GAP
        except StoreClosed:
            self._verdict = Verdict.DETACHED
        finally:
            follower.close()
            self._stats.followers -= 1
            self._news.set()
        return self._verdict or Verdict.DETACHED

    def _fold(self, entries: Sequence[Entry]) -> Verdict | None:
        fold = self.live.fold
        for entry in entries:
            fold, reduction = fold.step(entry.id, entry.data)
            self.live = Head(fold, entry.id)
            self.folded_entries += 1
            if reduction.outbound:
                self._take(reduction.outbound)
            elif not self._pending and not self._lagging:
                self._sent = self.live
            verdict = self._judge(fold.state)
            if verdict is not None:
                return verdict
        return None

    def _take(self, outbound: Sequence[Outbound]) -> None:
        events: list[wire.ServerEvent] = []
        size_bytes = 0
        for event, attachment_id in outbound:
            if attachment_id is not None:
                if attachment_id == self._attachment_id:
                    self._addressed(event)
                continue
            events.append(event)
            size_bytes += _size_bytes(event)
            if isinstance(event, wire.ResponseDone) and event.response.status == "cancelled":
                self._cancelled.add(event.response_id)
        if not events or self._lagging:
            return
        if self._pending_bytes + size_bytes > self._limit_bytes:
            self._lag()
            return
        self._pending.append(_Due(events, size_bytes, self.live))
        self._count(size_bytes)

    def _addressed(self, event: wire.ServerEvent) -> None:
        match event:
            case wire.SessionCreated() | wire.SessionResumed() if not self.welcome.done():
                self.welcome.set_result(event)
            case wire.ResumeRefused() if not self.welcome.done():
                self.welcome.set_exception(ResumeFailed(event.error.code, event.error.message))
            case wire.SessionReplaced():
                self.replaced = event
            case _:
                pass

    def _judge(self, state: State) -> Verdict | None:
        """Tell whether the attachment is over. Before the journal has it, only an end can end it."""
        held = state.attachment
        if state.phase is Phase.ENDED:
            if not self.welcome.done():
                self.welcome.set_exception(ResumeFailed("session_resume_expired", "The session has ended."))
            return Verdict.ENDED
        if not self.welcome.done():
            return None
        if held.attachment_id != self._attachment_id:
            return Verdict.REPLACED if self.replaced is not None else Verdict.REFUSED
        return None if held.attached else Verdict.DETACHED

    def _lag(self) -> None:
        self._lagging = True
        self._pending.clear()
        self._count(-self._pending_bytes)
        self._stats.lagged += 1

    def _count(self, size_bytes: int) -> None:
        self._pending_bytes += size_bytes
        self._stats.pending_bytes += size_bytes

    # --- the send position ----------------------------------------------------------------------------------

    async def due(self) -> AsyncIterator[Due]:
        """
        Give every event to send, in order, once; ends when the session has ended and all is given out.

        Asking for the next event says that the last one was sent.

        Raises:
            CursorLost, UnknownSession: the journal was trimmed or lost behind a sender that lags.
        """
        while True:
            if self._lagging:
                async for due in self._reread():
                    yield due
            elif self._pending:
                events, size_bytes, after = self._pending[0]
                for event in events:
                    if event.server_event_seq > self._sent_seq:  # type: ignore[operator]
                        yield self._next(event)
                if not self._lagging:
                    # Otherwise the buffer was dropped meanwhile, this entry included.
                    self._pending.popleft()
                    self._count(-size_bytes)
                    self._sent = after if self._pending else self.live
            elif self._verdict is not None:
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def _reread(self) -> AsyncIterator[Due]:
        fold, cursor = self._sent
        try:
            entries = await self._store.read(self._session_id, cursor, _REREAD_ENTRIES)
        except StoreUnavailable:
            entries = []
        if not entries:
            # No answer, or the store lost what the live fold has read: then the follower will say so.
            await asyncio.sleep(_RETRY_S)
        for entry in entries:
            if entry.id > self.live.cursor:
                break
            fold, reduction = fold.step(entry.id, entry.data)
            for event, attachment_id in reduction.outbound:
                if attachment_id is None and event.server_event_seq > self._sent_seq:  # type: ignore[operator]
                    yield self._next(event)
            self._sent = Head(fold, entry.id)
        if self._sent.cursor >= self.live.cursor:
            self._lagging = False

    def _next(self, event: wire.ServerEvent) -> Due:
        """Hand out one event. It counts as sent from here on: no other is asked for before it is."""
        self._sent_seq = event.server_event_seq  # type: ignore[assignment]
        if not self._cancelled:
            return Due(event, False)
        match event:
            case wire.AudioDelta():
                return Due(event, event.response_id in self._cancelled)
            case wire.ResponseDone():
                self._cancelled.discard(event.response_id)
        return Due(event, False)

    def close(self) -> None:
        """Give up what is pending."""
        self._pending.clear()
        self._count(-self._pending_bytes)
        if self.welcome.done() and not self.welcome.cancelled():
            self.welcome.exception()  # Retrieved, whether or not anybody still waited for it.
        else:
            self.welcome.cancel()


def _size_bytes(event: wire.ServerEvent) -> int:
    return _EVENT_BYTES + len(event.delta) * 4 // 3 if isinstance(event, wire.AudioDelta) else _EVENT_BYTES
