from __future__ import annotations

from msgspec.structs import replace

from session_core.audio import AudioFormat
from session_core.config import Clock, ModelProfile
from session_core.state import Input, Phase, Pinned, Response, State, UnitClock
from session_core.units import UnitPlan, next_unit, silence_due_ms

PROFILE = ModelProfile(model="m", clock=Clock.COMMIT)
ASKED = Response("resp_1", AudioFormat(), requested=True, after_sample=4_800)
STATE = State(
    pinned=Pinned(profile=PROFILE),
    phase=Phase.OPEN,
    epoch=2,
    input=Input(received_bytes=19_200, received_ticks=0),
    clock=UnitClock(next_unit=7, consumed_samples=1_000),
)


def test_nothing_is_due_before_a_question() -> None:
    """However much input there is, the model waits to be asked, and silence stands in for nothing."""
    assert (None, None) == (next_unit(STATE, 1 << 40), silence_due_ms(STATE))


def test_first_piece_takes_the_input_from_before_the_question() -> None:
    """The first unit of an answer holds what no unit has taken, up to the question; later ones hold none."""
    asked = replace(STATE, response=ASKED)
    assert UnitPlan(7, 2, 1_000, 3_800, 0, "resp_1", may_speak=True) == next_unit(asked, 0)
    later = replace(asked, clock=UnitClock(next_unit=8, consumed_samples=4_800))
    assert UnitPlan(8, 2, 4_800, 0, 0, "resp_1", may_speak=True) == next_unit(later, 0)


def test_input_that_was_dropped_is_not_taken() -> None:
    """If what came before the question was cleared since, the first unit holds nothing."""
    cleared = replace(STATE, response=ASKED, clock=UnitClock(next_unit=7, consumed_samples=9_000))
    assert UnitPlan(7, 2, 9_000, 0, 0, "resp_1", may_speak=True) == next_unit(cleared, 0)


def test_no_piece_is_due_after_the_last() -> None:
    """No unit is due when the model has ended its turn, though audio may still be rendered, nor after."""
    assert next_unit(replace(STATE, response=replace(ASKED, turn_ended=True)), 0) is None
    assert next_unit(replace(STATE, response=ASKED, phase=Phase.ENDED), 0) is None
