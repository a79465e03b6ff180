from __future__ import annotations

import pytest

from gpu_worker.turns.settings import DetectionSettings, detection_settings
from session_core.config import TurnDetection


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_turn_detection_is_taken_at_its_word(kind: str) -> None:
    """Threshold and silence are the detector's; `semantic_vad` brings the silence that its gateway chose."""
    wanted = TurnDetection(kind=kind, threshold=0.7, silence_duration_ms=250)

    assert DetectionSettings(threshold=0.7, silence_ms=250) == detection_settings(wanted)
