"""Frame of the test suite: Hypothesis profiles, the `integration` marker, and the recorded speech."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# ci: the same examples in every run, so a red run is red again. dev: new examples each time, more of them.
# Neither has a deadline: a slow machine is no failure.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything under tests/integration as `integration`."""
    for item in items:
        if item.path.is_relative_to(TESTS / "integration"):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def speech_dir() -> Path:
    """The folder of recorded human speech (WAV, mono PCM16, 16 kHz); its README holds the words."""
    return TESTS / "data" / "speech"
