"""Speech, noise and a scripted model for the tests of turn detection."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import numpy as np

from gpu_worker.audio import Pcm, Resampler
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.segmenter import SpeechEdge
from gpu_worker.turns.settings import DetectionSettings
from gpu_worker.turns.stage import Hearing, TurnDetectionStage

RATE_HZ: Final = 24_000
"""Of the input in these tests, where they do not say otherwise."""

CLIPS: Final = {
    "austen_0880": (260, 2910),
    "austen_0930": (280, 2930),
    "cards_001": (190, 940),
    "cards_005": (210, 3180),
}
"""Where the words begin (ms; 10 ms within 20 dB of the clip's loudest) and end (within 22 dB)."""


def clip(folder: Path, name: str, rate_hz: int = RATE_HZ) -> Pcm:
    """Read a recording, at any rate."""
    with wave.open(str(folder / f"{name}.wav")) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
        converter = Resampler(file.getframerate(), rate_hz)
    return np.concatenate((converter.feed(pcm), converter.flush()))


def silence(duration_ms: int, rate_hz: int = RATE_HZ) -> Pcm:
    """Give digital silence."""
    return np.zeros(duration_ms * rate_hz // 1000, np.float32)


def conversation(folder: Path) -> Pcm:
    """Two utterances with a pause of some 800 ms between their words, over faint hiss."""
    said = (
        silence(900), clip(folder, "austen_0880"), silence(500), clip(folder, "cards_005"), silence(1200)
    )  # fmt: skip
    pcm = np.concatenate(said)
    return pcm + np.random.default_rng(7).normal(0, 3e-4, len(pcm)).astype(np.float32)


class ScriptedModel(SpeechModel):
    """Takes a frame's first sample for its probability, and counts in the state the frames of a session."""

    name = "scripted"
    sample_rate_hz = 16_000
    frame_samples = 512
    state_size = 1

    def __init__(self, fails_at_call: int | None = None) -> None:
        self.batches: list[int] = []
        """Sessions of each call."""
        self._fails_at_call = fails_at_call

    def judge(self, states: Pcm, frames: Pcm) -> tuple[Pcm, Pcm]:
        """Give what the samples say."""
        if len(self.batches) == self._fails_at_call:
            raise RuntimeError("out of memory")
        self.batches.append(len(frames))
        return frames[:, 0], states + 1


def script(probabilities: Iterable[float]) -> Pcm:
    """Give input at 16 kHz, one frame for each probability."""
    return np.repeat(np.array(list(probabilities), np.float32), ScriptedModel.frame_samples)


@asynccontextmanager
async def running(model: SpeechModel, rate_hz: int = RATE_HZ) -> AsyncIterator[TurnDetectionStage]:
    """Run a stage around a block."""
    stage = TurnDetectionStage(model, rate_hz)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(stage.run())
        yield stage
        task.cancel()


async def hear(
    model: SpeechModel,
    chunks: Iterable[Pcm],
    settings: DetectionSettings | None = None,
    hearing: Hearing | None = None,
    rate_hz: int = RATE_HZ,
) -> list[SpeechEdge]:
    """Give all edges of one session."""
    async with running(model, rate_hz) as stage:
        turns = stage.open(settings or DetectionSettings(), hearing)
        for chunk in chunks:
            turns.feed(chunk)
        await turns.wait_until(turns.fed_to)
        return turns.take()


def to_ms(sample: int, rate_hz: int = RATE_HZ) -> int:
    """Give a sample's time."""
    return sample * 1000 // rate_hz
