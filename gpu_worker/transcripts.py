"""
The transcripts of one session's user items: made beside everything else, and told in the order they are done.
"""

from __future__ import annotations

import asyncio

import numpy as np
import structlog

from gpu_worker.audio import Pcm
from gpu_worker.errors import TranscriptionFailed
from gpu_worker.item_audio import AudioRange
from gpu_worker.session_log import SessionLog
from gpu_worker.transcription import TranscriptionStage, Utterance
from session_core.audio import samples_to_ms
from session_core.events import InputTranscribed

_FAILED = "The audio could not be transcribed."
_TOO_LONG = "The audio is too long to be transcribed."


class Transcripts:
    """
    Lives as long as the worker serves the session. What a lost worker left undone, its successor does.

    Args:
        log: the session's.
        stage: the worker's transcription.
    """

    def __init__(self, log: SessionLog, stage: TranscriptionStage) -> None:
        self._log = log
        self._stage = stage

    async def make(self, item_id: str) -> None:
        """Append an item's transcript, or that there is none."""
        span, rate_hz = self._log.item_audio.find(item_id), self._log.ledger.input.rate_hz
        if span is None or span.first < self._log.ledger.input.forgotten:
            self._log.append(InputTranscribed(item_id, error=_TOO_LONG))
            return
        wanted = span.wanted

        async def utterance() -> Utterance:
            pcm = await self._read(span)
            return Utterance(pcm, rate_hz, wanted.model, wanted.language, wanted.prompt)

        try:
            text = await self._stage.transcribe(utterance)
        except TranscriptionFailed as failure:
            structlog.get_logger().warning(
                "transcription.failed", session_id=self._log.session_id, item_id=item_id, reason=str(failure)
            )
            self._log.append(InputTranscribed(item_id, error=_FAILED))
            return
        self._log.append(InputTranscribed(item_id, text, samples_to_ms(span.samples, rate_hz)))

    async def _read(self, span: AudioRange) -> Pcm:
        """Decode an item's audio a second at a time, so that no other session waits for a long one."""
        audio, end = self._log.ledger.input, span.first + span.samples
        pieces: list[Pcm] = [np.zeros(0, np.float32)]
        reader = audio.reader(span.first)
        try:
            for first in range(span.first, end, audio.rate_hz):
                pieces.append(reader.read(first, min(audio.rate_hz, end - first)))
                await asyncio.sleep(0)
        finally:
            reader.close()
        return np.concatenate(pieces)
