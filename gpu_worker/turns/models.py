"""The speech models by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

import structlog

from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.energy import EnergyModel
from gpu_worker.turns.errors import SpeechModelUnavailable
from gpu_worker.turns.silero import SileroModel

SpeechModelName: TypeAlias = Literal["auto", "silero", "energy"]
"""auto: silero where the extra `vad` is installed, else energy."""


def load_speech_model(name: SpeechModelName) -> SpeechModel:
    """
    Load a model: some 100 ms of blocking work, once in a process.

    Raises:
        SpeechModelUnavailable: silero was asked for by name and is not installed.
    """
    if name == "energy":
        return EnergyModel()
    try:
        return SileroModel()
    except SpeechModelUnavailable as missing:
        if name == "silero":
            raise
        structlog.get_logger().warning("turns.by_energy", reason=str(missing))
        return EnergyModel()
