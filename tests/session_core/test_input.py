"""What a client sends: configuration, audio, text, commits; and what turn detection makes of its speech."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import Limits, SessionConfig, SessionPatch, TurnDetection, Way
from session_core.items import Part
from tests.session_core.scenario import (
    CONFIG,
    PROFILE,
    UNIT_BYTES,
    UNIT_SAMPLES,
    Scenario,
    error,
    one,
    refusal,
    types,
)
from tests.session_core.sequences import COMMITTED

VAD = replace(CONFIG, turn_detection=TurnDetection(prefix_padding_ms=20))
MS = 24
"""Input samples of a millisecond."""


# --- update -------------------------------------------------------------------------------------------------


def test_an_update_merges() -> None:
    """What the patch does not name stays, None switches off."""
    session = Scenario.live(config=replace(VAD, instructions="Be brief.", temperature=0.5))
    patch = SessionPatch(turn_detection=None, temperature=None, voice="ash")
    (updated,) = session.client(cmd.UpdateSession(patch))

    assert SessionConfig("loopback", instructions="Be brief.", voice="ash") == session.state.config
    assert isinstance(updated, wire.SessionUpdated)
    assert ("Be brief.", None) == (updated.session.instructions, updated.session.audio.input.turn_detection)


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "model_update_unsupported")]
)
def test_a_refused_update_changes_nothing(way: Way, code: str) -> None:
    """All or nothing: another model takes the rest of the patch down with it."""
    session = Scenario.live(way)
    events = session.client(cmd.UpdateSession(SessionPatch(model="gpt", instructions="Hi"), "e1"))

    assert refusal(code, "session.model", "e1") == error(events)
    assert CONFIG == session.state.config


@pytest.mark.parametrize(
    ("way", "code"),
    [(Way.OPENAI, "cannot_update_voice"), (Way.DUPLEX, "voice_update_after_audio_unsupported")],
)
def test_the_voice_is_fixed_once_it_was_heard(way: Way, code: str) -> None:
    """Another voice is refused after the first audio; naming the same model and voice is no change."""
    session = Scenario.live(way)
    session.asks()
    session.speaks()
    events = session.client(cmd.UpdateSession(SessionPatch(voice="ash")))

    assert refusal(code, "session.audio.output.voice") == error(events)
    same = SessionPatch(model="loopback", voice="default", instructions="Hi")
    assert ["session.updated"] == types(session.client(cmd.UpdateSession(same)))


# --- append -------------------------------------------------------------------------------------------------


def test_audio_is_counted_silently() -> None:
    """An append is answered by nothing but its receipts."""
    session = Scenario.live()

    assert [] == session.audio(960, "e1")
    assert (960, 960, "e1") == (
        session.state.input.received_bytes,
        session.state.input.pending_bytes,
        session.state.input.last_client_event_id,
    )
    assert (ch.AudioReceived(bytes(960), AudioFormat().ticks(960)),) == session.changes


def test_audio_time_is_exact_across_formats() -> None:
    """A format change in mid-session loses no fraction of a sample."""
    session = Scenario.live()
    session.audio(960)
    session.client(cmd.UpdateSession(SessionPatch(input_format=AudioFormat(Encoding.PCM_F32LE, 22_050))))
    session.audio(4 * 441)
    session.client(cmd.UpdateSession(SessionPatch(input_format=AudioFormat(Encoding.G711_ULAW, 8_000))))
    session.audio(160)

    assert 60 * MS == session.state.input.received_samples(24_000)
    assert 960 + 1_764 + 160 == session.state.input.received_bytes


@pytest.mark.parametrize(("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "bad_audio")])
def test_half_a_sample_is_refused(way: Way, code: str) -> None:
    """The buffer stays as it was, though the client's event id is acknowledged as read."""
    session = Scenario.live(way)

    assert refusal(code, "audio", "e1") == error(session.audio(961, "e1"))
    assert 0 == session.state.input.received_bytes


def test_input_that_no_unit_takes_is_bounded() -> None:
    """Above the bound input is refused, until units have taken some."""
    session = Scenario.live(limits=Limits(max_pending_input_bytes=2 * UNIT_BYTES))
    session.audio()
    session.audio()

    assert refusal("input_backpressure", "audio") == error(session.audio(2))
    session.listens()
    assert UNIT_BYTES == session.state.input.pending_bytes
    assert [] == session.audio()


# --- text into the turn -------------------------------------------------------------------------------------

TEXTUAL = replace(PROFILE, supports_text=True)


def test_text_goes_into_the_turn() -> None:
    """Silently, until the commit makes a part of it, after the audio; the next turn begins empty."""
    session = Scenario.live(profile=TEXTUAL)
    assert [] == session.client(cmd.AppendText("Hel"))
    assert (ch.TextReceived("Hel"),) == session.changes
    session.client(cmd.AppendText("lo"))
    session.commits()

    assert [("input_audio", None), ("input_text", "Hello")] == [
        (part.kind, part.text) for part in session.state.history[0].parts
    ]
    assert "" == session.state.input.text


def test_a_turn_may_be_text_alone() -> None:
    """A commit needs no audio then."""
    session = Scenario.live(profile=TEXTUAL)
    session.client(cmd.AppendText("Hello"))

    assert COMMITTED == types(session.client(cmd.CommitInput()))
    assert ["input_text"] == [part.kind for part in session.state.history[0].parts]
    assert ["error"] == types(session.client(cmd.CommitInput()))


def test_text_joins_the_speech() -> None:
    """Also in an item that turn detection commits."""
    session = Scenario.live(config=VAD, profile=TEXTUAL)
    session.audio(48_000)
    session.worker(ev.SpeechStarted(0))
    session.client(cmd.AppendText("Hello"))
    session.worker(ev.SpeechStopped(100 * MS))

    assert ["input_audio", "input_text"] == [part.kind for part in session.state.history[0].parts]


def test_text_is_dropped_with_the_rest() -> None:
    """A clear forgets it."""
    session = Scenario.live(profile=TEXTUAL)
    session.client(cmd.AppendText("Hello"))
    session.client(cmd.ClearInput())

    assert "" == session.state.input.text


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "native_text_append_unsupported")]
)
def test_a_model_may_take_no_text(way: Way, code: str) -> None:
    """The client is told so."""
    session = Scenario.live(way)

    assert refusal(code, "text", "e1") == error(session.client(cmd.AppendText("Hello", "e1")))
    assert "" == session.state.input.text


def test_text_that_nobody_commits_is_bounded() -> None:
    """Like audio that no unit takes."""
    session = Scenario.live(profile=TEXTUAL, limits=Limits(max_pending_input_bytes=8))
    session.client(cmd.AppendText("Hello"))

    assert refusal("input_backpressure", "text") == error(session.client(cmd.AppendText("Bye.")))
    assert [] == session.client(cmd.AppendText("Bye"))


# --- commit, clear ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", Way)
def test_a_commit_makes_a_user_item(way: Way) -> None:
    """Added, committed, done; unasked it begins no response."""
    session = Scenario.live(way)
    session.audio(9_600)
    events = session.client(cmd.CommitInput())
    (item,) = session.state.history

    assert COMMITTED == types(events)
    assert Part("input_audio", first_sample=0, samples=200 * MS) == item.parts[0]
    assert (1, 200 * MS) == (session.state.turn, session.state.input.committed_samples)


def test_the_second_commit_follows_the_first() -> None:
    """Each item names the one before, and holds only what came since."""
    session = Scenario.live()
    session.audio(9_600)
    session.client(cmd.CommitInput())
    session.audio(9_600)
    added, _, committed, _ = session.client(cmd.CommitInput())
    first, second = session.state.history

    assert isinstance(added, wire.ItemAdded)
    assert isinstance(committed, wire.InputCommitted)
    assert (first.item_id, first.item_id) == (added.previous_item_id, committed.previous_item_id)
    assert Part("input_audio", first_sample=200 * MS, samples=200 * MS) == second.parts[0]


@pytest.mark.parametrize("min_commit_ms", [0, 100])
@pytest.mark.parametrize("size_bytes", [0, 46])
@pytest.mark.parametrize(
    ("way", "code"),
    [(Way.OPENAI, "input_audio_buffer_commit_empty"), (Way.DUPLEX, "input_audio_buffer_empty")],
)
def test_a_commit_of_nothing_is_refused(way: Way, code: str, size_bytes: int, min_commit_ms: int) -> None:
    """Less than a millisecond is nothing, even where short commits are allowed."""
    session = Scenario.live(way, limits=Limits(min_commit_ms=min_commit_ms))
    session.audio(size_bytes)

    assert refusal(code, event_id="e1") == error(session.client(cmd.CommitInput(event_id="e1")))


def test_a_millisecond_is_enough_where_no_minimum_is_set() -> None:
    """Short commits are the deployment's choice."""
    session = Scenario.live(limits=Limits(min_commit_ms=0))
    session.audio(1 * MS * 2)

    assert COMMITTED == types(session.client(cmd.CommitInput()))


def test_a_commit_below_the_minimum_is_refused() -> None:
    """100 ms is enough, 99 ms is not, and nothing is lost by the refusal."""
    session = Scenario.live()
    session.audio(99 * MS * 2)
    assert ["error"] == types(session.client(cmd.CommitInput()))

    session.audio(1 * MS * 2)
    assert COMMITTED == types(session.client(cmd.CommitInput()))


@pytest.mark.parametrize(
    ("way", "auto_response", "respond", "responds"),
    [
        (Way.DUPLEX, True, None, True),
        (Way.DUPLEX, False, None, False),
        (Way.DUPLEX, True, False, False),
        (Way.DUPLEX, False, True, True),
        (Way.OPENAI, True, None, False),
        (Way.OPENAI, False, True, True),
    ],
)
def test_who_answers_a_commit(way: Way, auto_response: bool, respond: bool | None, responds: bool) -> None:
    """A commit asks for a response if it says so, or by the session's setting on the duplex way."""
    session = Scenario.live(way, config=replace(CONFIG, auto_response=auto_response))
    session.audio(9_600)
    events = session.client(cmd.CommitInput(respond))

    assert COMMITTED + ["response.created"] * responds == types(events)
    assert 1 == session.state.turn


def test_a_commit_during_a_response_asks_for_no_second_one() -> None:
    """The response in progress goes on."""
    session = Scenario.live(config=replace(CONFIG, auto_response=True))
    session.asks()
    session.audio(9_600)

    assert COMMITTED == types(session.client(cmd.CommitInput()))


def test_declared_silence_is_answered_by_listening() -> None:
    """The client says that nobody spoke: no response, whatever else it asks."""
    session = Scenario.live(config=replace(CONFIG, auto_response=True))
    session.audio(9_600)
    events = session.client(cmd.CommitInput(respond=True, speech=False))

    assert [*COMMITTED, "response.listen"] == types(events)
    assert isinstance(events[-1], wire.ResponseListen)
    assert UNSET == events[-1].response_id


def test_a_clear_drops_what_is_not_committed() -> None:
    """Neither a commit nor a unit gets it any more; receipts stay."""
    session = Scenario.live()
    session.audio(9_600)

    assert ["input_audio_buffer.cleared"] == types(session.client(cmd.ClearInput()))
    assert (9_600, 0) == (session.state.input.received_bytes, session.state.input.pending_bytes)
    assert (200 * MS, 0) == (session.state.clock.consumed_samples, session.state.epoch)
    assert ["error"] == types(session.client(cmd.CommitInput()))


def test_cancelling_the_turn_mutes_as_well() -> None:
    """Pending input goes, the response in progress ends, a new epoch begins."""
    session = Scenario.live()
    session.audio(9_600)
    session.asks()
    events = session.client(cmd.ClearInput(cancel_turn=True))

    assert ["response.done", "rate_limits.updated", "input_audio_buffer.cleared"] == types(events)
    assert [0, 0, 1] == [event.epoch for event in events]


def test_cancelling_an_idle_turn_begins_an_epoch_all_the_same() -> None:
    """What the model has in the making must not be heard."""
    session = Scenario.live()

    assert ["input_audio_buffer.cleared"] == types(session.client(cmd.ClearInput(cancel_turn=True)))
    assert 1 == session.state.epoch


def test_a_unit_begun_before_a_clear_takes_back_nothing() -> None:
    """The unit held input that was cleared meanwhile: the clock stands where the clear put it."""
    session = Scenario.live()
    session.audio(9_600)
    begun = session.unit_body()
    session.client(cmd.ClearInput())
    session.worker(begun)

    assert (1, 200 * MS) == (session.state.clock.next_unit, session.state.clock.consumed_samples)
    assert 0 == session.state.input.pending_bytes


# --- turn detection -----------------------------------------------------------------------------------------


def test_speech_becomes_an_item_and_a_response() -> None:
    """Started, stopped, committed with the padding before the start; the id is the one promised."""
    session = Scenario.live(config=VAD)
    session.audio(48_000)
    (started,) = session.worker(ev.SpeechStarted(100 * MS))
    events = session.worker(ev.SpeechStopped(500 * MS))
    item = session.state.history[0]

    assert isinstance(started, wire.InputSpeechStarted)
    assert (100, item.item_id) == (started.audio_start_ms, started.item_id)
    assert ["input_audio_buffer.speech_stopped", *COMMITTED, "response.created"] == types(events)
    assert isinstance(events[0], wire.InputSpeechStopped)
    assert (500, item.item_id) == (events[0].audio_end_ms, events[0].item_id)
    assert Part("input_audio", first_sample=80 * MS, samples=420 * MS) == item.parts[0]
    assert 1 == session.state.turn


def test_the_padding_does_not_reach_into_what_is_committed() -> None:
    """Two utterances close together share no samples."""
    session = Scenario.live(config=VAD)
    session.audio(48_000)
    for start, stop in ((0, 100), (110, 200)):
        session.worker(ev.SpeechStarted(start * MS))
        session.worker(ev.SpeechStopped(stop * MS))

    parts = [item.parts[0] for item in session.state.history]
    assert [(0, 100 * MS), (100 * MS, 100 * MS)] == [(part.first_sample, part.samples) for part in parts]


def test_speech_without_turn_detection_changes_nothing() -> None:
    """A worker may report what a session does not want to know."""
    session = Scenario.live()
    session.audio(48_000)

    assert [] == session.worker(ev.SpeechStarted(0))
    assert [] == session.worker(ev.SpeechStopped(100 * MS))


def test_speech_does_not_start_twice() -> None:
    """A new worker may report the start again."""
    session = Scenario.live(config=VAD)
    session.audio(48_000)
    session.worker(ev.SpeechStarted(0))

    assert [] == session.worker(ev.SpeechStarted(100 * MS))
    assert 0 == session.state.input.speech_from


def test_a_start_before_the_commit_point_is_ignored() -> None:
    """That speech is in an item already."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.client(cmd.CommitInput())

    assert [] == session.worker(ev.SpeechStarted(100 * MS))


def test_a_stop_before_the_commit_point_commits_nothing() -> None:
    """A manual commit took all of the speech; its end is told, under an id that was not committed."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    (started,) = session.worker(ev.SpeechStarted(0))
    session.client(cmd.CommitInput())
    (stopped,) = session.worker(ev.SpeechStopped(100 * MS))
    (item,) = session.state.history

    assert isinstance(started, wire.InputSpeechStarted)
    assert isinstance(stopped, wire.InputSpeechStopped)
    assert started.item_id == item.item_id
    assert stopped.item_id not in ("", item.item_id)
    assert session.state.input.speech_from is None


def test_speech_that_runs_over_a_commit_commits_what_came_after() -> None:
    """One item each, without a gap and without an overlap."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.worker(ev.SpeechStarted(0))
    session.client(cmd.CommitInput())
    session.audio(9_600)
    session.worker(ev.SpeechStopped(300 * MS))

    parts = [item.parts[0] for item in session.state.history]
    assert [(0, 200 * MS), (200 * MS, 100 * MS)] == [(part.first_sample, part.samples) for part in parts]


def test_speech_beyond_the_input_ends_with_it() -> None:
    """Rounding in a detector at another rate cannot commit samples that nobody sent."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.worker(ev.SpeechStarted(10 * MS))
    session.worker(ev.SpeechStopped(201 * MS))

    assert 200 * MS == session.state.input.committed_samples


def test_speech_of_no_length_commits_nothing() -> None:
    """It started where it stopped."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.worker(ev.SpeechStarted(400 * MS))

    assert ["input_audio_buffer.speech_stopped"] == types(session.worker(ev.SpeechStopped(400 * MS)))
    assert [] == session.worker(ev.SpeechStopped(400 * MS))


def test_speech_ends_though_detection_was_switched_off() -> None:
    """The client was told of its start; nothing is committed any more."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.worker(ev.SpeechStarted(0))
    session.client(cmd.UpdateSession(SessionPatch(turn_detection=None)))

    assert ["input_audio_buffer.speech_stopped"] == types(session.worker(ev.SpeechStopped(100 * MS)))


def test_speech_interrupts() -> None:
    """The response in progress ends as interrupted by the turn, and a new epoch begins."""
    session = Scenario.live(config=VAD)
    session.audio(48_000)
    session.asks()
    events = session.worker(ev.SpeechStarted(0))

    assert [
        "input_audio_buffer.speech_started",
        "overlap.decision",
        "response.done",
        "rate_limits.updated",
    ] == types(events)
    assert wire.StatusDetails(type="cancelled", reason="turn_detected", cause="speech") == (
        one(events, wire.ResponseDone).response.status_details
    )
    assert 1 == session.state.epoch


@pytest.mark.parametrize("responding", [True, False])
def test_speech_that_may_not_interrupt_is_only_told(responding: bool) -> None:
    """With `interrupt_response` off the response goes on; without one there is nothing to interrupt."""
    detection = TurnDetection(interrupt_response=not responding)
    session = Scenario.live(config=replace(CONFIG, turn_detection=detection))
    session.audio(48_000)
    if responding:
        session.asks()

    told = ["input_audio_buffer.speech_started"] + ["overlap.decision"] * responding
    assert told == types(session.worker(ev.SpeechStarted(0)))
    assert 0 == session.state.epoch


@pytest.mark.parametrize("responding", [True, False])
def test_an_utterance_that_asks_for_nothing(responding: bool) -> None:
    """With `create_response` off, or a response in progress, the stop begins none."""
    detection = TurnDetection(create_response=responding, interrupt_response=False)
    session = Scenario.live(config=replace(CONFIG, turn_detection=detection))
    session.audio(48_000)
    if responding:
        session.asks()
    session.worker(ev.SpeechStarted(0))

    assert ["input_audio_buffer.speech_stopped", *COMMITTED] == types(
        session.worker(ev.SpeechStopped(100 * MS))
    )


def test_a_clear_forgets_the_speech() -> None:
    """The stop of a cleared speech says nothing, and the next one gets its own id."""
    session = Scenario.live(config=VAD)
    session.audio(9_600)
    session.worker(ev.SpeechStarted(0))
    session.client(cmd.ClearInput())

    assert [] == session.worker(ev.SpeechStopped(100 * MS))
    assert (None, None) == (session.state.input.speech_from, session.state.input.speech_item_id)
    assert UNIT_SAMPLES < session.state.input.committed_samples
