"""
The turn detection of a worker: one speech model, run off the event loop for all sessions that listen.

Work goes in rounds. A round takes of every session that has whole frames an equal share of them, and runs
them in one thread, frame by frame, each step one call of the model for all these sessions. What comes in
meanwhile waits for the next round, so that calls grow with the load, and an idle stage starts at once. A
session that sends minutes at a time gets its share of each round and delays nobody.

Edges are facts once they are in the journal; nothing here is asked again in a replay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
import structlog
from msgspec import Struct

from gpu_worker.audio import Pcm
from gpu_worker.pulse import Pulse
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.errors import DetectionFailed
from gpu_worker.turns.frames import FrameGrid
from gpu_worker.turns.segmenter import FrameClock, SegmenterState, SpeechEdge, advance
from gpu_worker.turns.settings import SETTLE_MS, DetectionSettings

_ROUND_FRAMES: Final = 256
"""Frames of a round, if there are not more sessions than that: some 8 ms of Silero on one core."""


class Hearing(Struct, frozen=True):
    """
    Where a session's detection begins. Of a new session all is 0; a new owner reads it from the journal.

    Attributes:
        first_sample: number of the first input sample that will be fed. A new owner goes back
            `DetectionSettings.lookback_ms` from the last sample before which no edge can be missing in the
            journal, or to 0 if there is less. In the first `SETTLE_MS` of that the model only settles.
        speaking: the journal says that speech has started and not stopped.
        decided_sample: where that speech began, else the commit point: edges before it are in the journal.
    """

    first_sample: int = 0
    speaking: bool = False
    decided_sample: int = 0


class _Ear:
    """What the model remembers of a session; belongs to the round that is running, if it takes part."""

    def __init__(self, model: SpeechModel, segments: SegmenterState) -> None:
        self.memory: Pcm = np.zeros(model.state_size, np.float32)
        self.segments = segments


class _Slice(NamedTuple):
    """One session's part of a round: frames [first, first + frames), and the input from the first one on."""

    turns: Turns
    ear: _Ear
    settings: DetectionSettings
    first: int
    frames: int
    pcm: Pcm


class Turns:
    """
    One session's turn detection, from `TurnDetectionStage.open` until `close`. Used from the event loop.

    Samples count input at the stage's rate from the session's start. Edges come in order.
    """

    def __init__(
        self,
        stage: TurnDetectionStage,
        settings: DetectionSettings,
        hearing: Hearing,
        news: Pulse | None = None,
    ) -> None:
        grid = stage.grid
        frame = grid.first_frame(hearing.first_sample)
        decided = grid.frame_from(hearing.decided_sample)
        if frame:
            settled = hearing.first_sample + stage.input_rate_hz * SETTLE_MS // 1000
            decided = max(decided, grid.frame_from(settled))
        self._stage = stage
        self._grid = grid
        self._ear = _Ear(stage.model, SegmenterState(frame, decided, hearing.speaking))
        self._frame = frame
        """The next frame to be judged."""
        self._settings = settings
        self._changes: deque[tuple[int, DetectionSettings]] = deque()
        """Settings that come into force, and the frame from which on."""
        self._fed_to = hearing.first_sample
        silence = max(0, -grid.begin(frame)) if hearing.first_sample == 0 else 0
        self._chunks: deque[Pcm] = deque([np.zeros(silence, np.float32)])
        self._held_from = hearing.first_sample - silence
        """Number of the first sample of `_chunks`."""
        self._edges: list[SpeechEdge] = []
        self._pulse = Pulse()
        self._news = news
        self._closed = False

    @property
    def fed_to(self) -> int:
        """Number of the sample that `feed` takes next."""
        return self._fed_to

    @property
    def complete_to(self) -> int:
        """Number of the first sample that no frame with an outcome holds."""
        return self._grid.input_sample(self._frame * self._grid.clock.frame_samples)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come, because of `close`."""
        return self._closed

    def feed(self, pcm: Pcm) -> None:
        """
        Give the input that follows, from sample `fed_to` on; returns at once.

        What is fed lies in memory until it was judged: who reads far ahead feeds a second at a time, and
        waits with `wait_until` for what lies further back.

        Args:
            pcm: float32 [samples] at the stage's input rate, any number; not written to by anyone from now
                on.

        Raises:
            DetectionFailed: this stage hears nobody any more.
        """
        self.check()
        if self._closed or not len(pcm):
            return
        self._chunks.append(pcm)
        self._fed_to += len(pcm)
        if self.due_frames:
            self._stage.wake(self)

    def update(self, settings: DetectionSettings) -> None:
        """Put other settings in force for the frames that cannot be made of what was fed so far."""
        self._changes.append((max(self._frame, self._grid.frames_before(self._fed_to)), settings))

    def take(self) -> list[SpeechEdge]:
        """Give the edges that were found since the last call."""
        edges, self._edges = self._edges, []
        return edges

    async def wait_edges(self) -> bool:
        """
        Wait for something to `take`, or for `close`. False where nothing will come.

        Raises:
            DetectionFailed: this stage hears nobody any more.
        """
        while not self._edges and not self._closed:
            self.check()
            await self._pulse.wait()
        return bool(self._edges)

    async def wait_until(self, sample: int) -> None:
        """
        Wait until every frame that can be made of the input before `sample` has its outcome, or for `close`.

        Input that is not fed yet is waited for. Up to one frame before `sample` stays undecided: waiting for
        it would hold a unit back by as much, to learn of an edge that needs some frames more in any case.

        Raises:
            DetectionFailed: this stage hears nobody any more.
        """
        frames = self._grid.frames_before(sample)
        while self._frame < frames and not self._closed:
            self.check()
            await self._pulse.wait()

    def close(self) -> None:
        """Listen no more. Whoever waits goes on; an edge that was not taken can still be."""
        self._closed = True
        self._chunks.clear()
        self._stage.forget(self)
        self._pulse.fire()

    # --- for the stage --------------------------------------------------------------------------------------

    @property
    def due_frames(self) -> int:
        """How many frames have all their input and no outcome."""
        return 0 if self._closed else self._grid.frames_before(self._fed_to) - self._frame

    def cut(self, share: int) -> _Slice:
        """Give the next frames, at most `share`, and one at least; all under the same settings."""
        while self._changes and self._changes[0][0] <= self._frame:
            self._settings = self._changes.popleft()[1]
        count = min(share, self.due_frames)
        if self._changes:
            count = min(count, self._changes[0][0] - self._frame)
        pcm = self._read(self._grid.begin(self._frame), self._grid.end(self._frame + count - 1))
        return _Slice(self, self._ear, self._settings, self._frame, count, pcm)

    def deliver(self, frames: int, edges: Sequence[SpeechEdge]) -> None:
        """Take what a round found in so many frames."""
        if not self._closed:
            self._frame += frames
            self._edges.extend(edges)
            self._pulse.fire()
            if edges and self._news is not None:
                self._news.fire()

    def tell(self) -> None:
        """Wake whoever waits, to see that the stage has failed."""
        self._pulse.fire()
        if self._news is not None:
            self._news.fire()

    def check(self) -> None:
        """
        See that the stage still hears.

        Raises:
            DetectionFailed: it hears nobody any more.
        """
        if self._stage.failure is not None:
            raise DetectionFailed(self._stage.failure)

    def _read(self, begin: int, end: int) -> Pcm:
        """Give the input [begin, end) and forget the chunks before it."""
        chunks = self._chunks
        while self._held_from + len(chunks[0]) <= begin:
            self._held_from += len(chunks.popleft())
        at, pieces = self._held_from, []
        for chunk in chunks:
            if at >= end:
                break
            pieces.append(chunk[max(0, begin - at) : end - at])
            at += len(chunk)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class TurnDetectionStage:
    """
    The sessions that listen in this worker, and the model that they share. Lives as long as `run`.

    Args:
        model: given up to this stage.
        input_rate_hz: rate of what sessions feed.
    """

    def __init__(self, model: SpeechModel, input_rate_hz: int) -> None:
        self.model = model
        self.input_rate_hz = input_rate_hz
        self.grid = FrameGrid(input_rate_hz, FrameClock(model.sample_rate_hz, model.frame_samples))
        self.failure: str | None = None
        """Why nobody is heard any more; None while all is well."""
        self._sessions: dict[Turns, None] = {}
        self._due: dict[Turns, None] = {}
        """Sessions with frames to judge."""
        self._work = asyncio.Event()

    def open(
        self, settings: DetectionSettings, hearing: Hearing | None = None, news: Pulse | None = None
    ) -> Turns:
        """
        Begin to listen to a session.

        Args:
            settings: how to listen, until `Turns.update`.
            hearing: where; None means from the session's first sample on.
            news: fires when there is an edge to take, or when the stage fails.

        Raises:
            DetectionFailed: this stage hears nobody any more.
        """
        if self.failure is not None:
            raise DetectionFailed(self.failure)
        turns = Turns(self, settings, hearing or Hearing(), news)
        self._sessions[turns] = None
        return turns

    async def run(self) -> None:
        """
        Work until cancelled. When it ends, however it does, every session's `Turns` raises from then on.

        Raises:
            DetectionFailed: the model broke.
        """
        executor = ThreadPoolExecutor(1, thread_name_prefix="turns")
        try:
            await self._run_rounds(executor)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            structlog.get_logger().error("turns.failed", model=self.model.name, exc_info=error)
            raise DetectionFailed(self.failure or "") from error
        finally:
            self._fail("the stage has ended")
            executor.shutdown(wait=False)

    # --- for Turns ------------------------------------------------------------------------------------------

    def wake(self, turns: Turns) -> None:
        """A session has frames to judge."""
        self._due[turns] = None
        self._work.set()

    def forget(self, turns: Turns) -> None:
        """A session listens no more."""
        self._sessions.pop(turns, None)
        self._due.pop(turns, None)

    # --- rounds ---------------------------------------------------------------------------------------------

    async def _run_rounds(self, executor: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            self._work.clear()
            while self._due:
                share = max(1, _ROUND_FRAMES // len(self._due))
                slices = [turns.cut(share) for turns in self._due]
                found = await loop.run_in_executor(executor, _judge, self.model, self.grid, slices)
                for part, edges in zip(slices, found, strict=True):
                    part.turns.deliver(part.frames, edges)
                self._due = {turns: None for turns in self._due if turns.due_frames}

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        for turns in tuple(self._sessions):
            turns.tell()


def _judge(model: SpeechModel, grid: FrameGrid, slices: Sequence[_Slice]) -> list[list[SpeechEdge]]:
    """Run a round, in the stage's thread: give each slice's edges."""
    found: list[list[SpeechEdge]] = [[] for _ in slices]
    for step in range(max(part.frames for part in slices)):
        taking = [(part, edges) for part, edges in zip(slices, found, strict=True) if part.frames > step]
        memories = np.stack([part.ear.memory for part, _ in taking])
        probabilities, memories = model.judge(memories, np.stack([_frame(grid, p, step) for p, _ in taking]))
        for (part, edges), probability, memory in zip(taking, probabilities.tolist(), memories, strict=True):
            part.ear.memory = memory.copy()  # a view would keep the whole round's array
            part.ear.segments, edge = advance(part.ear.segments, probability, part.settings, grid.clock)
            if edge is not None:
                edges.append(SpeechEdge(edge.kind, grid.input_sample(edge.sample)))
    return found


def _frame(grid: FrameGrid, part: _Slice, step: int) -> Pcm:
    frame = part.first + step
    at = grid.begin(part.first)
    return grid.make(frame, part.pcm[grid.begin(frame) - at : grid.end(frame) - at])
