"""The reducer's table is whole, and its numbering right. What its rows mean is tested elsewhere, by theme."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from msgspec import UNSET

from session_core import changes as ch
from session_core import commands as cmd
from session_core import evolve, project, wire
from session_core.config import Way
from session_core.errors import BrokenInvariant, Cause
from session_core.events import ModelUnitCompleted
from session_core.journal import Body, JournalEntry, Role
from session_core.reducer import TABLE, reduce
from session_core.state import Phase
from tests.session_core.scenario import Scenario

BODIES = get_args(Body)
TAGS = [body.__struct_config__.tag for body in BODIES]


def test_every_entry_has_a_row() -> None:
    """What can be journaled can be folded, and nothing else stands in the table."""
    assert set(BODIES) == set(TABLE)


def test_every_change_is_applied_and_told() -> None:
    """Each change has its function of evolve and its function of project, even if it does nothing."""
    known = set(get_args(ch.AnyChange))

    assert known == set(evolve._EVOLVE)
    assert known == set(project._PROJECT)


def test_tags_are_stable_names() -> None:
    """Two letters and a version, never an import path, each of them once."""
    assert [] == [tag for tag in TAGS if not re.fullmatch("[a-z]{2}[0-9]+", tag)]
    assert len(TAGS) == len(set(TAGS))


def test_who_may_write_what() -> None:
    """Every command is a client's; no command is anybody else's."""
    commands = set(get_args(cmd.AnyCommand))

    assert commands == {body for body, rule in TABLE.items() if rule.role is Role.CLIENT}
    assert 1 == sum(rule.phase is Phase.NEW for rule in TABLE.values())


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_code(cause: Cause, way: Way) -> None:
    """One code for each way of opening, in the protocol's spelling."""
    assert re.fullmatch("[a-z_]+", cause.code(way))


def test_session_events_are_numbered_and_addressed_ones_are_not() -> None:
    """Numbers and ids come from the count, or from the position for an event that is never replayed."""
    session = Scenario.live()
    session.client(cmd.Heartbeat())
    session.asks()
    created, *events = [event for event, _ in session.outbound]

    assert isinstance(created, wire.SessionCreated)
    assert (UNSET, f"event_{session.entries[1][0][0]}_0_0") == (created.server_event_seq, created.event_id)
    assert [(1, "event_1"), (2, "event_2")] == [(event.server_event_seq, event.event_id) for event in events]


def test_one_entry_names_its_addressed_events_apart() -> None:
    """A takeover sends two of them."""
    session = Scenario.live()
    session.attach("a2", shows="t1", offers="t2")

    assert 2 == len({event.event_id for event, _ in session.outbound[-2:]})


def test_a_broken_invariant_is_raised_to_whoever_reduces_entries() -> None:
    """Tools that fold decoded entries see what `reduce_bytes` turns into the session's end."""
    session = Scenario.live()
    entry = JournalEntry(
        session.worker_stamp(), ModelUnitCompleted(7, 0, 0, 0, 0, session.unit_body().decision)
    )

    with pytest.raises(BrokenInvariant, match="unit 7"):
        reduce(session.state, (session.now_ms + 1, 0), entry)
