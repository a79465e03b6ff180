"""Life signs, deadlines, and the ways in which a session ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Limits, SessionConfig, SessionPatch, Transcription, TurnDetection, Way
from session_core.deadlines import Deadline, deadlines, next_deadline
from session_core.items import Part
from session_core.state import EndReason, Phase, State
from tests.session_core.scenario import CONFIG, OPENED_MS, PROFILE, Scenario, one, types
from tests.session_core.sequences import COMMITTED

LIMITS = Limits(
    max_session_ms=100_000, warn_before_ms=10_000, disconnect_grace_ms=5_000, idle_timeout_ms=20_000
)
IDLE, GRACE, WARNING, MAXIMUM, SILENCE = ev.DeadlineKind


def passes(session: Scenario, deadline: Deadline, *, late_ms: int = 0) -> list[wire.ServerEvent]:
    """Say that a deadline passed, at its due time or `late_ms` after."""
    session.now_ms = deadline.due_ms + late_ms - 1
    return session.fact(ev.DeadlinePassed(deadline.kind, deadline.due_ms))


def due(session: Scenario) -> Deadline:
    """The session's next deadline."""
    deadline = next_deadline(session.state)
    assert deadline is not None
    return deadline


# --- life signs ---------------------------------------------------------------------------------------------


def test_a_heartbeat_brings_receipts() -> None:
    """What the journal holds of the client's input, so that it can send the rest again."""
    session = Scenario.live()
    session.audio(960, "e1")
    (ack,) = session.client(cmd.Heartbeat("e2"))

    assert isinstance(ack, wire.HeartbeatAck)
    assert ("s1", 20, 960, "e2") == (
        ack.session_id,
        ack.input_audio_received_ms,
        ack.input_audio_received_bytes,
        ack.last_client_event_id,
    )


def test_a_command_without_an_id_keeps_the_last_one() -> None:
    """`last_client_event_id` is the last that the client gave."""
    session = Scenario.live()
    session.audio(960, "e1")
    session.audio(960)

    assert "e1" == session.state.input.last_client_event_id


def test_a_confirmation_is_silent() -> None:
    """It shows that the client is there, and nothing else."""
    session = Scenario.live()

    assert [] == session.client(cmd.ConfirmAttachment())
    assert () == session.changes
    assert (session.now_ms, None) == (session.state.active_ms, session.state.attachment.offered_hash)


def test_a_digest_changes_nothing() -> None:
    """It is there to be compared with."""
    session = Scenario.live()
    session.audio()
    before = session.state

    assert [] == session.fact(session.fold.outbound_digest())
    assert replace(before, position=session.state.position) == session.state


# --- deadlines ----------------------------------------------------------------------------------------------


def test_deadlines_of_a_session_that_nobody_holds() -> None:
    """The grace period runs from the opening."""
    session = Scenario.opened(limits=LIMITS)

    assert Deadline(OPENED_MS + 5_000, GRACE) == due(session)
    assert ["session.expired"] == types(passes(session, due(session)))
    assert EndReason.GRACE == session.state.end_reason


def test_a_client_that_is_there_has_no_grace_period() -> None:
    """It has an idle limit, which every command moves on."""
    session = Scenario.live(limits=LIMITS)
    session.wait(1_000).audio()

    assert Deadline(session.now_ms + 20_000, IDLE) == due(session)


def test_the_client_sets_its_own_idle_limit() -> None:
    """`idle_timeout_s` comes before the deployment's limit."""
    session = Scenario.live(limits=LIMITS, config=replace(CONFIG, idle_timeout_s=3))
    session.audio()

    assert Deadline(session.now_ms + 3_000, IDLE) == due(session)


def test_an_idle_session_ends() -> None:
    """Stock clients read an error, duplex clients their own last event as well."""
    session = Scenario.live(limits=LIMITS)
    events = passes(session, due(session), late_ms=60)

    assert ["error", "session.expired"] == types(events)
    assert isinstance(events[0], wire.ErrorEvent)
    assert ("session_expired", None) == (events[0].error.code, events[0].error.event_id)
    assert EndReason.IDLE == session.state.end_reason


def test_a_dropped_client_has_the_grace_period() -> None:
    """Its worker's output does not keep it alive; a resume does."""
    session = Scenario.live(limits=LIMITS)
    session.audio()
    session.fact(ev.ClientDetached(1))
    deadline = due(session)
    assert Deadline(session.now_ms + 5_000, GRACE) == deadline

    session.wait(4_000).listens()
    assert deadline == due(session)
    session.attach("a2", shows="t1", offers="t2")
    assert [] == passes(session, deadline)
    assert Phase.OPEN == session.state.phase


def test_the_maximum_is_announced_and_ends_the_session() -> None:
    """One warning, then the end, however alive the client is."""
    session = Scenario.live(limits=LIMITS)
    session.now_ms = OPENED_MS + 80_000
    session.audio()

    warning = due(session)
    assert Deadline(OPENED_MS + 90_000, WARNING) == warning
    (event,) = passes(session, warning)
    assert isinstance(event, wire.TurnEvent)
    assert ("session_expiring", (OPENED_MS + 100_000) // 1000) == (event.event, event.expires_at)
    assert [] == passes(session, warning)

    session.audio()
    assert Deadline(OPENED_MS + 100_000, MAXIMUM) == due(session)
    assert ["error", "session.expired"] == types(passes(session, due(session)))
    assert EndReason.MAXIMUM == session.state.end_reason


def test_a_deadline_takes_effect_once() -> None:
    """Ten processes saw it pass."""
    session = Scenario.live(limits=LIMITS)
    deadline = due(session)
    passes(session, deadline)
    before = session.state

    for _ in range(9):
        assert [] == session.fact(ev.DeadlinePassed(deadline.kind, deadline.due_ms))
    assert replace(before, position=session.state.position) == session.state


def test_an_early_deadline_changes_nothing() -> None:
    """A process whose clock runs ahead of the store's."""
    session = Scenario.live(limits=LIMITS)

    assert [] == passes(session, due(session), late_ms=-1)
    assert Phase.OPEN == session.state.phase


@pytest.mark.parametrize(("kind", "shift_ms"), [(IDLE, -1), (IDLE, 1), (GRACE, 0), (WARNING, 0)])
def test_a_deadline_that_the_session_does_not_have_changes_nothing(
    kind: ev.DeadlineKind, shift_ms: int
) -> None:
    """The session moved on after somebody read it."""
    session = Scenario.live(limits=LIMITS)
    due_ms = due(session).due_ms + shift_ms

    assert [] == passes(session, Deadline(due_ms, kind), late_ms=10)


@pytest.mark.parametrize("ended", [True, False])
def test_a_session_that_is_not_open_has_no_deadlines(ended: bool) -> None:
    """Nothing can happen to it any more, or yet."""
    session = Scenario.live()
    session.client(cmd.CloseSession())

    assert next_deadline(session.state if ended else State()) is None


# --- the user says nothing ----------------------------------------------------------------------------------

PATIENT = replace(CONFIG, turn_detection=TurnDetection(idle_timeout_ms=6_000))


def answered(config: SessionConfig = PATIENT, way: Way = Way.DUPLEX) -> Scenario:
    """A session whose model gave an answer of 80 ms to a committed question of 200 ms."""
    session = Scenario.live(way, config=config)
    session.commits()
    session.asks()
    session.speaks("Hello?", last=True)
    return session


@pytest.mark.parametrize("way", Way)
def test_silence_after_an_answer_is_answered(way: Way) -> None:
    """From the end of playing on; the silence becomes the user's turn and gets a response."""
    session = answered(way=way)
    session.audio(48 * 300)
    began_ms = session.state.playback.began_ms

    assert Deadline(began_ms + 80 + 6_000, SILENCE) == due(session)
    assert [] == passes(session, due(session), late_ms=-1)
    events = passes(session, due(session))
    assert ["input_audio_buffer.timeout_triggered", *COMMITTED, "response.created"] == types(events)
    item, timeout = session.state.history[-1], one(events, wire.InputTimeoutTriggered)
    assert (item.item_id, 200, 500) == (timeout.item_id, timeout.audio_start_ms, timeout.audio_end_ms)
    assert Part("input_audio", first_sample=4_800, samples=7_200) == item.parts[0]


def test_silence_is_answered_once() -> None:
    """Until the model has spoken again: repeats change nothing, nor does the next answer wait less."""
    session = answered()
    deadline = due(session)
    passes(session, deadline)

    assert [] == session.fact(ev.DeadlinePassed(deadline.kind, deadline.due_ms))
    assert SILENCE not in [other.kind for other in deadlines(session.state)]
    session.speaks("Are you there?", last=True)
    assert Deadline(session.now_ms + 80 + 6_000, SILENCE) == due(session)


@pytest.mark.parametrize(
    "breaks",
    [
        pytest.param(lambda session: session.worker(ev.SpeechStarted(4_800)), id="the user speaks"),
        pytest.param(lambda session: session.commits(), id="a commit"),
        pytest.param(lambda session: session.writes("Hi"), id="an item"),
        pytest.param(lambda session: session.client(cmd.AppendText("Hi")), id="text in the turn"),
        pytest.param(lambda session: session.asks(), id="a request"),
        pytest.param(
            lambda session: session.client(cmd.UpdateSession(SessionPatch(turn_detection=None))),
            id="no turn detection",
        ),
        pytest.param(
            lambda session: session.client(cmd.UpdateSession(SessionPatch(turn_detection=TurnDetection()))),
            id="no timeout",
        ),
    ],
)
def test_silence_is_not_answered(breaks: Callable[[Scenario], object]) -> None:
    """The user did something, or wants it otherwise."""
    session = Scenario.live(config=PATIENT, profile=replace(PROFILE, supports_text=True))
    session.asks()
    session.speaks("Hello?", last=True)
    session.audio(48 * 300)
    assert SILENCE is due(session).kind
    breaks(session)

    assert SILENCE not in [deadline.kind for deadline in deadlines(session.state)]


def test_silence_is_not_answered_before_the_model_spoke() -> None:
    """There is nothing that the user could be silent about."""
    session = Scenario.live(config=PATIENT)
    assert SILENCE is not due(session).kind

    session.commits()
    assert SILENCE is not due(session).kind


def test_silence_without_input_is_an_item_without_length() -> None:
    """A client that sends nothing says nothing; the item waits for its transcript like any other."""
    session = answered(replace(PATIENT, transcription=Transcription("whisper")))
    passes(session, due(session))
    item = session.state.history[-1]

    assert 0 == item.parts[0].samples
    assert item.item_id in session.state.transcribing


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", Way)
def test_a_client_closes_its_session(way: Way) -> None:
    """What is in progress ends first; after the last event nothing changes any more."""
    session = Scenario.live(way)
    session.asks()
    events = session.client(cmd.CloseSession())

    assert ["response.done", "rate_limits.updated", "session.closed"] == types(events)
    assert isinstance(events[0], wire.ResponseDone)
    assert "cancelled" == events[0].response.status
    assert isinstance(events[-1], wire.SessionClosed)
    assert "closed" == events[-1].reason
    assert (ch.Ended(EndReason.CLOSED),) == session.changes[-1:]

    before = session.state
    session.audio()
    session.attach("a2", shows="t1", offers="t2")
    session.listens()
    assert replace(before, position=session.state.position) == session.state


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\xc0\x91\xa3zz9", b"not msgpack"])
def test_an_entry_that_nobody_can_read_ends_the_session(data: bytes) -> None:
    """Everywhere alike, and only this session; a second one changes nothing."""
    session = Scenario.live()
    session.asks()

    assert ["response.done", "rate_limits.updated", "error", "session.closed"] == types(session.put(data))
    assert EndReason.INTERNAL_ERROR == session.state.end_reason
    assert [] == session.put(data)


def test_an_unreadable_first_entry_ends_a_session_that_never_was() -> None:
    """What follows cannot open it any more."""
    session = Scenario()

    assert ["error", "session.closed"] == types(session.put(b"\xc1"))
