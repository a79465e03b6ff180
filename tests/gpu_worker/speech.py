"""Recorded speech for the worker's tests."""

from __future__ import annotations

import wave
from functools import cache
from pathlib import Path

import numpy as np

from gpu_worker.audio import Pcm, Resampler

SPEECH = Path(__file__).parents[1] / "data" / "speech"
CLIP_HZ = 16_000


@cache
def clip(name: str, rate_hz: int = 24_000) -> Pcm:
    """Gives a clip of human speech, float32 [samples] at `rate_hz`, exact in 16 bits."""
    with wave.open(str(SPEECH / name)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
    if rate_hz != CLIP_HZ:
        resampler = Resampler(CLIP_HZ, rate_hz)
        pcm = np.concatenate((resampler.feed(pcm), resampler.flush()))
        pcm = np.clip(np.rint(pcm * 32768), -32768, 32767).astype(np.float32) / np.float32(32768)
    return pcm


def silence(duration_ms: int, rate_hz: int = 24_000) -> Pcm:
    """Gives float32 zeros."""
    return np.zeros(duration_ms * rate_hz // 1000, np.float32)


def spoken_range(pcm: Pcm, rate_hz: int) -> tuple[int, int]:
    """Gives where the speech in a clip between silences starts and ends, by its energy alone."""
    width = rate_hz // 50
    energy = np.convolve(np.square(pcm.astype(np.float64)), np.ones(width), mode="same")
    above = np.flatnonzero(energy > 0.01 * energy.max())
    return int(above[0]), int(above[-1]) + 1


def best_match(needle: Pcm, haystack: Pcm) -> tuple[float, int]:
    """Gives the best normalised cross-correlation of `needle` with a stretch of `haystack`, and its place."""
    size = 1 << (len(needle) + len(haystack)).bit_length()
    spectrum = np.fft.rfft(haystack, size) * np.conj(np.fft.rfft(needle, size))
    lags = len(haystack) - len(needle) + 1
    products = np.fft.irfft(spectrum, size)[:lags]
    squares = np.concatenate(([0.0], np.cumsum(np.square(haystack.astype(np.float64)))))
    energies = squares[len(needle) :] - squares[:lags]
    scores = products / np.sqrt(np.maximum(energies, 1e-9) * np.sum(np.square(needle.astype(np.float64))))
    lag = int(np.argmax(scores))
    return float(scores[lag]), lag
