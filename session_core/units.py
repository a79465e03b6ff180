"""
The unit clock: what the next unit consists of, and when.

Pure; the worker acts on it and journals the outcome.
"""

from __future__ import annotations

from typing import NamedTuple

from session_core.config import Clock
from session_core.derive import may_begin, spoken_ms, waiting_samples
from session_core.state import Phase, State


class UnitPlan(NamedTuple):
    """The next unit of a session: decided once by whoever works on it, and recorded with its outcome."""

    unit: int
    epoch: int
    first_sample: int
    """Where the unit's input begins, at the model's rate."""
    input_samples: int
    silence_samples: int
    """How much silence stands in after the input."""
    answers: str | None
    """The response that was asked for and has not begun, once all input from before the question is heard:
    speak now. On the commit clock every unit is a piece of an answer, and names its response."""
    may_speak: bool
    """The model may speak at all: it is asked to, or is speaking, or may begin unasked. False: it only
    listens."""
    late: bool = False
    """The input waited too long and is heard in silence; what was being said goes on after that."""


def next_unit(state: State, now_ms: int) -> UnitPlan | None:
    """
    Give the unit that is to be worked on now, or None if there is none yet.

    Args:
        state: the fold, caught up with the journal: silence must not stand in for input that is merely
            unread.
        now_ms: the store's time. Time in which the store could not be reached must not have passed.
    """
    if state.phase is not Phase.OPEN:
        return None
    if state.pinned.profile.clock is Clock.COMMIT:
        return _next_piece(state)
    profile, clock, response = state.pinned.profile, state.clock, state.response
    waiting = min(waiting_samples(state), profile.unit_samples)
    late = _is_late(state, clock.consumed_samples + waiting, now_ms)
    asked = None
    if (
        response is not None
        and not late
        and not response.begun
        and clock.consumed_samples + waiting >= response.after_sample
    ):
        asked = response.response_id
    due_ms = silence_due_ms(state)
    if waiting < profile.unit_samples and asked is None and (due_ms is None or now_ms < due_ms):
        return None
    return UnitPlan(
        unit=clock.next_unit,
        epoch=state.epoch,
        first_sample=clock.consumed_samples,
        input_samples=waiting,
        silence_samples=profile.unit_samples - waiting,
        answers=asked,
        may_speak=asked is not None or (not late and _goes_on_or_begins(state)),
        late=late,
    )


def _is_late(state: State, end_sample: int, now_ms: int) -> bool:
    """
    The model is so far behind the input that a unit of it, up to `end_sample`, is heard in silence.

    Late is what waited since its arrival: a burst that has just come is not, however long it is.
    """
    profile = state.pinned.profile
    if not profile.max_backlog_ms or end_sample - state.clock.consumed_samples < profile.unit_samples:
        return False
    return now_ms - spoken_ms(state, end_sample) > profile.max_backlog_ms


def _goes_on_or_begins(state: State) -> bool:
    """The model is in the middle of a turn, or may begin one."""
    if state.response is None:
        return may_begin(state)
    return state.response.begun and not state.response.turn_ended


def _next_piece(state: State) -> UnitPlan | None:
    """Give the next piece of the answer; the first one takes all input from before the question."""
    response, clock = state.response, state.clock
    if response is None or response.turn_ended:
        return None
    return UnitPlan(
        unit=clock.next_unit,
        epoch=state.epoch,
        first_sample=clock.consumed_samples,
        input_samples=max(0, response.after_sample - clock.consumed_samples),
        silence_samples=0,
        answers=response.response_id,
        may_speak=True,
    )


def silence_due_ms(state: State) -> int | None:
    """
    Give the store's time at which silence stands in for input that is late; None while the clock rests.

    It rests before the first input, and after `max_silent_units` of silence in which the model only listened.
    Where a commit moves the model on, nothing stands in for input.
    """
    profile, clock = state.pinned.profile, state.clock
    if profile.clock is Clock.COMMIT:
        return None
    speaking = state.response is not None
    if not speaking and profile.max_silent_units and clock.silent_units >= profile.max_silent_units:
        return None
    if not speaking and state.input.received_bytes == 0:
        return None
    return clock.covered_ms + profile.silence_grace_ms
