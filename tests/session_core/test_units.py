"""The unit clock: what a worker that works at once on all it has read feeds its model, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core.config import Clock, ModelProfile, SessionConfig, TurnDetection, Way
from session_core.derive import input_until_ms
from session_core.events import Decision
from session_core.state import State
from session_core.units import UnitPlan, next_unit, silence_due_ms
from tests.session_core.scenario import CONFIG, PROFILE, UNIT_BYTES, UNIT_SAMPLES, Scenario

UNIT_MS, GRACE_MS = 80, 200
RESTFUL = replace(PROFILE, max_silent_units=3)
AUTO = replace(CONFIG, auto_response=True)


def work(session: Scenario, decision: Decision = Decision.LISTEN) -> list[tuple[int, int]]:
    """Work on every unit that is there by now, without time passing; give input and silence of each."""
    now_ms = session.now_ms
    taken: list[tuple[int, int]] = []
    while (plan := next_unit(session.state, now_ms)) is not None and len(taken) < 1_000:
        session.now_ms = now_ms - 1
        session.worker(
            replace(
                session.unit_body(decision),
                unit=plan.unit,
                epoch=plan.epoch,
                first_sample=plan.first_sample,
                input_samples=plan.input_samples,
                silence_samples=plan.silence_samples,
                answers=plan.answers,
            )
        )
        taken.append((plan.input_samples, plan.silence_samples))
    return taken


def run(
    session: Scenario, ms: int, *, send_bytes: int = 0, decision: Decision = Decision.LISTEN
) -> list[tuple[int, int]]:
    """Let `ms` pass in steps of 20 ms, sending so much audio in each, and work."""
    taken = []
    for _ in range(ms // 20):
        session.wait(20)
        if send_bytes:
            session.now_ms -= 1
            session.audio(send_bytes)
        taken += work(session, decision)
    return taken


WHOLE, SILENT = (UNIT_SAMPLES, 0), (0, UNIT_SAMPLES)


# --- input --------------------------------------------------------------------------------------------------


def test_nothing_happens_before_the_first_input() -> None:
    """A session that says nothing costs nothing."""
    session = Scenario.live()

    assert silence_due_ms(session.state) is None
    assert [] == run(session, 10_000)


def test_no_units_without_a_session() -> None:
    """Neither before it opened nor after it ended."""
    session = Scenario.live()
    session.audio()
    session.client(cmd.CloseSession())

    assert (None, None) == (next_unit(State(), 10**9), next_unit(session.state, 10**9))


def test_a_commit_clock_moves_on_by_requests() -> None:
    """The first piece takes all input from before the request, the next ones none; else there is no unit."""
    session = Scenario.live(profile=replace(PROFILE, clock=Clock.COMMIT))
    session.audio(UNIT_BYTES + 960)
    assert (None, None) == (next_unit(session.state, 10**9), silence_due_ms(session.state))

    response_id = session.asks()
    session.audio(960)
    assert UnitPlan(0, 0, 0, UNIT_SAMPLES + 480, 0, response_id, may_speak=True) == next_unit(
        session.state, 0
    )
    session.worker(
        replace(
            session.unit_body(Decision.SPEAK),
            input_samples=UNIT_SAMPLES + 480,
            audio=None,
            answers=response_id,
        )
    )
    taken = UNIT_SAMPLES + 480
    assert UnitPlan(1, 0, taken, 0, 0, response_id, may_speak=True) == next_unit(session.state, 0)
    session.worker(replace(session.unit_body(Decision.TURN_END), input_samples=0, audio=None))
    assert None is next_unit(session.state, 10**9)


def test_paced_input_makes_whole_units() -> None:
    """Input in real time, in chunks of 20 ms, from the first chunk on: not one sample of silence."""
    session = Scenario.live()

    assert [WHOLE] * 25 == run(session, 2_000, send_bytes=960)


def test_a_burst_is_worked_on_at_once() -> None:
    """Input faster than real time makes units as it comes."""
    session = Scenario.live()
    session.audio(10 * UNIT_BYTES + 960)

    assert [WHOLE] * 10 == work(session)


def test_a_burst_buys_no_time_without_silence() -> None:
    """However much came, silence stands in one unit and the grace after the last of it."""
    session = Scenario.live()
    session.audio(100 * UNIT_BYTES)
    work(session)

    assert session.now_ms + UNIT_MS + GRACE_MS >= (silence_due_ms(session.state) or 0)


def test_silence_stands_in_after_the_grace_only() -> None:
    """A chunk comes late, but within the grace: the unit waits for it."""
    session = Scenario.live()
    run(session, 400, send_bytes=960)

    assert [] == run(session, GRACE_MS)
    session.audio(2 * UNIT_BYTES)
    assert [WHOLE] * 2 == work(session)


def test_input_that_is_later_than_the_grace_is_heard_after_the_silence() -> None:
    """What had come of the unit goes first; nothing is lost, everything is later."""
    session = Scenario.live()
    session.audio(960)

    assert [] == run(session, GRACE_MS - 20)
    assert [(480, UNIT_SAMPLES - 480)] == run(session, 40)
    session.audio(UNIT_BYTES)
    assert [WHOLE] == work(session)
    assert session.state.clock.consumed_samples == UNIT_SAMPLES + 480


def test_silence_keeps_the_pace_of_time() -> None:
    """A client that stopped sending: one unit of silence every 80 ms."""
    session = Scenario.live()
    run(session, 80, send_bytes=960)

    assert [SILENT] * 10 == run(session, GRACE_MS + 10 * UNIT_MS)


def test_the_clock_rests_after_enough_silence() -> None:
    """Three silent units in which the model only listened, then nothing until input comes."""
    session = Scenario.live(profile=RESTFUL)
    run(session, 80, send_bytes=960)

    assert [SILENT] * 3 == run(session, 5_000)
    assert silence_due_ms(session.state) is None
    assert [WHOLE] * 5 == run(session, 400, send_bytes=960)


def test_the_clock_does_not_rest_while_the_model_speaks() -> None:
    """A monologue moves on by silence alone."""
    session = Scenario.live(profile=RESTFUL, config=AUTO)
    run(session, 80, send_bytes=960)

    assert [SILENT] * 20 == run(session, GRACE_MS + 20 * UNIT_MS, decision=Decision.SPEAK)


def test_an_outage_leaves_no_debt_of_silence() -> None:
    """Nobody worked for 60 s: two units make up for it, then silence keeps the pace again."""
    session = Scenario.live()
    run(session, 80, send_bytes=960)
    session.wait(60_000)

    assert [SILENT] * 2 == work(session)
    assert [SILENT] * 10 == run(session, 10 * UNIT_MS)


def test_input_of_an_outage_is_heard_without_holes() -> None:
    """The client went on sending: all of it in whole units, and what follows in time as well."""
    session = Scenario.live()
    run(session, 80, send_bytes=960)
    for _ in range(3_000):
        session.wait(19).audio(960)

    assert [WHOLE] * 750 == work(session)
    assert [WHOLE] * 10 == run(session, 800, send_bytes=960)


# --- requests -----------------------------------------------------------------------------------------------


def test_a_request_makes_a_unit_at_once() -> None:
    """Even of pure silence, before any input; it names the response that the model is to give."""
    session = Scenario.live()
    response_id = session.asks()
    plan = next_unit(session.state, session.now_ms)

    assert UnitPlan(0, 0, 0, 0, UNIT_SAMPLES, response_id, may_speak=True) == plan


def test_a_request_takes_the_input_that_has_come() -> None:
    """The rest of the unit is silence."""
    session = Scenario.live()
    session.audio(960)
    session.asks()

    assert [(480, UNIT_SAMPLES - 480)] == work(session)
    assert session.state.response is None


def test_a_burst_before_a_request_is_heard_first() -> None:
    """Whole units of it, in none of which the model may speak; the last one, with silence, answers."""
    session = Scenario.live(Way.OPENAI)
    session.audio(2 * UNIT_BYTES + 960)
    response_id = session.asks()
    plans: list[tuple[int, int, str | None, bool]] = []
    while (plan := next_unit(session.state, session.now_ms)) is not None and len(plans) < 9:
        plans.append((plan.input_samples, plan.silence_samples, plan.answers, plan.may_speak))
        session.listens(answers=plan.answers)

    assert [
        (*WHOLE, None, False),
        (*WHOLE, None, False),
        (480, UNIT_SAMPLES - 480, response_id, True),
    ] == plans
    assert session.state.response is None


def test_a_burst_that_fills_its_last_unit() -> None:
    """The unit that holds the last of it answers; no silence is heard before."""
    session = Scenario.live()
    session.audio(2 * UNIT_BYTES)
    response_id = session.asks()

    answers = []
    for _ in range(2):
        plan = next_unit(session.state, session.now_ms)
        assert plan is not None
        answers.append((plan.silence_samples, plan.answers))
        session.listens(answers=plan.answers)
    assert [(0, None), (0, response_id)] == answers


def test_input_after_a_request_does_not_delay_it() -> None:
    """A client that goes on sending is answered by the unit that hears the end of its question."""
    session = Scenario.live()
    session.audio(UNIT_BYTES)
    response_id = session.asks()
    session.audio(10 * UNIT_BYTES)
    plan = next_unit(session.state, session.now_ms)

    assert plan is not None
    assert (response_id, True) == (plan.answers, plan.may_speak)


def test_a_turn_that_ended_lets_nobody_speak() -> None:
    """Its audio is rendered; until then the model listens."""
    session = Scenario.live(config=AUTO)
    session.audio(2 * UNIT_BYTES)
    session.speaks("a", None, last=True)
    plan = next_unit(session.state, session.now_ms)

    assert plan is not None
    assert (None, False) == (plan.answers, plan.may_speak)


def test_a_response_that_speaks_is_not_asked_again() -> None:
    """From its second unit on, a response moves on with the clock."""
    session = Scenario.live()
    session.asks()
    session.speaks("a")
    plan = next_unit(session.state, session.now_ms + GRACE_MS + UNIT_MS)

    assert next_unit(session.state, session.now_ms - GRACE_MS) is None
    assert plan is not None
    assert (None, True) == (plan.answers, plan.may_speak)


def test_a_unit_tells_whether_the_model_may_speak_unasked() -> None:
    """By the session's settings, while no response is in progress."""
    allowed = []
    for config in (CONFIG, replace(CONFIG, turn_detection=TurnDetection())):
        session = Scenario.live(Way.OPENAI, config=config)
        session.audio()
        plan = next_unit(session.state, session.now_ms)
        assert plan is not None
        allowed.append(plan.may_speak)

    assert [False, True] == allowed


def test_a_cancel_changes_the_epoch_of_the_next_unit() -> None:
    """So that the reducer can mute what was begun before."""
    session = Scenario.live()
    session.audio()
    session.asks()
    session.client(cmd.CancelResponse())
    plan = next_unit(session.state, session.now_ms)

    assert plan is not None
    assert (1, None) == (plan.epoch, plan.answers)


# --- behind the input ---------------------------------------------------------------------------------------

HASTY = replace(PROFILE, max_backlog_ms=1_000)


def behind(
    ms: int, *, profile: ModelProfile = HASTY, config: SessionConfig = AUTO, step_ms: int = 20
) -> Scenario:
    """A client that has spoken for so long while nobody worked."""
    session = Scenario.live(profile=profile, config=config)
    for _ in range(ms // step_ms):
        session.wait(step_ms - 1).audio(48 * step_ms)
    return session


def plans(session: Scenario) -> list[UnitPlan]:
    """Every unit that is there by now, worked on at once by a model that listens; no time passes."""
    now_ms = session.now_ms
    found: list[UnitPlan] = []
    while (plan := next_unit(session.state, now_ms)) is not None and len(found) < 1_000:
        session.now_ms = now_ms - 1
        found.append(plan)
        unit = replace(session.unit_body(), late=plan.late, answers=plan.answers)
        session.worker(replace(unit, silence_samples=plan.silence_samples))
    return found


def test_input_that_waited_too_long_is_heard_in_silence() -> None:
    """Up to the bound on the backlog; from there on the model may speak again."""
    found = plans(behind(3_200))

    assert [True] * 27 + [False] * 13 == [plan.late for plan in found]
    assert [plan.may_speak for plan in found] == [not plan.late for plan in found]


def test_a_burst_is_not_late() -> None:
    """However long it is: it has only just come."""
    session = Scenario.live(profile=HASTY, config=AUTO)
    session.audio(100 * UNIT_BYTES)

    assert {False} == {plan.late for plan in plans(session)}


def test_each_burst_is_as_late_as_itself() -> None:
    """The first came long ago; the second, after a pause, has just come."""
    session = Scenario.live(profile=HASTY, config=AUTO)
    session.audio(4 * UNIT_BYTES)
    session.wait(5_000).audio(4 * UNIT_BYTES)

    assert [True] * 4 + [False] * 4 == [plan.late for plan in plans(session)]


def test_without_a_bound_no_input_is_late() -> None:
    """The model answers whatever it hears, whenever it hears it."""
    assert {False} == {plan.late for plan in plans(behind(3_200, profile=replace(HASTY, max_backlog_ms=0)))}


def test_a_request_waits_until_the_model_has_caught_up() -> None:
    """The unit that hears the end of the question answers, in time."""
    session = behind(3_200, config=CONFIG)
    response_id = session.asks()
    found = plans(session)

    assert [None] * 39 + [response_id] == [plan.answers for plan in found]
    assert not found[-1].late


@pytest.mark.parametrize("decision", Decision)
def test_a_late_unit_says_nothing_and_ends_nothing(decision: Decision) -> None:
    """It counts for the clock and stands in the context; the response goes on once the model caught up."""
    session = behind(3_200)
    session.speaks("Hello")
    before = session.state.response
    unit = replace(session.unit_body(decision), text="late", late=True)

    assert [] == session.worker(unit)
    assert (ch.UnitTaken(unit, muted=decision is not Decision.LISTEN),) == session.changes
    assert (before, 2) == (session.state.response, session.state.clock.next_unit)


def test_what_is_known_of_the_backlog_is_bounded() -> None:
    """Of many pauses in it the first and the newest are known: what is between seems to have come earlier."""
    session = Scenario.live(profile=HASTY)
    session.audio()
    first = session.state.input.arrivals
    for _ in range(30):
        session.wait(500).audio()

    assert (16, *first) == (len(session.state.input.arrivals), session.state.input.arrivals[0])
    assert session.now_ms == session.state.input.arrivals[-1].ms
    plans(session)
    session.audio()
    assert 1 == len(session.state.input.arrivals)


def test_input_covers_what_the_user_says_while_it_is_spoken() -> None:
    """At the pace of speech from its arrival on; of a long burst two seconds at most."""
    session = Scenario.live()
    assert session.now_ms == input_until_ms(session.state)

    session.audio(48 * 500)
    assert session.now_ms + 500 == input_until_ms(session.state)
    session.audio(48 * 10_000)
    assert session.state.input.arrivals[-1].ms + 2_000 == input_until_ms(session.state)


# --- properties ---------------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 79, 80, 500, 60_000])),
        st.tuples(st.just("send"), st.sampled_from([0, 2, 960, 3_840, 5_000, 40_000])),
        st.tuples(st.just("work"), st.just(0)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=40,
)


@given(_STEPS)
def test_units_hold_all_input_once(steps: list[tuple[str, int]]) -> None:
    """Consumed never exceeds received; after a drain, units hold all that was not cleared."""
    session = Scenario.live(profile=RESTFUL)
    taken = cleared = 0
    for step, amount in steps:
        before = session.state.clock
        if step == "wait":
            session.wait(amount)
        elif step == "send":
            session.audio(amount)
        elif step == "clear":
            session.client(cmd.ClearInput())
            cleared += session.state.clock.consumed_samples - before.consumed_samples
        else:
            units = work(session)
            taken += sum(samples for samples, _ in units)
            assert before.next_unit + len(units) == session.state.clock.next_unit
            assert all(UNIT_SAMPLES == samples + silence for samples, silence in units)
        received = session.state.input.received_samples(24_000)
        assert taken + cleared == session.state.clock.consumed_samples <= received
        assert 2 * (received - session.state.clock.consumed_samples) == session.state.input.pending_bytes
    # a request makes the last, incomplete unit come at once
    taken += sum(samples for samples, _ in work(session))
    session.asks()
    taken += sum(samples for samples, _ in work(session))
    assert session.state.input.received_samples(24_000) == taken + cleared


@given(_STEPS, st.integers(0, 300_000))
def test_time_alone_makes_no_unit_before_silence_is_due(steps: list[tuple[str, int]], ahead_ms: int) -> None:
    """Without a whole unit of input and without a request, a unit exists exactly from `silence_due_ms` on."""
    session = Scenario.live(profile=RESTFUL)
    for step, amount in steps:
        if step == "wait":
            session.wait(amount)
        elif step == "send":
            session.audio(amount)
        elif step == "work":
            work(session)
    while next_unit(session.state, 0) is not None:
        session.listens()
    due_ms = silence_due_ms(session.state)

    exists = due_ms is not None and session.now_ms + ahead_ms >= due_ms
    assert exists == (next_unit(session.state, session.now_ms + ahead_ms) is not None)
