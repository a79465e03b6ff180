"""
Tells speech by its level above the background: stands in where no trained model is installed.

It cannot tell a voice from another sound as loud and as long.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_worker.audio import Pcm
from gpu_worker.turns.detector import SpeechModel

_ABOVE_FLOOR_DB: Final = 12.0
"""How far above the background a frame has the probability 0.5."""
_MINIMUM_DBFS: Final = -45.0
"""The least level of such a frame, however quiet the background (RMS against full scale 1)."""
_PER_DB: Final = 0.0375
"""Probability per dB: at 0.5 - 0.15, where speech is kept up, a frame is 4 dB quieter than at 0.5."""
_KEPT_UP: Final = 0.35

# The background falls fast to what is quieter and rises slowly: 20 dB/s under sound that is no speech, and 2
# dB/s under speech, so that a fan switched on is got used to. It does not follow into digital silence, and a
# stream that begins within a word does not take that word for background.
_FALL: Final = 0.6
_RISE_DB: Final = 0.64
_RISE_IN_SPEECH_DB: Final = 0.064
_LOWEST_DBFS: Final = -70.0
_FIRST_HIGHEST_DBFS: Final = -45.0
_POWER_LEAST: Final = 1e-12


class EnergyModel(SpeechModel):
    """Needs no package. A session's state: level of its background (dBFS), and 1 if it has one."""

    name = "energy"
    sample_rate_hz = 16_000
    frame_samples = 512
    state_size = 2

    def judge(self, states: Pcm, frames: Pcm) -> tuple[Pcm, Pcm]:
        """Compare each frame, without its DC part, with the background known before it."""
        wide = frames.astype(np.float64)
        wide -= wide.mean(axis=1, keepdims=True)
        level = 10 * np.log10(np.square(wide).mean(axis=1) + _POWER_LEAST)
        floor = np.where(states[:, 1] > 0, states[:, 0], np.minimum(level, _FIRST_HIGHEST_DBFS))
        reference = np.maximum(floor + _ABOVE_FLOOR_DB, _MINIMUM_DBFS)
        probability = np.clip(0.5 + _PER_DB * (level - reference), 0, 1)
        rise = np.where(probability >= _KEPT_UP, _RISE_IN_SPEECH_DB, _RISE_DB)
        floor = np.where(level < floor, floor + _FALL * (level - floor), np.minimum(level, floor + rise))
        kept = np.stack((np.maximum(floor, _LOWEST_DBFS), np.ones_like(floor)), axis=1)
        return probability.astype(np.float32), kept.astype(np.float32)
