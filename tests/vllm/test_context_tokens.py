from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.context_tokens import (
    WHOLE_EVERY,
    Answer,
    ContextTokens,
    Fed,
    context_tokens,
    decode_fed,
    encode_fed,
    shared_tokens,
)
from gpu_worker.errors import ModelError
from gpu_worker.plugin import UnitRecord
from session_core.events import Decision, ModelUnitCompleted


def record(number: int, fed: Fed | None, said: Sequence[int], response_id: str) -> UnitRecord:
    """Gives a unit as the journal holds it."""
    unit = ModelUnitCompleted(
        number, 0, 0, 0, 0, Decision.SPEAK, tuple(said), encode_fed(fed), answers=response_id
    )
    return UnitRecord(unit, muted=False)


def test_no_units_are_an_empty_context() -> None:
    """Before its first unit a session has no context."""
    assert ContextTokens() == context_tokens([])


def test_units_are_an_edit_script() -> None:
    """What is kept, fed and said, unit after unit, is the context; answers are found in it."""
    units = [
        record(0, Fed(0, (1, 2, 3)), (10, 11), "a"),
        record(1, None, (12,), "a"),
        record(2, Fed(6, (4,), (Answer("a", 3, 6),)), (20,), "b"),
        record(3, Fed(4, (5, 6), (), "item"), (30, 31), "c"),
    ]
    assert (1, 2, 3, 10, 11, 12, 4, 20) == context_tokens(units[:3]).token_ids
    assert (10, 11, 12) == context_tokens(units[:3]).answer("a")
    context = context_tokens(units)
    assert ContextTokens((1, 2, 3, 10, 5, 6, 30, 31), (Answer("c", 6, 8),), "item", 4) == context
    assert ("c", ()) == (context.answering, context.answer("a"))


def test_answer_without_tokens_has_begun() -> None:
    """A response that was asked for no token is the one being answered all the same."""
    assert "a" == context_tokens([record(0, Fed(0, (1,)), (), "a")]).answering


steps = st.lists(
    st.tuples(
        st.none() | st.tuples(st.integers(0, 40), st.lists(st.integers(0, 300), min_size=1, max_size=6)),
        st.lists(st.integers(0, 300), max_size=4),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 12))
def test_a_window_with_a_whole_unit_is_enough(
    script: list[tuple[tuple[int, list[int]] | None, list[int]]], every: int
) -> None:
    """Whatever the units did, the context of the newest ones from a whole unit on is the context of all."""
    held, units, wholes = ContextTokens(), [], [0]
    for number, (feed, said) in enumerate(script):
        fed = (
            None if feed is None else Fed(min(feed[0], len(held.token_ids)), tuple(feed[1]), held.answers[:0])
        )
        if number == 0 or held.since_whole >= every:
            base = held.after(fed, None, ())
            fed = base.whole()
        units.append(record(number, fed, said, f"r{number // 3}"))
        held = held.after(fed, f"r{number // 3}", said)
        if fed is not None and fed.keep == 0:
            wholes.append(number)
        assert held == context_tokens(units)
        assert held == context_tokens(units[wholes[-1] :])
        assert held.since_whole <= every or held.since_whole == number - wholes[-1] + 1


def test_window_without_a_whole_unit_is_refused() -> None:
    """A context is never guessed."""
    with pytest.raises(ModelError):
        context_tokens([record(WHOLE_EVERY, None, (1,), "a")])


@pytest.mark.parametrize("codes", [b"\xc1", b"\x93\x00\x01\x02", b"loopback"])
def test_codes_of_another_model_are_refused(codes: bytes) -> None:
    """Codes that say nothing of tokens fail the session here, and nothing else."""
    with pytest.raises(ModelError):
        decode_fed(codes)


def test_more_kept_than_there_was_is_refused() -> None:
    """A unit that keeps more tokens than the context had contradicts the units before it."""
    with pytest.raises(ModelError):
        context_tokens([record(0, Fed(0, (1,)), (2,), "a"), record(1, Fed(9, (3,)), (4,), "b")])


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_tokens_are_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    """The beginnings are equal, and no longer ones are."""
    shared = shared_tokens(one, other)
    assert one[:shared] == other[:shared]
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]
