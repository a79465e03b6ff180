"""
Silero VAD (https://github.com/snakers4/silero-vad, MIT): a trained voice activity detector.

The network comes with the wheel `silero-vad` as an ONNX file and runs in onnxruntime, on one thread. The
wheel's own Python code is not used: it imports torch.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import numpy as np

from gpu_worker.audio import Pcm
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.errors import SpeechModelUnavailable

_LAYERS: Final = 2
_WIDTH: Final = 128
_RECURRENT: Final = _LAYERS * _WIDTH
_CONTEXT_SAMPLES: Final = 64
"""The network sees the end of the frame before in front of each frame of 16 kHz."""
_ERRORS_ONLY: Final = 3


class SileroModel(SpeechModel):
    """
    A session's state is what the network's LSTM remembers, [2, 128], and the last 64 samples.

    Raises:
        SpeechModelUnavailable: silero-vad or onnxruntime is not installed, or the network cannot be read.
    """

    name = "silero"
    sample_rate_hz = 16_000
    frame_samples = 512
    state_size = _RECURRENT + _CONTEXT_SAMPLES

    def __init__(self) -> None:
        try:
            import onnxruntime  # noqa: PLC0415 - an extra: most installs have none
        except ImportError as error:
            raise SpeechModelUnavailable(self.name, "onnxruntime is not installed") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        try:
            self._network = onnxruntime.InferenceSession(
                _network_path(), options, providers=["CPUExecutionProvider"]
            )
        except RuntimeError as error:
            raise SpeechModelUnavailable(self.name, str(error)) from error
        self._rate = np.array(self.sample_rate_hz, np.int64)

    def judge(self, states: Pcm, frames: Pcm) -> tuple[Pcm, Pcm]:
        """Run the network once for all sessions."""
        count = len(frames)
        recurrent = states[:, :_RECURRENT].reshape(count, _LAYERS, _WIDTH).transpose(1, 0, 2)
        inputs = {
            "input": np.concatenate((states[:, _RECURRENT:], frames), axis=1),
            "state": np.ascontiguousarray(recurrent),
            "sr": self._rate,
        }
        probabilities, recurrent = self._network.run(["output", "stateN"], inputs)
        flat = recurrent.transpose(1, 0, 2).reshape(count, _RECURRENT)
        return probabilities[:, 0], np.concatenate((flat, frames[:, -_CONTEXT_SAMPLES:]), axis=1)


def _network_path() -> Path:
    """Find the file without importing its package."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        raise SpeechModelUnavailable(SileroModel.name, "silero-vad is not installed")
    return Path(spec.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
