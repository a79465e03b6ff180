"""
Input that waited through an outage is heard late, not spoken late; input that has just come is not late.
"""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_worker.loopback import LoopbackPlugin
from session_core import events as ev
from session_core import wire
from session_core.config import ModelProfile
from session_core.derive import input_until_ms, spoken_ms
from session_core.units import next_unit
from tests.gpu_worker.client import Client, Scene
from tests.gpu_worker.plugin_contract import session_config
from tests.gpu_worker.speech import clip, silence
from tests.session_core.scenario import CONFIG, PROFILE, UNIT_BYTES, UNIT_SAMPLES, Scenario

AUTO = replace(CONFIG, auto_response=True)
BACKLOG_MS = PROFILE.max_backlog_ms


def stream(session: Scenario, duration_ms: int) -> None:
    """The client sends in real time, a unit at once."""
    for _ in range(duration_ms // 80):
        session.wait(79)
        session.audio()


def take(session: Scenario) -> bool:
    """Works on the unit that is due; tells whether it was late."""
    plan = next_unit(session.state, session.now_ms)
    assert plan is not None
    session.worker(replace(session.unit_body(), late=plan.late))
    return plan.late


def test_a_model_that_keeps_up_is_never_late() -> None:
    """In real time no unit is late, and one arrival is all there is to remember."""
    session = Scenario.live(config=AUTO)
    for _ in range(300):
        stream(session, 80)
        assert not take(session)
        assert 1 == len(session.state.input.arrivals)


def test_what_waited_through_an_outage_is_heard_in_silence() -> None:
    """Of 20 s, the first 10 may not be spoken over; then the model has caught up."""
    session = Scenario.live(config=AUTO)
    stream(session, 20_000)
    late = [take(session) for _ in range(240)]
    assert abs((20_000 - BACKLOG_MS) // 80 - sum(late)) <= 2
    assert sorted(late, reverse=True) == late


def test_a_burst_that_has_just_come_is_not_late() -> None:
    """A minute sent at once may be answered at once, although working on it takes a while."""
    session = Scenario.live(config=AUTO)
    session.audio(750 * UNIT_BYTES)
    for _ in range(700):
        session.wait(30)
        assert not take(session)


def test_a_burst_that_waited_is_late() -> None:
    """The same minute, after an outage of two, is heard in silence, up to what would be said now."""
    session = Scenario.live(config=AUTO)
    session.audio(750 * UNIT_BYTES)
    session.wait(120_000)
    assert all(take(session) for _ in range(740))


def test_late_units_leave_a_response_as_it_is() -> None:
    """A response in progress neither ends nor goes on by a late unit, and goes on after it."""
    session = Scenario.live(config=AUTO)
    session.audio()
    session.speaks("one ")
    stream(session, 10_400)
    session.wait(400)
    plan = next_unit(session.state, session.now_ms)
    assert plan is not None
    assert (True, False, None) == (plan.late, plan.may_speak, plan.answers)
    heard = session.worker(replace(session.unit_body(), late=True))
    response = session.state.response
    assert [] == heard
    assert response is not None
    assert response.message is not None
    assert "one " == response.message.text


def test_a_question_is_answered_once_the_model_has_caught_up() -> None:
    """A response that is asked for waits for the late units, and is answered after them."""
    session = Scenario.live()
    stream(session, 12_000)
    response_id = session.asks()
    answers: list[str] = []
    while not answers:
        plan = next_unit(session.state, session.now_ms)
        assert plan is not None
        answers = [plan.answers] if plan.answers else []
        session.worker(replace(session.unit_body(), late=plan.late))
    assert [response_id] == answers


def test_it_can_be_switched_off() -> None:
    """Zero: everything is spoken, however late."""
    session = Scenario.live(config=AUTO, profile=replace(PROFILE, max_backlog_ms=0))
    stream(session, 30_000)
    assert not any(take(session) for _ in range(300))


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 40)), min_size=1, max_size=60))
def test_what_is_remembered_of_arrivals_is_bounded_and_in_order(sent: list[tuple[int, int]]) -> None:
    """Whatever comes when, a few arrivals are kept, and no sample seems to have come before it did."""
    session = Scenario.live()
    came: list[tuple[int, int]] = []
    for wait_ms, units in sent:
        session.wait(wait_ms)
        session.audio(units * UNIT_BYTES)
        came.append((came[-1][0] + units if came else units, session.now_ms))
    arrivals = session.state.input.arrivals
    assert 1 <= len(arrivals) <= 16
    assert sorted(arrivals) == list(arrivals)
    newest = came[-1][0] * UNIT_SAMPLES
    assert spoken_ms(session.state, newest) >= arrivals[-1].ms
    assert input_until_ms(session.state) <= arrivals[-1].ms + 2_000


async def test_another_worker_hears_an_outage_and_goes_on_speaking() -> None:
    """After an outage longer than the backlog the reply goes on where it stopped, after silence."""
    scene = Scene()
    plugin = LoopbackPlugin()
    plugin.profile = replace(LoopbackPlugin.profile, max_backlog_ms=1_000)
    async with scene.store() as store:
        client = Client(scene, store, session_config(plugin), plugin.profile)
        async with scene.worker(plugin) as (_, task), scene.worker(plugin, "worker-b"):
            await client.open()
            await client.say(np.concatenate((silence(400), clip("austen_0930.wav"), silence(1_200))))
            assert client.state.response is not None
            task.cancel()
            await asyncio.wait([task])
            await client.append(ev.AssignmentDeclined(1, "lost"))
            await client.until(lambda state: state.worker.worker is None)
            await client.say(silence(4_000))
            await client.assign("worker-b")
            await client.say(silence(3_000))
            await client.until(lambda state: state.response is None)
    units = client.units()
    late = [unit.unit for unit in units if unit.late]
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert abs(3_000 // 80 - len(late)) <= 3
    assert list(range(late[0], late[-1] + 1)) == late
    assert {ev.Decision.LISTEN} == {units[unit].decision for unit in late}
    assert ["completed"] == [event.response.status for event in done]
    assert 1 == len(client.transcripts)


def test_the_backlog_is_part_of_the_profile() -> None:
    """A model that works much faster than real time may catch up aloud."""
    assert 10_000 == ModelProfile(model="any").max_backlog_ms
