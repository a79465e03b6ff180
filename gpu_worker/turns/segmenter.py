"""
Makes starts and stops of speech from the probabilities of its frames. Pure.

Speech starts with the first frame at or above the threshold, once it lasted `min_speech_ms` without a silent
frame. It stops after `silence_ms` of silence: a pause begins with a frame below the lower threshold, and only
a frame at or above the upper one ends it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpu_worker.turns.settings import DetectionSettings


class SpeechEdge(NamedTuple):
    """Where the user's speech starts or stops; `sample` counts the session's input."""

    kind: Literal["started", "stopped"]
    sample: int


class FrameClock(Struct, frozen=True):
    """
    The frames of a model: frame k holds samples [k * frame_samples, (k + 1) * frame_samples) at its rate.
    """

    sample_rate_hz: int
    frame_samples: int

    def samples(self, duration_ms: int) -> int:
        """Samples in a duration, rounded up."""
        return -(-duration_ms * self.sample_rate_hz // 1000)


class SegmenterState(Struct, frozen=True, forbid_unknown_fields=True):
    """
    All that is known of a session between two frames. Samples count from its start, at the model's rate.

    Attributes:
        frame: number of the next frame. decided_frame: frames before this one are only counted: their edges
            are in the journal already. speaking: speech has started and not stopped. speech_from: where the
            sound began that may become speech; None while there is none, or while speaking. silent_from:
            where the pause began; None while there is none, or while not speaking.
    """

    frame: int = 0
    decided_frame: int = 0
    speaking: bool = False
    speech_from: int | None = None
    silent_from: int | None = None


def advance(
    state: SegmenterState, probability: float, settings: DetectionSettings, clock: FrameClock
) -> tuple[SegmenterState, SpeechEdge | None]:
    """
    Take the next frame.

    Returns:
        The state after it, and the edge that it made certain: a start at its first frame, a stop at the end
        of the silence that was waited for. Both lie before the end of this frame.
    """
    begin = state.frame * clock.frame_samples
    is_speech = probability >= settings.threshold
    is_silence = probability < settings.silence_threshold
    after = replace(state, frame=state.frame + 1)
    if state.frame < state.decided_frame:
        return after, None
    if not state.speaking:
        speech_from = state.speech_from
        if is_silence:
            speech_from = None
        elif is_speech and speech_from is None:
            speech_from = begin
        return _start(replace(after, speech_from=speech_from), settings, clock)
    silent_from = state.silent_from
    if is_speech:
        silent_from = None
    elif is_silence and silent_from is None:
        silent_from = begin
    return _stop(replace(after, silent_from=silent_from), settings, clock)


def _start(
    state: SegmenterState, settings: DetectionSettings, clock: FrameClock
) -> tuple[SegmenterState, SpeechEdge | None]:
    end, since = state.frame * clock.frame_samples, state.speech_from
    if since is None or end - since < clock.samples(settings.min_speech_ms):
        return state, None
    return replace(state, speaking=True, speech_from=None), SpeechEdge("started", since)


def _stop(
    state: SegmenterState, settings: DetectionSettings, clock: FrameClock
) -> tuple[SegmenterState, SpeechEdge | None]:
    end, since, wait = (
        state.frame * clock.frame_samples,
        state.silent_from,
        clock.samples(settings.silence_ms),
    )
    if since is None or end - since < wait:
        return state, None
    return replace(state, speaking=False, silent_from=None), SpeechEdge("stopped", since + wait)
