"""Who holds a session: opening, attachments, resume, takeover, workers, poison."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Clock, Dialect, Limits, Way
from session_core.journal import Role, Stamp
from session_core.state import EndReason, Phase
from tests.session_core.scenario import CONFIG, OPENED_MS, PROFILE, Scenario, token_hash, types

# --- opening ------------------------------------------------------------------------------------------------


def test_opening_pins_what_never_changes() -> None:
    """The first entry makes the session, silently, at its own time."""
    session = Scenario.opened()
    pinned = session.state.pinned

    assert [] == session.outbound
    assert ("s1", OPENED_MS, "loopback") == (pinned.session_id, pinned.opened_ms, pinned.profile.model)
    assert (Phase.OPEN, CONFIG) == (session.state.phase, session.state.config)
    assert (OPENED_MS, OPENED_MS) == (session.state.active_ms, session.state.attachment.since_ms)


def test_a_second_opening_changes_nothing() -> None:
    """A session opens once."""
    session = Scenario.opened()
    before = session.state
    session.fact(ev.SessionOpened("s2", PROFILE, CONFIG, Limits(), Way.OPENAI, Dialect.BETA, 1))

    assert replace(before, position=session.state.position) == session.state


@pytest.mark.parametrize("way", Way)
def test_nothing_counts_before_the_opening(way: Way) -> None:
    """An entry of a session that does not exist yet changes nothing, and does not keep it from opening."""
    session = Scenario()
    session.fact(ev.WorkerAssigned("w1", 1))
    session.append(cmd.AppendAudio(b"12"), Stamp(Role.CLIENT, 0, 1))

    assert ([], Phase.NEW) == (session.outbound, session.state.phase)


@pytest.mark.parametrize(("way", "generation"), [(Way.DUPLEX, 1), (Way.OPENAI, None)])
def test_the_first_attachment_is_told_that_the_session_is_created(way: Way, generation: int | None) -> None:
    """`session.created` goes to the attachment alone, unnumbered; its generation only to duplex clients."""
    session = Scenario.opened(way)
    (created,) = session.attach("a1", offers="t1")

    assert isinstance(created, wire.SessionCreated)
    assert "a1" == session.outbound[-1].attachment_id
    assert (generation or UNSET) == created.attachment_generation
    assert 0 == session.state.seq
    assert (way is Way.DUPLEX) == (created.session.capabilities is not UNSET)


def test_the_first_attachment_shows_no_token() -> None:
    """Whoever comes first with a token has one of another session."""
    session = Scenario.opened()
    (refused,) = session.attach("a1", offers="t1", shows="t0")

    assert isinstance(refused, wire.ResumeRefused)
    assert "invalid_resume_token" == refused.error.code


# --- resume and takeover ------------------------------------------------------------------------------------


def resumed(session: Scenario, attachment_id: str, shows: str, offers: str) -> bool:
    """Try to resume; tell whether it worked."""
    events = session.attach(attachment_id, shows=shows, offers=offers)
    assert {attachment_id} >= {name for _, name in session.outbound[-1:]}
    return isinstance(events[-1], wire.SessionResumed)


def test_a_resume_whose_answer_is_lost_costs_nothing() -> None:
    """Three answers get lost: the client shows its old token each time, and the fourth time it works too."""
    session = Scenario.live()
    session.audio()
    for number in (2, 3, 4, 5):
        session.fact(ev.ClientDetached(session.state.attachment.generation))
        assert resumed(session, f"a{number}", shows="t1", offers=f"t{number}")

    session.audio()
    assert (5, "a5") == (session.state.attachment.generation, session.state.attachment.attachment_id)
    assert token_hash("t5") == session.state.attachment.confirmed_hash


def test_an_offered_token_that_is_shown_is_confirmed() -> None:
    """The answer did arrive, but the client was lost before it spoke: it shows the new token."""
    session = Scenario.live()

    assert resumed(session, "a2", shows="t1", offers="t2")
    assert resumed(session, "a3", shows="t2", offers="t3")
    assert not resumed(session, "a4", shows="t1", offers="t4")


def test_the_old_token_dies_when_the_new_attachment_speaks() -> None:
    """Any command of the new attachment proves that it has its token, even the one that does nothing else."""
    session = Scenario.live()
    session.attach("a2", shows="t1", offers="t2")
    session.client(cmd.ConfirmAttachment())
    (refused,) = session.attach("a3", shows="t1", offers="t3")

    assert isinstance(refused, wire.ResumeRefused)
    assert ("invalid_resume_token", "a3") == (refused.error.code, session.outbound[-1].attachment_id)
    assert resumed(session, "a4", shows="t2", offers="t4")


def test_a_takeover_tells_the_replaced_client() -> None:
    """A second client with the token takes the session from a live one, which hears of it first."""
    session = Scenario.live()
    events = session.attach("a2", shows="t1", offers="t2")

    assert ["session.replaced", "session.resumed"] == types(events)
    assert ["a1", "a2"] == [attachment_id for _, attachment_id in session.outbound[-2:]]
    assert [UNSET, UNSET] == [event.server_event_seq for event in events]


def test_a_resume_after_a_drop_replaces_nobody() -> None:
    """Nobody is told that he was replaced when nobody was there."""
    session = Scenario.live()
    session.audio(960, "e7")
    session.fact(ev.ClientDetached(1))
    (event,) = session.attach("a2", shows="t1", offers="t2", received_seq=3)

    assert isinstance(event, wire.SessionResumed)
    assert (2, 3) == (event.attachment_generation, event.last_received_server_event_seq)
    assert (20, 960, "e7") == (
        event.input_audio_received_ms,
        event.input_audio_received_bytes,
        event.last_client_event_id,
    )


def test_the_loser_of_a_race_changes_nothing() -> None:
    """Two clients with one token name the same generation: the first in the journal has it."""
    session = Scenario.live()
    session.attach("a2", shows="t1", offers="t2", generation=2)
    before = session.state
    (refused,) = session.attach("a3", shows="t1", offers="t3", generation=2)

    assert isinstance(refused, wire.ResumeRefused)
    assert ("session_resume_conflict", "a3") == (refused.error.code, session.outbound[-1].attachment_id)
    assert replace(before, position=session.state.position) == session.state


def test_a_repeated_attachment_changes_nothing() -> None:
    """A gateway that does not know whether its entry arrived appends it again."""
    session = Scenario.live()
    session.attach("a2", shows="t1", offers="t2")
    before = session.state

    assert [] == session.attach("a2", shows="t1", offers="t2")
    assert replace(before, position=session.state.position) == session.state


def test_a_detached_client_starts_the_grace_period() -> None:
    """The client in office is gone; commands that still come from it count for nothing."""
    session = Scenario.live()
    session.fact(ev.ClientDetached(1))

    assert (False, session.now_ms) == (session.state.attachment.attached, session.state.attachment.since_ms)
    assert [] == session.client(cmd.Heartbeat())


@pytest.mark.parametrize("generation", [0, 2])
def test_a_detachment_of_another_generation_changes_nothing(generation: int) -> None:
    """A late suspicion of an old attachment does not touch the new one."""
    session = Scenario.live()
    session.fact(ev.ClientDetached(generation))

    assert session.state.attachment.attached


def test_a_second_detachment_does_not_start_the_grace_period_again() -> None:
    """Ten reapers may say that the client is gone."""
    session = Scenario.live()
    session.fact(ev.ClientDetached(1))
    since_ms = session.state.attachment.since_ms
    session.fact(ev.ClientDetached(1))

    assert since_ms == session.state.attachment.since_ms


# --- writers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stamp",
    [
        pytest.param(None, id="no stamp"),
        pytest.param(Stamp(Role.WORKER, 2, 2), id="a worker's"),
        pytest.param(Stamp(Role.CLIENT, 1, 1), id="old generation"),
        pytest.param(Stamp(Role.CLIENT, 3, 1), id="generation to come"),
        pytest.param(Stamp(Role.CLIENT, 2, 1), id="repeated"),
        pytest.param(Stamp(Role.CLIENT, 2, 3), id="skipped"),
    ],
)
def test_a_stale_append_of_a_client_moves_the_position_only(stamp: Stamp | None) -> None:
    """Only the next number of the attachment in office counts."""
    session = Scenario.live()
    session.attach("a2", shows="t1", offers="t2")
    session.audio()
    before = session.state

    assert [] == session.append(cmd.AppendAudio(bytes(960), "e1"), stamp)
    assert replace(before, position=session.state.position) == session.state


@pytest.mark.parametrize(
    "stamp",
    [
        pytest.param(None, id="no stamp"),
        pytest.param(Stamp(Role.CLIENT, 2, 2), id="a client's"),
        pytest.param(Stamp(Role.WORKER, 1, 1), id="old generation"),
        pytest.param(Stamp(Role.WORKER, 2, 1), id="repeated"),
        pytest.param(Stamp(Role.WORKER, 2, 3), id="skipped"),
    ],
)
def test_a_stale_append_of_a_worker_moves_the_position_only(stamp: Stamp | None) -> None:
    """Only the next number of the worker in office counts, whatever the entry says."""
    session = Scenario.live()
    session.fact(ev.WorkerAssigned("w2", 2))
    session.listens()
    before = session.state

    assert [] == session.append(session.unit_body(), stamp)
    assert replace(before, position=session.state.position) == session.state


def test_writers_count_without_a_gap() -> None:
    """1, 2, 3 of either writer are taken, each once, independently of the other's."""
    session = Scenario.live()
    for n in (1, 2, 3):
        session.append(cmd.AppendAudio(bytes(960)), Stamp(Role.CLIENT, 1, n))
        session.append(session.unit_body(), Stamp(Role.WORKER, 1, n))

    assert (3, 3) == (session.state.attachment.last_n, session.state.worker.last_n)
    assert (3 * 960, 3) == (session.state.input.received_bytes, session.state.clock.next_unit)


def test_a_new_generation_counts_from_one() -> None:
    """The numbers of a writer die with its generation."""
    session = Scenario.live()
    session.audio()
    session.listens()
    session.attach("a2", shows="t1", offers="t2")
    session.fact(ev.WorkerAssigned("w2", 2))

    assert (Stamp(Role.CLIENT, 2, 1), Stamp(Role.WORKER, 2, 1)) == (
        session.client_stamp(),
        session.worker_stamp(),
    )


# --- workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [1, 3])
def test_an_assignment_of_another_generation_changes_nothing(generation: int) -> None:
    """Of two gateways that assign a worker at once, the first in the journal has its way."""
    session = Scenario.live()
    session.fact(ev.WorkerAssigned("w9", generation))

    assert ("w1", 1) == (session.state.worker.worker, session.state.worker.generation)


def test_a_declined_assignment_leaves_the_session_waiting() -> None:
    """The generation stays, so that the next worker takes the one after."""
    session = Scenario.live()
    session.fact(ev.AssignmentDeclined(1, "full"))

    assert (None, 1) == (session.state.worker.worker, session.state.worker.generation)
    assert [] == session.append(session.unit_body(), Stamp(Role.WORKER, 1, 1))
    session.fact(ev.AssignmentDeclined(1, "full"))
    session.fact(ev.WorkerAssigned("w2", 2))
    assert "w2" == session.state.worker.worker


def test_a_declined_assignment_of_another_generation_changes_nothing() -> None:
    """A worker that was late to decline does not take the session from its successor."""
    session = Scenario.live()
    session.fact(ev.WorkerAssigned("w2", 2))
    session.fact(ev.AssignmentDeclined(1, "full"))

    assert "w2" == session.state.worker.worker


def test_a_failed_worker_leaves_the_session_waiting() -> None:
    """Its reason reaches no client."""
    session = Scenario.live()

    assert [] == session.worker(ev.ModelFailed("out of memory"))
    assert session.state.worker.worker is None


def fail(session: Scenario, workers: int) -> list[wire.ServerEvent]:
    """Let `workers` workers come after the one in office, each dying after it began to work."""
    events: list[wire.ServerEvent] = []
    for _ in range(workers):
        session.worker(ev.ServingBegan())
        generation = session.state.worker.generation + 1
        events = session.fact(ev.WorkerAssigned(f"w{generation}", generation))
    return events


def test_three_workers_that_had_work_and_did_none_end_the_session() -> None:
    """Poison: what kills three workers in a row does not get a fourth."""
    session = Scenario.live()
    session.audio()

    assert [] == fail(session, 2)
    assert ["error", "session.closed"] == types(fail(session, 1))
    assert EndReason.ENGINE_ERROR == session.state.end_reason


def test_a_response_that_nobody_gives_is_poison() -> None:
    """A response to give is work too; it ends failed."""
    session = Scenario.live()
    session.asks()
    events = fail(session, 3)

    assert ["response.done", "rate_limits.updated", "error", "session.closed"] == types(events)
    assert isinstance(events[0], wire.ResponseDone)
    assert ("failed", wire.StatusDetails(type="failed", cause="engine_error")) == (
        events[0].response.status,
        events[0].response.status_details,
    )


def test_a_session_that_waited_for_its_turn_is_not_to_blame() -> None:
    """A worker that died before it began to work on this session was killed by another one."""
    session = Scenario.live()
    session.audio()
    for generation in range(2, 10):
        session.fact(ev.WorkerAssigned("w", generation))

    assert 0 == session.state.worker.barren
    session.worker(ev.ServingBegan())
    assert session.state.worker.serving
    session.fact(ev.WorkerAssigned("w", 10))
    assert (1, False) == (session.state.worker.barren, session.state.worker.serving)


def test_an_idle_session_is_never_poison() -> None:
    """Workers that had nothing to do are not to blame the session for their deaths."""
    session = Scenario.live()
    session.audio(1_000)

    assert [] == fail(session, 10)
    assert "w11" == session.state.worker.worker


def test_input_that_was_worked_on_is_no_work() -> None:
    """What a unit took is not waiting any more."""
    session = Scenario.live()
    session.audio()
    session.listens()

    assert [] == fail(session, 10)


def test_input_alone_is_no_work_on_the_commit_clock() -> None:
    """A model that waits to be asked has nothing to do with input that nobody committed."""
    session = Scenario.live(profile=replace(PROFILE, clock=Clock.COMMIT))
    session.audio(50_000)

    assert [] == fail(session, 10)
    assert "w11" == session.state.worker.worker


def test_one_unit_clears_the_suspicion() -> None:
    """Barren generations count in a row only."""
    session = Scenario.live()
    session.audio(8 * 3_840)
    fail(session, 2)
    session.listens()

    assert 2 == session.state.worker.barren
    assert [] == fail(session, 1)
    assert 0 == session.state.worker.barren
    assert [] == fail(session, 2)


@pytest.mark.parametrize(("fails", "ended"), [(True, True), (False, False)])
def test_who_fails_counts_and_who_declines_does_not(fails: bool, ended: bool) -> None:
    """Three workers that failed are a sign of poison, three that are full are none."""
    session = Scenario.live()
    session.audio()
    for generation in (1, 2, 3):
        if fails:
            session.worker(ev.ModelFailed("boom"))
        else:
            session.fact(ev.AssignmentDeclined(generation, "full"))
        session.fact(ev.WorkerAssigned("w", generation + 1))

    assert ended == (EndReason.ENGINE_ERROR == session.state.end_reason)


@pytest.mark.parametrize("fails", [True, False])
def test_a_worker_that_did_something_clears_the_suspicion_when_it_leaves(fails: bool) -> None:
    """It failed or was drained after a completed unit."""
    session = Scenario.live()
    session.audio(2 * 3_840)
    fail(session, 2)
    session.listens()
    if fails:
        session.worker(ev.ModelFailed("boom"))
    else:
        session.fact(ev.AssignmentDeclined(3, "draining"))

    assert 0 == session.state.worker.barren


def test_a_worker_that_fails_with_nothing_to_do_is_barren_all_the_same() -> None:
    """It said itself that it cannot serve this session, so nobody needs a unit to know."""
    session = Scenario.live()
    session.worker(ev.ModelFailed("boom"))

    assert 1 == session.state.worker.barren
