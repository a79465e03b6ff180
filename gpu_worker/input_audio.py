"""
A session's input as the model hears it: kept as the client's bytes, decoded late to the model's rate.

Samples carry the numbers of the session core: `received_samples(rate)` of the folded input says how many
there are, and exactly these can be read, however the bytes were cut. Where the rates differ, the converter
needs input from after a sample to make it; instead of waiting for it, which would make a unit depend on when
it is taken, the model hears such input a constant moment later: 40 samples of the lower rate, 5 ms at most,
with silence before it. Equal rates shift nothing. At a format change the last such moment of the audio before
it is cut off.

So a sample is a pure function of the journal, and reading may begin anywhere.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from gpu_worker.audio import Decoder, Pcm, Resampler, samples_within
from session_core.audio import AudioFormat

_CHUNK_BYTES = 1 << 15
"""Decoded at once: one append may hold minutes of audio, of which a unit wants 80 ms."""
_MARGIN_MS = 20
"""Input kept before the oldest sample that may be read: twice what any converter looks back."""


class _Chunk(NamedTuple):
    """Bytes of one entry; `first` counts from the start of the segment, at the client's rate."""

    first: int
    data: bytes


class _Segment:
    """Input in one format, from `first_sample` at the model's rate on, until the next segment begins."""

    def __init__(self, audio_format: AudioFormat, first_sample: int, rate_hz: int) -> None:
        self.format = audio_format
        self.first_sample = first_sample
        self.received = 0
        """Samples at the client's rate."""
        self.chunks: deque[_Chunk] = deque()
        self.dropped = 0
        """Chunks forgotten: the number of the first that is held."""
        source_hz = audio_format.sample_rate_hz
        delay = Resampler(source_hz, rate_hz).delay_samples
        self.shift = samples_within(delay, source_hz, rate_hz)
        """Samples at the model's rate by which this input is heard late."""

    def take(self, data: bytes) -> None:
        if len(data) <= _CHUNK_BYTES:
            self._append(data)
            return
        for start in range(0, len(data), _CHUNK_BYTES):
            self._append(data[start : start + _CHUNK_BYTES])

    def _append(self, data: bytes) -> None:
        if data:
            self.chunks.append(_Chunk(self.received, data))
            self.received += self.format.samples(len(data))

    def drop_before(self, first: int) -> None:
        """Forget whole chunks before sample `first`, at the client's rate."""
        chunks, size = self.chunks, self.format.sample_bytes
        while chunks and chunks[0].first + len(chunks[0].data) // size <= first:
            chunks.popleft()
            self.dropped += 1

    def chunk_number(self, sample: int) -> int:
        """
        Number of the chunk that holds a sample at the client's rate, or of the next one to come.

        Raises:
            LookupError: the sample is forgotten.
        """
        if sample < (self.chunks[0].first if self.chunks else self.received):
            raise LookupError(f"input sample {sample} is no longer held")
        later = sum(1 for _ in takewhile(lambda chunk: chunk.first > sample, reversed(self.chunks)))
        is_to_come = sample >= self.received
        return self.dropped + len(self.chunks) - later - (0 if is_to_come else 1)


class _Reading:
    """One pass over a segment, from sample `first` at the model's rate on."""

    def __init__(self, segment: _Segment, first: int, rate_hz: int) -> None:
        self.segment = segment
        wanted = first - segment.first_sample - segment.shift
        self._decoder = Decoder(
            segment.format.encoding, segment.format.sample_rate_hz, rate_hz, first_sample=max(0, wanted)
        )
        self._silence = max(0, -wanted)
        self._next = segment.chunk_number(self._decoder.position)

    def next(self) -> Pcm | None:
        """Give what the next chunk adds; None if there is none."""
        if self._silence:
            silence, self._silence = np.zeros(self._silence, np.float32), 0
            return silence
        segment = self.segment
        if self._next - segment.dropped >= len(segment.chunks):
            return None
        chunk = segment.chunks[self._next - segment.dropped]
        self._next += 1
        skipped = (self._decoder.position - chunk.first) * segment.format.sample_bytes
        return self._decoder.feed(chunk.data[skipped:] if skipped else chunk.data)


class InputAudio:
    """
    The input of one session, from the first byte: what its readers may still read, as the client sent it.

    Args:
        rate_hz: the model's rate, that of all samples here but where it says otherwise.
        audio_format: the client's format at the start.
    """

    def __init__(self, rate_hz: int, audio_format: AudioFormat) -> None:
        self.rate_hz = rate_hz
        self.segments = deque([_Segment(audio_format, 0, rate_hz)])
        self.forgotten = 0
        """Samples before this one cannot be read any more."""
        self._readers: list[InputReader] = []

    @property
    def format(self) -> AudioFormat:
        """The client's format in force."""
        return self.segments[-1].format

    def take(self, data: bytes) -> None:
        """Take the next bytes: whole samples in the format in force."""
        self.segments[-1].take(data)

    def switch(self, audio_format: AudioFormat, first_sample: int) -> None:
        """Put another format in force for what comes from sample `first_sample` on."""
        self.segments.append(_Segment(audio_format, first_sample, self.rate_hz))

    def reader(self, first: int = 0) -> InputReader:
        """Give one more reader; all input from `first` on, as far as it is still there, is held for it."""
        reader = InputReader(self, max(first, self.forgotten))
        self._readers.append(reader)
        return reader

    def drop_reader(self, reader: InputReader) -> None:
        """Hold nothing more for a reader."""
        self._readers.remove(reader)
        self.forget()

    def forget(self) -> None:
        """Give up what no reader needs."""
        before = min((reader.needs_from for reader in self._readers), default=self.forgotten)
        if before <= self.forgotten:
            return
        self.forgotten = before
        segments = self.segments
        while len(segments) > 1 and segments[1].first_sample <= before:
            segments.popleft()
        segment = segments[0]
        source_hz = segment.format.sample_rate_hz
        first = (before - segment.first_sample - segment.shift) * source_hz // self.rate_hz
        segment.drop_before(first - source_hz * _MARGIN_MS // 1000)

    def following(self, segment: _Segment) -> _Segment | None:
        """Give the segment after one; one that is forgotten stands before all that are held."""
        segments = list(self.segments)
        after = segments.index(segment) + 1 if segment in segments else 0
        return segments[after] if after < len(segments) else None


class InputReader:
    """
    One who reads a session's input in order; from `InputAudio.reader` until `close`.

    Attributes:
        needs_from: samples before this one are not held for this reader.
    """

    def __init__(self, audio: InputAudio, first: int) -> None:
        self.needs_from = first
        self._audio = audio
        self._reading: _Reading | None = None
        self._ahead: Pcm = np.zeros(0, np.float32)
        """Decoded and not yet read; begins at `_at`."""
        self._at = 0
        self._newest = audio.segments[-1]

    def read(self, first: int, count: int) -> Pcm:
        """
        Give samples [first, first + count): received, and not forgotten.

        Cheap where it goes on from the last call; anywhere else the converter starts anew.

        Returns:
            float32 [count]; not to be written to.

        Raises:
            AudioFormatError: the bytes are no audio in their format.
            LookupError: they were never received, or are forgotten.
        """
        self._cut_at_switch()
        if first != self._at or self._reading is None:
            self._seek(first)
        ahead = self._ahead
        if len(ahead) < count:
            pieces, have = [ahead], len(ahead)
            while have < count:
                piece = self._more(first + have)
                pieces.append(piece)
                have += len(piece)
            ahead = np.concatenate(pieces) if len(ahead) or len(pieces) > 2 else pieces[1]
        self._ahead = ahead[count:]
        self._at = first + count
        return ahead[:count]

    def forget(self, before: int) -> None:
        """Need no sample before `before` any more."""
        if before > self.needs_from:
            self.needs_from = before
            self._audio.forget()

    def close(self) -> None:
        """Read no more."""
        self._audio.drop_reader(self)

    def _cut_at_switch(self) -> None:
        """Drop what was decoded ahead beyond the place where another format came into force since."""
        newest = self._audio.segments[-1]
        if newest is self._newest:
            return
        self._newest = newest
        following = None if self._reading is None else self._audio.following(self._reading.segment)
        if following is not None:
            self._ahead = self._ahead[: max(0, following.first_sample - self._at)]

    def _seek(self, first: int) -> None:
        segments = self._audio.segments
        segment = segments[0]
        for candidate in segments:
            if candidate.first_sample <= first:
                segment = candidate
        self._reading = _Reading(segment, first, self._audio.rate_hz)
        self._ahead = np.zeros(0, np.float32)
        self._at = first

    def _more(self, at: int) -> Pcm:
        """Decode one chunk further; `at` is the number of the first sample that it gives."""
        assert self._reading is not None
        following = self._audio.following(self._reading.segment)
        if following is not None and at >= following.first_sample:
            self._reading = _Reading(following, following.first_sample, self._audio.rate_hz)
            following = self._audio.following(following)
        piece = self._reading.next()
        if piece is None:
            raise LookupError(f"input sample {at} was not received")
        return piece if following is None else piece[: following.first_sample - at]
