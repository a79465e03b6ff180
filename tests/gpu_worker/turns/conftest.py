"""The speech models, loaded once."""

from __future__ import annotations

import pytest

from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.energy import EnergyModel
from gpu_worker.turns.silero import SileroModel


@pytest.fixture(scope="session")
def silero() -> SpeechModel:
    """The trained model. Not skipped where it is missing: the extra `dev` brings it."""
    return SileroModel()


@pytest.fixture(scope="session", params=["silero", "energy"])
def model(request: pytest.FixtureRequest) -> SpeechModel:
    """Each model in turn."""
    return SileroModel() if request.param == "silero" else EnergyModel()
