"""
How speech is told from silence, and how a client's `turn_detection` is read into that.

`idle_timeout_ms`, `prefix_padding_ms`, `create_response` and `interrupt_response` are the reducer's: they say
what follows from a start or a stop, not where it is.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from session_core.config import TurnDetection

SETTLE_MS: Final = 1000
"""A model that joins within speech may take the first of it for silence: so long it is not believed."""

HYSTERESIS: Final = 0.15
"""How far below its threshold a probability must fall to count as silence."""


class DetectionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """
    How one session is listened to, until its client changes it.

    Attributes:
        threshold: probability from which a frame is speech, in [0, 1].
        silence_ms: pause that ends speech.
        min_speech_ms: speech shorter than this is ignored.
    """

    threshold: float = 0.5
    silence_ms: int = 500
    min_speech_ms: int = 96

    @property
    def silence_threshold(self) -> float:
        """Probability below which a frame is silence; between the two a frame is like the one before."""
        return max(self.threshold - HYSTERESIS, 0.01)

    @property
    def lookback_ms(self) -> int:
        """How much earlier audio a new owner listens to again: to settle, and to know a pause's age."""
        return SETTLE_MS + self.silence_ms + 500


def detection_settings(wanted: TurnDetection) -> DetectionSettings:
    """
    Read a client's wishes. `semantic_vad` comes with the silence that the gateway chose for its eagerness.
    """
    return DetectionSettings(threshold=wanted.threshold, silence_ms=wanted.silence_duration_ms)
