"""The input that turn detection listens to, and where it begins."""

from __future__ import annotations

from gpu_worker.input_audio import InputAudio, InputReader
from gpu_worker.turns.settings import DetectionSettings, detection_settings
from gpu_worker.turns.stage import Hearing
from session_core.config import Clock, TurnDetection
from session_core.derive import ms_to_samples, received_samples
from session_core.state import State

_HEARD_AGAIN_MS = 30_000
"""Where no unit tells how far the last owner had listened, a new one goes back so far at most."""


class TurnAudio:
    """
    Holds the input that a session's turn detection may need; lives as long as the worker follows the session.

    Until a listener takes it over, that is what a new owner would listen to again.
    """

    def __init__(self) -> None:
        self._reader: InputReader | None = None
        self._in_use = False

    def settings(self, wanted: TurnDetection) -> DetectionSettings:
        """Read the client's wishes."""
        return detection_settings(wanted)

    def hold(self, state: State, audio: InputAudio) -> None:
        """Hold what is needed at this state."""
        if self._in_use or state.config.turn_detection is None:
            return
        first = hearing(state, self.settings(state.config.turn_detection)).first_sample
        if self._reader is None:
            self._reader = audio.reader(first)
        else:
            self._reader.forget(first)

    def open(self, audio: InputAudio) -> InputReader:
        """Take over: from now on the listener says what is needed."""
        self._in_use = True
        if self._reader is None:
            self._reader = audio.reader(audio.forgotten)
        return self._reader

    def close(self) -> None:
        """Hold nothing."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._in_use = None, False


def hearing(state: State, settings: DetectionSettings) -> Hearing:
    """
    Tell where a listener begins that knows nothing but the journal.

    Facts come before the unit that holds their input, so up to there none is missing. What is heard again is
    not told again: edges count from where the present speech began, or from the commit point.
    """
    buffer, received = state.input, received_samples(state)
    decided = buffer.committed_samples if buffer.speech_from is None else buffer.speech_from
    heard = state.clock.consumed_samples
    if state.pinned.profile.clock is Clock.COMMIT:
        heard = received - ms_to_samples(state, _HEARD_AGAIN_MS)
    at = min(max(decided, heard), received)
    first = max(0, at - ms_to_samples(state, settings.lookback_ms))
    return Hearing(first, buffer.speech_from is not None, decided)
