"""
One session's turn detection: feeds its input to the worker's stage, and appends the speech that was found.

Input that is missing counts as silence here as well, at the pace of time: a client that goes mute in the
middle of its speech is heard to stop. Such silence has no number in the input; a stop in it is told as the
end of the input.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import numpy as np
import structlog
from msgspec.structs import replace

from gpu_worker.input_audio import InputReader
from gpu_worker.session_log import SessionLog
from gpu_worker.turn_audio import hearing
from gpu_worker.turns.errors import DetectionFailed
from gpu_worker.turns.segmenter import SpeechEdge
from gpu_worker.turns.service import TurnDetectionService
from gpu_worker.turns.stage import Turns
from session_core.config import TurnDetection
from session_core.derive import input_until_ms, ms_to_samples, received_samples
from session_core.events import SpeechStarted, SpeechStopped

_SILENCE_MS: Final = 80
"""Silence stands in by so much at once."""
_MOST_GAPS: Final = 8
"""An edge lies a second or two back; silence that stood in before that only shifts the count."""
_RETRY_S: Final = 0.25
"""How soon missing input is looked at again while the store does not answer."""


class _Gap(NamedTuple):
    """Silence that stood in for input: samples [heard, heard + samples) of what was fed."""

    heard: int
    samples: int


class HeardInput:
    """Maps what was fed to the stage to the input: the same, but for silence that stood in."""

    def __init__(self) -> None:
        self._gaps: deque[_Gap] = deque()
        self._before = 0
        """Samples of the gaps that are no longer held apart."""
        self.silence = 0
        """All samples that stood in."""

    def add_silence(self, heard: int, samples: int) -> None:
        """Note silence at a place of what was fed."""
        self.silence += samples
        gaps = self._gaps
        if gaps and gaps[-1].heard + gaps[-1].samples == heard:
            heard, samples = gaps[-1].heard, gaps.pop().samples + samples
        gaps.append(_Gap(heard, samples))
        if len(gaps) > _MOST_GAPS:
            self._before += gaps.popleft().samples

    def input_sample(self, heard: int) -> int:
        """Give the input's number of a place in what was fed; within silence that of the input after it."""
        shift = self._before
        for gap in self._gaps:
            if heard <= gap.heard:
                break
            shift += min(gap.samples, heard - gap.heard)
        return heard - shift


class Listener:
    """
    Listens to one session while its client wants turn detection; lives as long as `run`.

    Args:
        log: the session's.
        service: the worker's turn detection.
    """

    def __init__(self, log: SessionLog, service: TurnDetectionService) -> None:
        self._log = log
        self._service = service
        self._reader: InputReader | None = None
        self._turns: Turns | None = None
        self._wanted: TurnDetection | None = None
        self._lookback_ms = 0
        self._logger = structlog.get_logger().bind(session_id=log.session_id, generation=log.generation)
        self._fed_to = 0
        """Input before this was fed."""
        self._heard = HeardInput()
        self._silence_ms = 0
        """Silence that stood in since the last input."""
        self._speaking = False
        """By the last edge that was appended."""
        self._last_n = 0
        """Number of that append."""

    async def run(self, _: str = "") -> None:
        """
        Listen, whenever the client wants it, until cancelled.

        Raises:
            DetectionFailed: there is no turn detection in this worker any more.
        """
        try:
            while True:
                turns = await self._open()
                try:
                    await self._listen(turns)
                except DetectionFailed as failure:
                    self._logger.warning("turns.lost", reason=failure.reason)
                finally:
                    self._close()
                if self._log.state.config.turn_detection is None:
                    self._end_speech()
        finally:
            self._log.turn_audio.close()

    async def heard(self, sample: int) -> None:
        """
        Wait until all speech before an input sample is found, and its facts are folded, where it is wanted.

        Args:
            sample: number of the first input sample that does not matter; received already.
        """
        while self._log.state.config.turn_detection is not None and self._log.goes_on:
            turns = self._turns
            try:
                if turns is not None:
                    while self._turns is turns and self._fed_to < sample:
                        await self._feed_some(turns)
                    await turns.wait_until(min(turns.fed_to, sample + self._heard.silence))
                    self._tell(turns)
                if turns is not None and not turns.closed:
                    break
            except DetectionFailed:
                self._turns = None
            await self._log.pulse.wait(_RETRY_S)
        await self._log.folded(self._last_n)

    async def _open(self) -> Turns:
        while (wanted := self._log.state.config.turn_detection) is None:
            await self._log.pulse.wait()
        reader = self._reader = self._log.turn_audio.open(self._log.ledger.input)
        state, settings = self._log.state, self._log.turn_audio.settings(wanted)
        begin = hearing(state, settings)
        begin = replace(begin, first_sample=max(begin.first_sample, reader.needs_from))
        turns = await self._service.open(settings, begin, self._log.pulse)
        self._fed_to, self._heard, self._silence_ms = begin.first_sample, HeardInput(), 0
        self._speaking, self._wanted, self._lookback_ms = begin.speaking, wanted, settings.lookback_ms
        self._turns = turns
        self._log.pulse.fire()
        return turns

    async def _listen(self, turns: Turns) -> None:
        """Listen as long as the client wants it, and the stage and the fold agree on who speaks."""
        log = self._log
        while (state := log.state).config.turn_detection is not None and not self._is_out_of_step():
            turns.check()
            self._tell(turns)
            self._follow_settings(turns, state.config.turn_detection)
            if self._fed_to < received_samples(state):
                await self._feed_some(turns)
                continue
            due_ms = self._silence_due_ms()
            if due_ms is None:
                await log.pulse.wait()
            elif log.silence_may_stand_in() and log.now_ms() >= due_ms:
                self._feed_silence(turns)
                await asyncio.sleep(0)
            else:
                wait_s = (due_ms - log.now_ms()) / 1000
                await log.pulse.wait(wait_s if wait_s > 0 else _RETRY_S)

    def _end_speech(self) -> None:
        """Nobody listens any more: speech that is not over ends here, for the client, too."""
        state = self._log.state
        if self._log.goes_on and state.input.speech_from is not None:
            self._last_n = self._log.append(SpeechStopped(received_samples(state)))
        self._log.turn_audio.close()

    def _close(self) -> None:
        if self._turns is not None:
            self._turns.close()
            self._turns = None

    # --- feed -----------------------------------------------------------------------------------------------

    def _is_out_of_step(self) -> bool:
        """
        Tell whether the fold knows nothing of the speech that the stage hears.

        That is so when the client cleared the input, or when the speech began before a commit. What goes on
        is speech anew.
        """
        state = self._log.state
        settled = state.worker.last_n >= self._last_n
        return settled and self._speaking and state.input.speech_from is None

    def _follow_settings(self, turns: Turns, wanted: TurnDetection | None) -> None:
        if wanted is not None and wanted != self._wanted:
            settings = self._log.turn_audio.settings(wanted)
            self._wanted, self._lookback_ms = wanted, settings.lookback_ms
            turns.update(settings)

    async def _feed_some(self, turns: Turns) -> None:
        """Feed what there is, a second at most; more waits until that was judged."""
        received = received_samples(self._log.state)
        count = min(received - self._fed_to, self._log.ledger.input.rate_hz)
        assert self._reader is not None  # held while there are turns
        turns.feed(self._reader.read(self._fed_to, count))
        self._fed_to += count
        self._silence_ms = 0
        self._reader.forget(self._fed_to - ms_to_samples(self._log.state, self._lookback_ms))
        if self._fed_to < received:
            await turns.wait_until(turns.fed_to)

    def _silence_due_ms(self) -> int | None:
        """Give the store's time at which silence stands in; None while nobody speaks."""
        state = self._log.state
        if state.input.speech_from is None:
            return None
        from_ms = input_until_ms(state) + state.pinned.profile.silence_grace_ms
        return max(from_ms, self._log.silence_from_ms) + self._silence_ms

    def _feed_silence(self, turns: Turns) -> None:
        samples = ms_to_samples(self._log.state, _SILENCE_MS)
        self._heard.add_silence(turns.fed_to, samples)
        self._silence_ms += _SILENCE_MS
        turns.feed(np.zeros(samples, np.float32))

    # --- tell -----------------------------------------------------------------------------------------------

    def _tell(self, turns: Turns) -> None:
        for edge in turns.take():
            self._append(edge)

    def _append(self, edge: SpeechEdge) -> None:
        fact = SpeechStarted if edge.kind == "started" else SpeechStopped
        self._speaking = edge.kind == "started"
        self._last_n = self._log.append(fact(self._heard.input_sample(edge.sample)))
