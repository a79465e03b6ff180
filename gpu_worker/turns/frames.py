"""
Cuts a session's input into a speech model's frames, at the model's rate.

A frame is a pure function of a window of input around it, so that it comes out the same bit for bit however
the input was cut, and that a session may be joined anywhere. Where the rates differ, frames are made by a
short windowed-sinc filter as products with small matrices, each for 64 samples: some ten times cheaper than
`gpu_worker.audio.Resampler`, whose steepness and rejection a detector does not need.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np

from gpu_worker.audio import Pcm, samples_within
from gpu_worker.turns.segmenter import FrameClock

_BLOCK: Final = 64
"""Output samples of one product; divides every model's frame."""

# Kaiser window for 60 dB, flat up to 0.8 of the lower Nyquist frequency; looks 1 ms ahead at 24 kHz.
_ZERO_CROSSINGS: Final = 16
_KAISER_BETA: Final = 5.65
_CUTOFF: Final = 0.9


class FrameGrid:
    """
    The frames of a model over input of one rate; holds nothing of a session.

    Args:
        input_rate_hz: rate of the input, that of all samples here but where it says otherwise.
        clock: the model's rate and frames.
    """

    def __init__(self, input_rate_hz: int, clock: FrameClock) -> None:
        assert clock.frame_samples % _BLOCK == 0, "a frame is made of whole blocks"
        self._input_rate_hz = input_rate_hz
        self.clock = clock
        divisor = math.gcd(input_rate_hz, clock.sample_rate_hz)
        self._up, self._down = clock.sample_rate_hz // divisor, input_rate_hz // divisor
        self._is_identity = self._up == self._down
        self._reach = 0 if self._is_identity else _reach(self._up, self._down)

    def begin(self, frame: int) -> int:
        """
        Number of the first input sample that a frame is made of; negative ones are silence before the stream.
        """
        first = frame * self.clock.frame_samples
        return first if self._is_identity else self._block_begin(first)

    def end(self, frame: int) -> int:
        """Number of the first input sample that a frame does not need."""
        last = (frame + 1) * self.clock.frame_samples
        if self._is_identity:
            return last
        return self._block_begin(last - _BLOCK) + _width(self._up, self._down)

    def frames_before(self, sample: int) -> int:
        """How many frames can be made of the input before `sample`."""
        about = max(0, sample - self._reach) * self._up // self._down // self.clock.frame_samples
        count = max(0, about - 1)  # surely not too many: the widths of blocks round up by less than a frame
        while self.end(count) <= sample:
            count += 1
        return count

    def first_frame(self, sample: int) -> int:
        """Number of the first frame that needs nothing of the input before `sample`."""
        if sample <= 0:
            return 0
        frame = samples_within(sample, self._down, self._up) // self.clock.frame_samples
        while self.begin(frame) < sample:
            frame += 1
        return frame

    def frame_from(self, sample: int) -> int:
        """Number of the first frame that begins at or after `sample`."""
        return -(-samples_within(sample, self._down, self._up) // self.clock.frame_samples)

    def input_sample(self, model_sample: int) -> int:
        """Number of the first input sample at or after a sample at the model's rate."""
        return samples_within(model_sample, self._up, self._down)

    def make(self, frame: int, pcm: Pcm) -> Pcm:
        """
        Make one frame.

        Args:
            frame: its number.
            pcm: float32, the input [begin(frame), end(frame)).

        Returns:
            float32 [frame_samples]
        """
        if self._is_identity:
            return pcm
        up, down, width = self._up, self._down, _width(self._up, self._down)
        begin, first = self.begin(frame), frame * self.clock.frame_samples
        made = np.empty(self.clock.frame_samples, np.float32)
        for block in range(0, self.clock.frame_samples, _BLOCK):
            at = self._block_begin(first + block) - begin
            filters = _filters(up, down, (first + block) * down % up)
            np.dot(pcm[at : at + width], filters, out=made[block : block + _BLOCK])
        return made

    def _block_begin(self, model_sample: int) -> int:
        return model_sample * self._down // self._up - self._reach + 1


def _reach(up: int, down: int) -> int:
    return math.ceil(_ZERO_CROSSINGS * max(1.0, down / up))


def _width(up: int, down: int) -> int:
    """Input samples that a block needs, whatever its phase."""
    return 2 * _reach(up, down) + (up - 1 + (_BLOCK - 1) * down) // up


@cache
def _filters(up: int, down: int, phase: int) -> Pcm:
    """
    Compute the weights of a block's inputs, float32 [width, _BLOCK].

    Its first output lies phase / up after an input. Each output's weights sum to 1: a constant stays what it
    is.
    """
    reach, scale = _reach(up, down), min(1.0, up / down)
    inputs = np.arange(_width(up, down))[:, None] - reach + 1
    distance = ((phase + np.arange(_BLOCK) * down) / up)[None, :] - inputs
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - (distance * scale / _ZERO_CROSSINGS) ** 2, 0, None)))
    inside = np.abs(distance * scale) < _ZERO_CROSSINGS
    weights = np.sinc(distance * scale * _CUTOFF) * window * inside
    filters: Pcm = (weights / weights.sum(axis=0, keepdims=True)).astype(np.float32)
    return filters
