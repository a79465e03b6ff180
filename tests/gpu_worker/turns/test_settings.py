from __future__ import annotations

import pytest

from gpu_worker.turns.settings import SEMANTIC_PRESETS, DetectionSettings, detection_settings
from session_core.config import TurnDetection


def test_server_vad_is_taken_at_its_word() -> None:
    """
    Threshold and silence of `server_vad` are the detector's.
    """
    wanted = TurnDetection(threshold=0.7, silence_duration_ms=250)

    assert DetectionSettings(threshold=0.7, silence_ms=250) == detection_settings(wanted)


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_semantic_vad_is_a_preset(eagerness: str) -> None:
    """
    `semantic_vad` is heard as the operator's preset for its eagerness.
    """
    wanted = TurnDetection(kind="semantic_vad", eagerness=eagerness, silence_duration_ms=1)

    assert SEMANTIC_PRESETS[eagerness] == detection_settings(wanted)


def test_a_missing_preset_is_auto() -> None:
    """
    An operator may name "auto" alone.
    """
    presets = {"auto": DetectionSettings(silence_ms=900)}

    assert presets["auto"] == detection_settings(TurnDetection(kind="semantic_vad", eagerness="low"), presets)


def test_less_eager_waits_longer() -> None:
    """
    The presets are ordered as their names say.
    """
    low, medium, high = (SEMANTIC_PRESETS[name].silence_ms for name in ("low", "medium", "high"))

    assert high < medium < low
