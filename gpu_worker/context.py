"""
What a model's context is built from, folded out of the changes of a session as they come.

Only changes are folded: they have passed the reducer's gate, so nothing here refuses anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from gpu_worker.input_audio import InputAudio, InputReader
from gpu_worker.plugin import Context, Pcm, UnitRecord
from session_core import changes as ch
from session_core.events import ModelUnitCompleted
from session_core.state import State
from session_core.units import UnitPlan


class ContextLedger:
    """
    The window of one session's journal that a model needs; lives as long as the worker follows the session.

    Bounded: by the plugin's window until the context is built, and by what no unit has taken and what is
    still to be rendered from then on (`narrow`). Folding costs next to nothing an entry: bytes are kept as
    they came.

    Args:
        window_units: how many of the last units a context needs.
        window_samples: how much of the last input it needs, at the model's rate.
    """

    def __init__(self, window_units: int, window_samples: int) -> None:
        self._window_samples = window_samples
        self._units: deque[UnitRecord] = deque(maxlen=window_units)
        self._input: InputAudio | None = None
        self._reader: InputReader | None = None
        """Reads for the units, and holds the window."""
        self._consumed = 0
        self._holes: deque[tuple[int, int]] = deque()
        """Ranges of the input that were dropped before a unit took them; a context holds silence there."""
        self._to_render: dict[int, ModelUnitCompleted] = {}
        self.last_epoch = 0
        """Epoch of the last unit; 0 before the first."""

    @property
    def input(self) -> InputAudio:
        """The session's input. Whoever needs more of it than the units do holds a reader."""
        assert self._input is not None, "the session is not opened"
        return self._input

    def take(self, changes: Iterable[ch.Change], state: State) -> None:
        """Fold what one entry changed; `state` is the state after it."""
        for change in changes:
            match change:
                case ch.AudioReceived():
                    self.input.take(change.audio)
                case ch.UnitTaken():
                    self._take_unit(change)
                case ch.ResponseEnded():
                    self._to_render.clear()
                case ch.PartRendered(last_part=True):
                    self._to_render.pop(next(iter(self._to_render)))
                case ch.InputDropped():
                    self._holes.append((self._consumed, change.upto_samples))
                    self._consume(change.upto_samples)
                case ch.Opened() | ch.ConfigChanged():
                    self._configure(state)
                case _:
                    pass

    def context(self, state: State) -> Context:
        """Give the context after the last unit."""
        first = max(0, self._consumed - self._window_samples)
        pcm: Pcm = np.zeros(0, np.float32)
        if first < self._consumed:
            pcm = self._read(first, self._consumed - first).copy()
        for start, end in self._holes:
            pcm[max(0, start - first) : max(0, end - first)] = 0
        pinned = state.pinned
        return Context(
            pinned.session_id, state.config, tuple(self._units), pcm, first, state.history, state.epoch
        )

    def narrow(self) -> None:
        """Give up the window. After this `context` must not be asked for: whoever needs one folds again."""
        self._window_samples = 0
        self._units.clear()
        self._units = deque(maxlen=0)
        self._forget()

    def unit_input(self, plan: UnitPlan) -> Pcm:
        """
        Give float32 [unit_samples]: the input that the plan names, then silence. Not to be written to.

        Raises:
            AudioFormatError: the journal's bytes are no audio in their format.
        """
        if not plan.input_samples:
            return np.zeros(plan.silence_samples, np.float32)
        pcm = self._read(plan.first_sample, plan.input_samples)
        if plan.silence_samples:
            pcm = np.concatenate((pcm, np.zeros(plan.silence_samples, np.float32)))
        return pcm

    def unit_to_render(self, unit: int) -> ModelUnitCompleted:
        """Give a unit that waits for its audio."""
        return self._to_render[unit]

    def _take_unit(self, change: ch.UnitTaken) -> None:
        unit = change.unit
        self.last_epoch = unit.epoch
        if unit.audio is None and not change.muted:
            self._to_render[unit.unit] = unit
        if self._units.maxlen:
            # Contexts are built of tokens and codes; the audio would be most of the window's memory.
            self._units.append(UnitRecord(replace(unit, audio=None), change.muted))
        end = unit.first_sample + unit.input_samples
        if self._holes and unit.first_sample <= self._holes[-1][0] < end:
            # The unit was being worked on when the input was dropped: what it took, it heard.
            self._holes[-1] = (end, max(end, self._holes[-1][1]))
        self._consume(end)

    def _consume(self, upto: int) -> None:
        self._consumed = max(self._consumed, upto)
        self._forget()

    def _forget(self) -> None:
        first = self._consumed - self._window_samples
        if self._reader is not None and first > 0:
            self._reader.forget(first)
        while self._holes and self._holes[0][1] <= first:
            self._holes.popleft()

    def _configure(self, state: State) -> None:
        audio_format, rate_hz = state.config.input_format, state.pinned.profile.input_sample_rate_hz
        if self._input is None:
            self._input = InputAudio(rate_hz, audio_format)
            self._reader = self._input.reader()
        elif audio_format != self._input.format:
            self._input.switch(audio_format, state.input.received_samples(rate_hz))

    def _read(self, first: int, count: int) -> Pcm:
        assert self._reader is not None
        return self._reader.read(first, count)
