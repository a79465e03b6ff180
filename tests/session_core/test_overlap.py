"""The user's speech over a response: listened to, or an interruption; and interruptions by command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import OverlapPolicy, SessionConfig, TurnDetection, Way
from session_core.items import ItemStatus
from tests.session_core.scenario import CONFIG, PROFILE, Scenario, error, one, refusal, types
from tests.session_core.sequences import CLOSED, DONE

VAD = replace(CONFIG, turn_detection=TurnDetection())
PATIENT = replace(CONFIG, turn_detection=TurnDetection(silence_duration_ms=0), overlap_barge_in_ms=200)
MS = 24
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"


def speaking(config: SessionConfig = VAD, way: Way = Way.DUPLEX) -> Scenario:
    """A session whose model has spoken for one unit, with 400 ms of input that no unit has taken."""
    session = Scenario.live(way, config=config)
    session.asks()
    session.speaks("Hello")
    session.audio(48 * 400)
    return session


def decided(events: list[wire.ServerEvent]) -> tuple[str, str, str]:
    """What was decided about the overlap."""
    decision = one(events, wire.OverlapDecision)
    return decision.policy, decision.action, decision.reason


# --- by speech ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", Way)
def test_speech_interrupts_at_once(way: Way) -> None:
    """The answer ends as far as it was heard; its end is of its own epoch."""
    session = speaking(way=way)
    events = session.worker(ev.SpeechStarted(0))

    assert [STARTED, "overlap.decision", *CLOSED, *DONE] == types(events)
    assert ("barge_in_on_speech", "barge_in", "speech_started") == decided(events)
    assert ({0}, 1) == ({event.epoch for event in events}, session.state.epoch)
    assert ItemStatus.INCOMPLETE == session.state.history[0].status


@pytest.mark.parametrize(
    ("way", "config"),
    [
        (Way.DUPLEX, replace(VAD, overlap_policy=OverlapPolicy.LISTEN_ONLY)),
        (Way.DUPLEX, replace(CONFIG, turn_detection=TurnDetection(interrupt_response=False))),
        (Way.OPENAI, replace(CONFIG, turn_detection=TurnDetection(interrupt_response=False))),
    ],
)
def test_speech_that_may_not_interrupt_is_listened_to(way: Way, config: SessionConfig) -> None:
    """However long it lasts; it becomes an item, and asks for no second response."""
    session = speaking(replace(config, overlap_barge_in_ms=80), way)
    events = session.worker(ev.SpeechStarted(0))
    assert [STARTED, "overlap.decision"] == types(events)
    assert ("listen", "policy_listen_only") == decided(events)[1:]

    for _ in range(4):
        session.speaks("Hello")
    session.worker(ev.SpeechStopped(400 * MS))
    assert (0, True, 2) == (
        session.state.epoch,
        session.state.response is not None,
        len(session.state.history),
    )


def test_openai_sessions_have_no_overlap_policy() -> None:
    """`interrupt_response` decides alone."""
    session = speaking(replace(VAD, overlap_policy=OverlapPolicy.LISTEN_ONLY), Way.OPENAI)
    session.worker(ev.SpeechStarted(0))

    assert session.state.response is None


def test_a_short_acknowledgement_interrupts_nothing() -> None:
    """Speech shorter than `overlap_barge_in_ms` is heard, and the answer goes on."""
    session = speaking(PATIENT)
    events = session.worker(ev.SpeechStarted(0))
    assert ("listen", "accumulating_overlap_speech") == decided(events)[1:]

    session.speaks(" there")
    session.worker(ev.SpeechStopped(190 * MS))
    for _ in range(4):
        session.speaks(" and")
    assert (0, True) == (session.state.epoch, session.state.response is not None)


def test_long_speech_interrupts_at_the_unit_that_heard_it() -> None:
    """The third unit holds the 200th millisecond of it; what that unit says is not told."""
    session = speaking(PATIENT)
    session.worker(ev.SpeechStarted(0))
    for _ in range(2):
        session.speaks(" there")
        assert session.state.response is not None
    unit = session.unit_body(ev.Decision.SPEAK)
    events = session.worker(unit)

    assert ["overlap.decision", *CLOSED, *DONE] == types(events)
    assert ("barge_in", "long_overlap_speech") == decided(events)[1:]
    assert ch.UnitTaken(unit, muted=True) == session.changes[0]
    details = one(events, wire.ResponseDone).response.status_details
    assert wire.StatusDetails(type="cancelled", reason="turn_detected", cause="speech") == details


def test_speech_is_long_only_when_silence_would_have_shown_its_end() -> None:
    """What turn detection still listens to may be over already: its silence comes on top."""
    waiting = replace(PATIENT, turn_detection=TurnDetection(silence_duration_ms=160))
    session = speaking(waiting)
    session.worker(ev.SpeechStarted(0))
    for _ in range(4):
        session.speaks(" there")
        assert session.state.response is not None
    session.speaks(" and")
    assert session.state.response is None


def test_overlap_begins_with_the_response() -> None:
    """A client that asks while it speaks is not interrupted by what it said before."""
    session = Scenario.live(config=PATIENT)
    session.audio(48 * 400)
    session.worker(ev.SpeechStarted(0))
    session.asks()
    for _ in range(5):
        session.listens()
    assert session.state.response is not None

    session.audio(48 * 400)
    for _ in range(2):
        session.speaks("Hello")
    assert session.state.response is not None
    assert "overlap.decision" in types(session.speaks("there"))


def test_a_model_that_talks_over_the_user_is_interrupted_by_what_follows() -> None:
    """It began unasked while the user spoke: the overlap counts from there."""
    session = Scenario.live(config=PATIENT)
    session.audio(48 * 800)
    session.worker(ev.SpeechStarted(0))
    for _ in range(3):
        session.listens()
    for _ in range(2):
        session.speaks("Mhm")

    assert session.state.response is not None
    assert "overlap.decision" in types(session.speaks("Mhm"))


def test_muted_units_decide_nothing() -> None:
    """A unit of an old epoch holds long speech; the response that is in progress now is another one."""
    session = speaking(PATIENT)
    session.worker(ev.SpeechStarted(0))
    late = replace(session.unit_body(ev.Decision.SPEAK), input_samples=400 * MS)
    session.client(cmd.CancelResponse())
    session.asks()

    assert [] == session.worker(late)
    assert session.state.response is not None


# --- by command ---------------------------------------------------------------------------------------------


def test_a_client_interrupts() -> None:
    """As if its speech had been heard."""
    session = speaking(CONFIG)
    events = session.client(cmd.BargeIn())

    assert ["overlap.decision", *CLOSED, *DONE] == types(events)
    assert ("barge_in", "client") == decided(events)[1:]
    details = one(events, wire.ResponseDone).response.status_details
    assert wire.StatusDetails(type="cancelled", reason="turn_detected", cause="barge_in") == details


def test_an_idle_model_is_not_interrupted() -> None:
    """A barge-in that comes too late is no mistake."""
    session = Scenario.live()

    assert ([], 0) == (session.client(cmd.BargeIn()), session.state.epoch)


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "barge_in_unsupported")]
)
def test_a_model_that_cannot_be_interrupted(way: Way, code: str) -> None:
    """The client is told so, and the answer goes on."""
    session = Scenario.live(way, profile=replace(PROFILE, supports_barge_in=False))
    session.asks()

    assert refusal(code, event_id="e1") == error(session.client(cmd.BargeIn("e1")))
    assert session.state.response is not None


@pytest.mark.parametrize("active", [True, False])
def test_a_turn_transition_is_told_back(active: bool) -> None:
    """With the state of the turn; it changes nothing."""
    session = speaking() if active else Scenario.live()
    before = session.state
    (event,) = session.client(cmd.SignalTurn("user_started"))

    assert isinstance(event, wire.TurnEvent)
    assert ("user_started", "speaking" if active else "listening") == (event.event, event.turn_state)
    assert (before.response, before.epoch) == (session.state.response, session.state.epoch)


def test_clearing_the_output_ends_the_response() -> None:
    """Its events of the end come first, then the word to drop what is queued."""
    session = speaking(CONFIG)
    response_id = session.state.playback.response_id
    events = session.client(cmd.ClearOutput())

    assert [*CLOSED, *DONE, "output_audio_buffer.cleared"] == types(events)
    assert (response_id, 1) == (one(events, wire.OutputAudioCleared).response_id, session.state.epoch)
    details = one(events, wire.ResponseDone).response.status_details
    assert wire.StatusDetails(type="cancelled", reason="client_cancelled", cause="output_clear") == details


def test_the_output_of_a_response_that_is_over_is_cleared() -> None:
    """Its audio may still lie with the client."""
    session = speaking(CONFIG)
    session.speaks(last=True)
    response_id = session.state.playback.response_id
    events = session.client(cmd.ClearOutput())

    assert ["output_audio_buffer.cleared"] == types(events)
    assert (response_id, 1) == (one(events, wire.OutputAudioCleared).response_id, session.state.epoch)


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "response_not_active")]
)
def test_there_may_be_no_output_to_clear(way: Way, code: str) -> None:
    """Nothing was ever said."""
    session = Scenario.live(way)

    assert refusal(code, event_id="e1") == error(session.client(cmd.ClearOutput("e1")))
