from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.audio import Pcm
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.errors import SpeechModelUnavailable
from gpu_worker.turns.models import load_speech_model
from tests.gpu_worker.turns.helpers import CLIPS, clip


def framed(pcm: Pcm, model: SpeechModel) -> Pcm:
    """Give the whole frames, [frames, frame_samples]."""
    whole = len(pcm) // model.frame_samples
    return pcm[: whole * model.frame_samples].reshape(whole, model.frame_samples)


def judge_alone(model: SpeechModel, pcm: Pcm) -> list[float]:
    """Give the probabilities of one stream, one call for each frame."""
    state = np.zeros((1, model.state_size), np.float32)
    found = []
    for frame in framed(pcm, model):
        probability, state = model.judge(state, frame[None])
        found.append(float(probability[0]))
    return found


def test_batched_equals_single(model: SpeechModel, speech_dir: Path) -> None:
    """
    What a session's frames get does not depend on the sessions that share its calls, nor on their number.
    """
    streams = [clip(speech_dir, name, 16_000) for name in CLIPS] * 5
    frames = [framed(pcm, model) for pcm in streams]
    states = np.zeros((len(streams), model.state_size), np.float32)
    found: list[list[float]] = [[] for _ in streams]
    for step in range(max(len(stream) for stream in frames)):
        live = [index for index, stream in enumerate(frames) if step < len(stream)]
        probabilities, states[live] = model.judge(
            states[live], np.stack([frames[index][step] for index in live])
        )
        for index, probability in zip(live, probabilities.tolist(), strict=True):
            found[index].append(probability)

    for pcm, together in zip(streams, found, strict=True):
        np.testing.assert_allclose(judge_alone(model, pcm), together, rtol=0, atol=1e-5)


def test_shapes_and_types(model: SpeechModel) -> None:
    """Probabilities are float32 [n] in [0, 1], states keep their shape."""
    noise = np.random.default_rng(1).normal(0, 0.1, (3, model.frame_samples)).astype(np.float32)

    probabilities, states = model.judge(np.zeros((3, model.state_size), np.float32), noise)

    assert (3,) == probabilities.shape
    assert (3, model.state_size) == states.shape
    assert np.dtype(np.float32) == probabilities.dtype == states.dtype
    assert bool(((probabilities >= 0) & (probabilities <= 1)).all())


def test_torch_is_not_imported(silero: SpeechModel) -> None:
    """The network runs without the wheel's own code, which needs torch."""
    assert "torch" not in sys.modules
    assert "silero_vad" not in sys.modules


def test_auto_is_silero_where_it_is_installed() -> None:
    """The better model is taken without being asked for."""
    assert "silero" == load_speech_model("auto").name


def test_without_the_extra_energy_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A default install detects turns by energy, but does not pretend to have what it was asked for by name.
    """
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    assert "energy" == load_speech_model("auto").name
    with pytest.raises(SpeechModelUnavailable, match="onnxruntime is not installed"):
        load_speech_model("silero")


def test_a_missing_network_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With onnxruntime alone there is no network."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SpeechModelUnavailable, match="silero-vad is not installed"):
        load_speech_model("silero")


def test_energy_is_there_by_name() -> None:
    """An operator may choose it."""
    assert "energy" == load_speech_model("energy").name
