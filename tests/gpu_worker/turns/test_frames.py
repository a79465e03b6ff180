from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.audio import SAMPLE_RATES_HZ, Pcm, Resampler
from gpu_worker.turns.frames import FrameGrid
from gpu_worker.turns.segmenter import FrameClock

CLOCK = FrameClock(16_000, 512)
rates = st.sampled_from(SAMPLE_RATES_HZ)


def frames(grid: FrameGrid, pcm: Pcm) -> Pcm:
    """Give all whole frames of a stream, end to end."""
    lead = max(0, -grid.begin(0))
    held = np.concatenate((np.zeros(lead, np.float32), pcm))
    made = [
        grid.make(frame, held[grid.begin(frame) + lead : grid.end(frame) + lead])
        for frame in range(grid.frames_before(len(pcm)))
    ]
    return np.concatenate(made)


@pytest.mark.parametrize("rate_hz", SAMPLE_RATES_HZ)
def test_frames_are_the_stream_at_the_models_rate(rate_hz: int) -> None:
    """Tones below 6 kHz come out as the exact converter gives them, at the same instants."""
    time = np.arange(rate_hz) / rate_hz
    tones = sum(np.sin(2 * np.pi * tone_hz * time + tone_hz) for tone_hz in (200, 1000, 2900))
    pcm = (0.2 * np.asarray(tones)).astype(np.float32)

    made = frames(FrameGrid(rate_hz, CLOCK), pcm)

    exact = Resampler(rate_hz, 16_000).feed(pcm)
    inner = slice(512, min(len(made), len(exact)))
    assert np.abs(made[inner] - exact[inner]).max() < 2e-3


@pytest.mark.parametrize("rate_hz", [24_000, 48_000])
def test_what_the_model_cannot_hear_does_not_come_back_lower(rate_hz: int) -> None:
    """A tone above the model's Nyquist frequency is gone, not folded down."""
    tone = np.sin(2 * np.pi * 10_000 * np.arange(rate_hz) / rate_hz).astype(np.float32)

    made = frames(FrameGrid(rate_hz, CLOCK), tone)

    assert np.abs(made[512:]).max() < 2e-3


@given(rates, st.integers(0, 500), st.integers(-70, 70))
def test_frames_before_counts_the_frames_that_end_there(rate_hz: int, near_frame: int, offset: int) -> None:
    """As many frames can be made as end at or before a sample, and not one more."""
    grid = FrameGrid(rate_hz, CLOCK)
    sample = max(0, grid.end(near_frame) + offset)
    count = grid.frames_before(sample)

    assert grid.end(count) > sample
    assert count == 0 or grid.end(count - 1) <= sample


@given(rates, st.integers(0, 500), st.integers(-70, 70))
def test_a_stream_joined_late_needs_nothing_from_before(rate_hz: int, near_frame: int, offset: int) -> None:
    """The first frame after a sample begins there or later, and the one before it does not."""
    grid = FrameGrid(rate_hz, CLOCK)
    sample = max(1, grid.begin(near_frame) + offset)
    frame = grid.first_frame(sample)

    assert sample <= grid.begin(frame)
    assert frame == 0 or grid.begin(frame - 1) < sample
