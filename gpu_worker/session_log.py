"""
One session's journal, as the tasks of a worker share it: what is folded, whose it is, and how to append.

Nothing that is appended here counts before it is read back, so what another owner wrote first has always
been seen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum

from eventstore.errors import StoreClosed, StoreUnavailable
from eventstore.store import EventStore
from gpu_worker.context import ContextLedger
from gpu_worker.item_audio import ItemAudio
from gpu_worker.pulse import Pulse
from gpu_worker.settings import WorkerSettings
from gpu_worker.turn_audio import TurnAudio
from session_core.journal import Body, Role, Stamp, encode_entry
from session_core.reducer import reduce_bytes
from session_core.state import Phase, State


class Standing(Enum):
    """How a session's log stands to one worker's generation. WAITING: not assigned yet."""

    WAITING = "waiting"
    OURS = "ours"
    OVER = "over"


def standing(state: State, worker_id: str, generation: int) -> Standing:
    """Tell whether the session is this worker's, by the log alone."""
    hold = state.worker
    if state.phase is Phase.ENDED or hold.generation > generation:
        return Standing.OVER
    if hold.generation < generation:
        return Standing.WAITING
    return Standing.OURS if hold.worker == worker_id else Standing.OVER


class SessionLog:
    """
    The fold of one session's journal and the appends of one worker generation; lives as long as its runner.

    Args:
        ledger: folds what the model's context is built from.
        item_audio: folds which audio is to be transcribed.
        turn_audio: holds what turn detection listens to.

    Attributes:
        state: the fold.
        standing: whether the log says that the session is this worker's.
        pulse: fires when any of it has moved on.
        leaving: why the session is to be given to another worker; None while it is not.
    """

    def __init__(
        self,
        store: EventStore,
        settings: WorkerSettings,
        session_id: str,
        generation: int,
        *,
        ledger: ContextLedger,
        item_audio: ItemAudio,
        turn_audio: TurnAudio,
    ) -> None:
        self.session_id = session_id
        self.generation = generation
        self.ledger = ledger
        self.item_audio = item_audio
        self.turn_audio = turn_audio
        self.state = State()
        self.standing = Standing.WAITING
        self.pulse = Pulse()
        self.leaving: str | None = None
        self.silence_from_ms = 0
        """No silence stands in for input before; moves on while the store does not answer."""
        self._store = store
        self._settings = settings
        self._follower = store.follow(session_id)
        self._writer = store.writer(session_id)
        self._n = 0
        """Number of this generation's last append."""

    @property
    def goes_on(self) -> bool:
        """Whether this worker is to work on the session."""
        return self.standing is Standing.OURS and self.leaving is None

    def leave(self, reason: str) -> None:
        """Give the session up, so that another worker is assigned."""
        self.leaving = self.leaving or reason
        self.pulse.fire()

    def close(self) -> None:
        """Read and append no more."""
        self.standing = Standing.OVER
        self._follower.close()
        self._writer.close()

    # --- read -----------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Fold what comes, until cancelled."""
        ledger, item_audio, turn_audio = self.ledger, self.item_audio, self.turn_audio
        worker_id, generation = self._settings.worker_id, self.generation
        async for batch in self._follower:
            state = self.state
            for position, data in batch:
                reduction = reduce_bytes(state, position, data)
                state = reduction.state
                if reduction.changes:
                    ledger.take(reduction.changes, state)
                    if state.config.transcription is not None or not item_audio.is_idle:
                        item_audio.take(reduction.changes, state, ledger.input)
                    if state.config.turn_detection is not None:
                        turn_audio.hold(state, ledger.input)
            self.state = state
            self.standing = standing(state, worker_id, generation)
            self.pulse.fire()

    def now_ms(self) -> int:
        """The store's time."""
        return self._store.now_ms()

    @property
    def has_unread(self) -> bool:
        """Whether entries have arrived that are not folded."""
        return bool(self._follower.buffered_bytes)

    def silence_may_stand_in(self) -> bool:
        """
        Tell whether input that is missing counts as silence now.

        Not while something is unread, nor while the store does not answer, nor until what was kept back
        meanwhile had time to arrive.
        """
        if self.has_unread:
            return False
        now_ms = self._store.now_ms()
        if self._store.last_contact_s() >= self._settings.store_quiet_s:
            self.silence_from_ms = now_ms + self.state.pinned.profile.silence_grace_ms
        return now_ms >= self.silence_from_ms

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, body: Body) -> int:
        """Append as this generation, and give the entry's number; the fold tells what came of it."""
        self._writer.append(self._stamped(body))
        return self._n

    async def room(self) -> None:
        """Wait until the writer is not behind."""
        await self._writer.room()

    async def folded(self, n: int) -> None:
        """Wait until the fold has taken this generation's append `n`, or the generation is over."""
        while self.standing is Standing.OURS and self.state.worker.last_n < n:
            await self.pulse.wait()

    async def append_last(self, body: Body, *, stamped: bool) -> None:
        """
        Append the generation's last word and wait until it is in the journal; not for ever.

        Whoever looks after sessions without a worker is told at once: there may be no client to notice.
        """
        data = self._stamped(body) if stamped else encode_entry(body)
        with suppress(TimeoutError, StoreClosed, StoreUnavailable):
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self._writer.append(data)
                await self._store.schedule(self.session_id, self._store.now_ms())

    def _stamped(self, body: Body) -> bytes:
        self._n += 1
        return encode_entry(body, Stamp(Role.WORKER, self.generation, self._n))
