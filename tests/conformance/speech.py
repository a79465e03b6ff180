"""Recorded speech as clients send it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from duplex.wav import read_wav
from tests.conformance.recorder import RATE_HZ

_FOLDER = Path(__file__).parents[1] / "data" / "speech"
SHORT, LONG = "cards_001", "cards_005"
"""1.1 and 3.5 seconds."""


@cache
def speech(clip: str = SHORT, *, silence_ms: int = 900, rate_hz: int = RATE_HZ) -> bytes:
    """A clip as PCM16, and silence after it: long enough that the speech is heard to be over."""
    return read_wav(_FOLDER / f"{clip}.wav", rate_hz) + silence(silence_ms, rate_hz)


def silence(duration_ms: int, rate_hz: int = RATE_HZ) -> bytes:
    """Digital silence as PCM16."""
    return bytes(2 * (rate_hz * duration_ms // 1000))


def duration_ms(pcm: bytes, rate_hz: int = RATE_HZ) -> int:
    """How long PCM16 lasts."""
    return len(pcm) // 2 * 1000 // rate_hz
