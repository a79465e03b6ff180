"""
Hears where speech starts and stops, by energy alone.

The detector works on frames of 10 ms that are numbered from sample 0 of the stream. Every decision depends
on whole frames in order, so the same samples give the same edges however they are cut into chunks, and a
detector that is resumed from an exported state goes on bit for bit. A replay therefore hears what the live
session heard.

How it decides: a frame is loud when its level, without its DC part, is `threshold_db` above a floor that
follows the background (it falls fast to what is quieter and rises slowly), and above an absolute minimum.
Enough loud frames close together start speech; while speech lasts a lower threshold keeps it up; enough
quiet ones stop it.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

FRAMES_PER_S = 100

# The floor's limits: digital silence must not make faint hiss count as speech, and a stream that begins in
# the middle of a word must not take that word for background.
_FLOOR_LOWEST_DBFS = -70.0
_FLOOR_FIRST_HIGHEST_DBFS = -45.0
_FLOOR_FALL = 0.25
"""Part of the way down to a quieter frame that the floor goes in one frame."""
_FLOOR_RISE_DB = 0.2
"""Rise a frame under sound that is not speech: 20 dB/s."""
_FLOOR_RISE_IN_SPEECH_DB = 0.02
"""Rise a frame under speech, 2 dB/s: slow against a sentence, but a fan switched on is got used to."""
_KEEP_DB = 4.0
"""How far below the starting threshold a frame may be and still keep speech up."""
_POWER_LEAST = 1e-12


class Edge(NamedTuple):
    """
    A place where speech starts or stops.

    `sample` counts from the start of the stream. "started": the first sample of the speech, with the prefix
    before it. "stopped": the first sample after the last frame of the speech.
    """

    kind: Literal["started", "stopped"]
    sample: int


class HearingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How a detector listens; fixed for its life.

    Attributes:
        sample_rate_hz: rate of the stream. A frame is sample_rate_hz // 100 samples.
        threshold_db: how far above the background floor a frame counts as speech.
        minimum_dbfs: what is quieter than this (RMS against full scale 1) is never speech.
        min_speech_ms: loud time that starts speech; shorter sounds, as clicks, are ignored.
        hangover_ms: pause within which loud frames count together towards `min_speech_ms`.
        silence_ms: quiet time that stops speech.
        prefix_ms: how far before the first loud frame speech is said to start: consonants begin softly.
    """

    sample_rate_hz: int
    threshold_db: float = 12.0
    minimum_dbfs: float = -45.0
    min_speech_ms: int = 60
    hangover_ms: int = 40
    silence_ms: int = 400
    prefix_ms: int = 30


class HearingState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    All that a detector knows between two calls: some 2 kB at most, and nothing else is needed to go on.

    Attributes:
        settings: those of the detector.
        frames: whole frames heard so far; also the number of the next one.
        floor_dbfs: level of the background; None before the first frame.
        speaking: speech has started and not stopped.
        speech_end_frame: the frame after the last loud one of the present or last speech; 0 before any.
        loud_start_frame: first frame of the sounds that may become speech; None while there are none.
        loud_end_frame: the frame after the last loud one of these.
        loud_frames: how many of these are loud.
        rest: the samples after the last whole frame, float32 little-endian.
    """

    settings: HearingSettings
    frames: int = 0
    floor_dbfs: float | None = None
    speaking: bool = False
    speech_end_frame: int = 0
    loud_start_frame: int | None = None
    loud_end_frame: int = 0
    loud_frames: int = 0
    rest: bytes = b""


class SpeechDetector:
    """
    Hears one stream of mono audio, as long as it lasts; `state` and `resume` carry it across owners.

    Args:
        settings: what it listens for and at which rate.
    """

    _rest: NDArray[np.float32]

    def __init__(self, settings: HearingSettings) -> None:
        self._restore(HearingState(settings))

    @classmethod
    def resume(cls, state: HearingState) -> SpeechDetector:
        """Returns a detector that goes on exactly where `state` was taken."""
        detector = cls(state.settings)
        detector._restore(state)
        return detector

    def state(self) -> HearingState:
        """Returns all that this detector knows, as a value."""
        return HearingState(
            settings=self._settings,
            frames=self._frames,
            floor_dbfs=self._floor_dbfs,
            speaking=self._speaking,
            speech_end_frame=self._speech_end_frame,
            loud_start_frame=self._loud_start_frame,
            loud_end_frame=self._loud_end_frame,
            loud_frames=self._loud_frames,
            rest=self._rest.astype("<f4", copy=False).tobytes(),
        )

    @property
    def speaking(self) -> bool:
        """Whether speech has started and not stopped."""
        return self._speaking

    @property
    def silence_samples(self) -> int:
        """
        How many samples of whole frames lie after the last frame of speech; all of them before any speech.
        """
        return (self._frames - self._speech_end_frame) * self._frame_samples

    def feed(self, pcm: NDArray[np.float32]) -> list[Edge]:
        """
        Hears the next samples.

        Args:
            pcm: float32 [samples] at the detector's rate; any number of samples, also none.

        Returns:
            The edges that became certain, in order. A start is certain `min_speech_ms` after it, a stop
            `silence_ms` after it.
        """
        heard = np.concatenate((self._rest, pcm))
        whole = len(heard) // self._frame_samples
        self._rest = heard[whole * self._frame_samples :].copy()
        frames = heard[: whole * self._frame_samples].reshape(whole, self._frame_samples).astype(np.float64)
        frames -= frames.mean(axis=1, keepdims=True)
        powers: list[float] = np.square(frames).mean(axis=1).tolist()
        edges = [self._hear_frame(10 * math.log10(power + _POWER_LEAST)) for power in powers]
        return [edge for edge in edges if edge is not None]

    def _restore(self, state: HearingState) -> None:
        settings = state.settings
        self._settings = settings
        self._frame_samples = settings.sample_rate_hz // FRAMES_PER_S
        self._min_speech_frames = _frames(settings.min_speech_ms)
        self._hangover_frames = _frames(settings.hangover_ms)
        self._silence_frames = _frames(settings.silence_ms)
        self._prefix_frames = _frames(settings.prefix_ms)
        self._frames = state.frames
        self._floor_dbfs = state.floor_dbfs
        self._speaking = state.speaking
        self._speech_end_frame = state.speech_end_frame
        self._loud_start_frame = state.loud_start_frame
        self._loud_end_frame = state.loud_end_frame
        self._loud_frames = state.loud_frames
        self._rest = np.frombuffer(state.rest, "<f4").astype(np.float32)

    def _hear_frame(self, level_dbfs: float) -> Edge | None:
        is_loud = self._is_loud(level_dbfs)
        frame = self._frames
        self._frames += 1
        if self._speaking:
            return self._hear_in_speech(frame, is_loud)
        return self._hear_in_silence(frame, is_loud)

    def _is_loud(self, level_dbfs: float) -> bool:
        """Compares a frame with the background known before it, and lets the background follow it."""
        settings = self._settings
        floor = self._floor_dbfs
        if floor is None:
            floor = min(level_dbfs, _FLOOR_FIRST_HIGHEST_DBFS)
        threshold = max(floor + settings.threshold_db, settings.minimum_dbfs)
        is_loud = level_dbfs >= threshold - (_KEEP_DB if self._speaking else 0.0)
        if level_dbfs < floor:
            floor += _FLOOR_FALL * (level_dbfs - floor)
        else:
            floor = min(level_dbfs, floor + (_FLOOR_RISE_IN_SPEECH_DB if self._speaking else _FLOOR_RISE_DB))
        self._floor_dbfs = max(floor, _FLOOR_LOWEST_DBFS)
        return is_loud

    def _hear_in_silence(self, frame: int, is_loud: bool) -> Edge | None:
        """Collects loud frames that are close together until they are enough for speech."""
        if not is_loud:
            return None
        if self._loud_start_frame is None or frame - self._loud_end_frame > self._hangover_frames:
            self._loud_start_frame = frame
            self._loud_frames = 0
        self._loud_frames += 1
        self._loud_end_frame = frame + 1
        if self._loud_frames < self._min_speech_frames:
            return None
        start_frame = max(self._loud_start_frame - self._prefix_frames, self._speech_end_frame)
        self._speaking = True
        self._speech_end_frame = frame + 1
        self._loud_start_frame = None
        return Edge("started", start_frame * self._frame_samples)

    def _hear_in_speech(self, frame: int, is_loud: bool) -> Edge | None:
        if is_loud:
            self._speech_end_frame = frame + 1
            return None
        if frame + 1 - self._speech_end_frame < self._silence_frames:
            return None
        self._speaking = False
        return Edge("stopped", self._speech_end_frame * self._frame_samples)


def _frames(duration_ms: int) -> int:
    return -(-duration_ms * FRAMES_PER_S // 1000)
