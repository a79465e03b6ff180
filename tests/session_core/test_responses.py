"""Responses: asked for or not, spoken, rendered later, interrupted; and what a unit means in each case."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import Limits, SessionConfig, SessionPatch, TurnDetection, Way
from session_core.items import Item, ItemStatus, Mark, Part, Role
from session_core.state import EndReason, Phase, Render
from tests.session_core.scenario import CONFIG, UNIT_BYTES, UNIT_SAMPLES, Scenario, types

OPENED = [
    "conversation.item.added",
    "conversation.item.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.speak",
]
AUDIO, TEXT = "response.output_audio.delta", "response.output_audio_transcript.delta"
DONE = ["response.done", "rate_limits.updated"]
CLOSED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    *DONE,
]
AUTO = replace(CONFIG, auto_response=True)


def done(events: list[wire.ServerEvent]) -> wire.ResponseView:
    """The response as its end tells it."""
    (event,) = [event for event in events if isinstance(event, wire.ResponseDone)]
    return event.response


# --- create and cancel --------------------------------------------------------------------------------------


def test_a_response_is_created_on_request() -> None:
    """With its metadata, in the format of now, without an output yet."""
    session = Scenario.live()
    (created,) = session.client(cmd.CreateResponse(cmd.ResponseOptions(metadata={"k": "v"})))

    assert isinstance(created, wire.ResponseCreated)
    assert ("in_progress", {"k": "v"}, (), None) == (
        created.response.status,
        created.response.metadata,
        created.response.output,
        created.response.usage,
    )
    assert session.state.response is not None
    assert not session.state.response.begun
    assert (0, ()) == (session.state.turn, session.state.history)


@pytest.mark.parametrize(
    ("way", "code"),
    [(Way.OPENAI, "conversation_already_has_active_response"), (Way.DUPLEX, "response_already_active")],
)
def test_there_is_one_response_at_a_time(way: Way, code: str) -> None:
    """The refusal names the one in progress."""
    session = Scenario.live(way)
    active = session.asks()
    (event,) = session.client(cmd.CreateResponse(event_id="e1"))

    assert isinstance(event, wire.ErrorEvent)
    assert (code, "e1") == (event.error.code, event.error.event_id)
    assert active in event.error.message


@pytest.mark.parametrize("named", [True, False])
def test_a_cancelled_response_ends(named: bool) -> None:
    """The active one, named or not; the epoch advances after its last event."""
    session = Scenario.live()
    response_id = session.asks()
    events = session.client(cmd.CancelResponse(response_id if named else None))

    assert DONE == types(events)
    assert "cancelled" == done(events).status
    assert ([0, 0], 1) == ([event.epoch for event in events], session.state.epoch)


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "response_cancel_not_active"), (Way.DUPLEX, "response_not_active")]
)
def test_only_the_active_response_can_be_cancelled(way: Way, code: str, active: bool) -> None:
    """LiveKit knows this refusal by the beginning of its text."""
    session = Scenario.live(way)
    if active:
        session.asks()
    (event,) = session.client(cmd.CancelResponse("resp_z", "e1"))

    assert isinstance(event, wire.ErrorEvent)
    assert (code, "e1") == (event.error.code, event.error.event_id)
    assert event.error.message.startswith("Cancellation failed")
    assert 0 == session.state.epoch


def test_cancel_and_create_at_once() -> None:
    """Four times in a row: each response has its own id, the units of the old ones are muted."""
    session = Scenario.live()
    ids = []
    for _ in range(4):
        ids.append(session.asks())
        session.speaks("a")
        late = session.unit_body(ev.Decision.SPEAK)
        session.client(cmd.CancelResponse())
        session.asks()
        assert [] == session.worker(late)
        session.client(cmd.CancelResponse())

    assert 4 == len(set(ids))
    assert (8, 8) == (session.state.epoch, session.state.clock.next_unit)


# --- speaking -----------------------------------------------------------------------------------------------


def test_a_whole_response() -> None:
    """Opened, spoken, closed; what it said stands in the history, in the ledger and in the usage."""
    session = Scenario.live()
    response_id = session.asks()

    assert [*OPENED, AUDIO, TEXT] == types(session.speaks("Hel"))
    assert [AUDIO] == types(session.speaks())
    events = session.speaks("lo", last=True)
    assert [AUDIO, TEXT, *CLOSED] == types(events)

    item = Item(
        f"item_{response_id}",
        role=Role.ASSISTANT,
        parts=(
            Part(
                "output_audio",
                text="Hello",
                samples=3 * UNIT_SAMPLES,
                sample_rate_hz=24_000,
                marks=(Mark(0, 3), Mark(2 * UNIT_SAMPLES, 5)),
            ),
        ),
    )
    assert (item,) == session.state.history
    assert (None, 240, 0) == (session.state.response, session.state.playback.sent_ms, session.state.epoch)
    assert ("completed", None, wire.Usage(6, 0, 6)) == (
        done(events).status,
        done(events).status_details,
        done(events).usage,
    )
    transcripts = [event.transcript for event in events if isinstance(event, wire.TranscriptDone)]
    assert ["Hello"] == transcripts


def test_a_delta_says_what_it_is() -> None:
    """Format, rate, duration, and whether it ends the turn."""
    session = Scenario.live(config=replace(AUTO, output_format=AudioFormat(Encoding.G711_ULAW, 8_000)))
    delta = session.speaks(audio=bytes(80), last=True)[len(OPENED) + 1]

    assert isinstance(delta, wire.AudioDelta)
    assert ("g711_ulaw", 8_000, wire.DeltaMetadata(0, True, 10)) == (
        delta.format,
        delta.sample_rate_hz,
        delta.metadata,
    )


def test_a_response_keeps_the_format_of_its_beginning() -> None:
    """A format change takes effect at the next response."""
    session = Scenario.live()
    session.asks()
    session.speaks()
    session.client(cmd.UpdateSession(SessionPatch(output_format=AudioFormat(sample_rate_hz=48_000))))
    (delta,) = session.speaks()
    session.speaks(last=True)
    session.asks()
    later = session.speaks()[-1]

    assert isinstance(delta, wire.AudioDelta)
    assert isinstance(later, wire.AudioDelta)
    assert (24_000, 48_000) == (delta.sample_rate_hz, later.sample_rate_hz)


def test_the_assistant_item_follows_the_user_item() -> None:
    """`previous_item_id` is null for the first item only, when it comes and when it is done."""
    session = Scenario.live()
    session.audio(9_600)
    session.client(cmd.CommitInput())
    session.asks()
    added = session.speaks()[0]
    closed = session.speaks(last=True)
    user, _ = session.state.history

    assert isinstance(added, wire.ItemAdded)
    (item_done,) = [event for event in closed if isinstance(event, wire.ItemDone)]
    assert (user.item_id, user.item_id) == (added.previous_item_id, item_done.previous_item_id)


def test_an_item_that_fell_out_of_the_history_is_done_all_the_same() -> None:
    """So many items came during the response that its own is not remembered any more."""
    session = Scenario.live(limits=Limits(max_history_items=1))
    session.asks()
    session.speaks("a")
    session.client(cmd.CreateItem(Item("b", role=Role.USER)))
    events = session.speaks(last=True)

    assert [AUDIO, *CLOSED] == types(events)
    assert ["b"] == [item.item_id for item in session.state.history]


# --- unasked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "auto_response", "detection", "allowed"),
    [
        (Way.DUPLEX, True, None, True),
        (Way.DUPLEX, False, None, False),
        (Way.OPENAI, True, None, False),
        (Way.OPENAI, False, TurnDetection(), True),
        (Way.DUPLEX, True, TurnDetection(create_response=False), False),
    ],
)
def test_who_may_speak_unasked(
    way: Way, auto_response: bool, detection: TurnDetection | None, allowed: bool
) -> None:
    """By turn detection, or by auto-response on the duplex way; otherwise the unit counts, unheard."""
    session = Scenario.live(
        way, config=replace(CONFIG, auto_response=auto_response, turn_detection=detection)
    )
    events = session.speaks("a")

    assert (["response.created", *OPENED, AUDIO, TEXT] if allowed else []) == types(events)
    assert (1, int(allowed)) == (session.state.clock.next_unit, session.state.turn)


def test_a_response_of_one_unit() -> None:
    """Created, opened and closed by one entry."""
    session = Scenario.live(config=AUTO)

    assert ["response.created", *OPENED, AUDIO, TEXT, *CLOSED] == types(session.speaks("a", last=True))


def test_a_response_without_sound_or_text() -> None:
    """A model may begin to speak with a unit that says nothing."""
    session = Scenario.live(config=AUTO)

    assert ["response.created", *OPENED] == types(session.speaks(audio=b""))
    assert CLOSED == types(session.speaks(audio=b"", last=True))


def test_the_unit_names_the_format_of_its_audio() -> None:
    """The client changed it while the unit was in the making: the response has that of its first audio."""
    session = Scenario.live(config=AUTO)
    ulaw = AudioFormat(Encoding.G711_ULAW, 8_000)
    unit = replace(session.unit_body(ev.Decision.SPEAK), audio=bytes(80), output_format=ulaw)
    deltas = [session.worker(unit)[-1], session.speaks(audio=bytes(80))[-1]]

    for delta in deltas:
        assert isinstance(delta, wire.AudioDelta)
        assert ("g711_ulaw", 8_000, 10) == (
            delta.format,
            delta.sample_rate_hz,
            delta.metadata.audio_duration_ms,
        )


def test_the_unit_does_not_name_the_format_of_a_response_in_progress() -> None:
    """That one was pinned at its beginning."""
    session = Scenario.live(config=AUTO)
    session.asks()
    ulaw = AudioFormat(Encoding.G711_ULAW, 8_000)
    delta = session.worker(
        replace(session.unit_body(ev.Decision.SPEAK), audio=bytes(80), output_format=ulaw)
    )[-1]

    assert isinstance(delta, wire.AudioDelta)
    assert "pcm16" == delta.format


# --- listening ----------------------------------------------------------------------------------------------


def test_listening_says_nothing() -> None:
    """Most units of most sessions."""
    session = Scenario.live()
    session.audio()

    assert [] == session.listens()
    assert (1, UNIT_SAMPLES, 1) == (
        session.state.clock.next_unit,
        session.state.clock.consumed_samples,
        session.state.worker.completed_units,
    )


def test_a_model_that_yields_interrupts_itself() -> None:
    """It was speaking and listens without having ended its turn: cancelled, and a new epoch."""
    session = Scenario.live(config=AUTO)
    session.speaks("a")
    events = session.listens()

    assert CLOSED == types(events)
    assert wire.StatusDetails(type="cancelled", reason="turn_detected", cause="model_yielded") == (
        done(events).status_details
    )
    assert (1, ItemStatus.INCOMPLETE) == (session.state.epoch, session.state.history[0].status)


def test_a_request_is_answered_by_listening() -> None:
    """The model was asked and chose to listen: told, and completed without an output."""
    session = Scenario.live()
    response_id = session.asks()
    events = session.listens(answers=response_id)

    assert ["response.listen", *DONE] == types(events)
    assert isinstance(events[0], wire.ResponseListen)
    assert (response_id, "completed", ()) == (
        events[0].response_id,
        done(events).status,
        done(events).output,
    )


@pytest.mark.parametrize("answers", [None, "resp_older"])
def test_a_unit_planned_before_the_request_does_not_answer_it(answers: str | None) -> None:
    """The model listened because nobody had asked it yet."""
    session = Scenario.live()
    session.asks()

    assert [] == session.listens(answers=answers)
    assert session.state.response is not None


def test_listening_after_the_turn_ends_nothing() -> None:
    """The model said its last unit, whose audio is still rendered; the clock goes on meanwhile."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None, last=True)

    assert [] == session.listens()
    assert session.state.response is not None


# --- epochs and broken entries ------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ev.Decision)
def test_a_unit_of_an_old_epoch_is_muted(decision: ev.Decision) -> None:
    """It counts for the clock and for the worker; no client hears of it."""
    session = Scenario.live(config=AUTO)
    session.audio()
    late = replace(session.unit_body(decision), text="a", audio=b"12")
    session.client(cmd.ClearInput(cancel_turn=True))
    before = session.state.seq

    assert [] == session.worker(late)
    assert (1, 1, before) == (
        session.state.clock.next_unit,
        session.state.worker.completed_units,
        session.state.seq,
    )


@pytest.mark.parametrize(
    ("decision", "stale", "config", "muted"),
    [
        (ev.Decision.LISTEN, 0, CONFIG, False),
        (ev.Decision.SPEAK, 0, AUTO, False),
        (ev.Decision.TURN_END, 0, AUTO, False),
        (ev.Decision.SPEAK, 0, CONFIG, True),
        (ev.Decision.LISTEN, 1, CONFIG, True),
        (ev.Decision.SPEAK, 1, AUTO, True),
    ],
)
def test_a_worker_learns_whether_its_unit_is_heard(
    decision: ev.Decision, stale: int, config: SessionConfig, muted: bool
) -> None:
    """The first change of a unit says that it counts, and whether anybody hears it."""
    session = Scenario.live(config=config)
    session.client(cmd.ClearInput(cancel_turn=True))
    unit = replace(session.unit_body(decision), epoch=1 - stale)
    session.worker(unit)

    assert ch.UnitTaken(unit, muted) == session.changes[0]


@pytest.mark.parametrize("unit", [0, 2])
def test_a_unit_out_of_order_breaks_the_session(unit: int) -> None:
    """Its writer is in office and this is its next append, so nobody can say what is true."""
    session = Scenario.live()
    session.listens()
    events = session.worker(replace(session.unit_body(), unit=unit))

    assert ["error", "session.closed"] == types(events)
    assert (Phase.ENDED, EndReason.INTERNAL_ERROR) == (session.state.phase, session.state.end_reason)


def test_a_unit_of_input_that_has_not_come_breaks_the_session() -> None:
    """Nobody can hear what was not said yet."""
    session = Scenario.live()
    session.audio()
    session.worker(replace(session.unit_body(), input_samples=UNIT_SAMPLES + 1))

    assert EndReason.INTERNAL_ERROR == session.state.end_reason


# --- rendered later -----------------------------------------------------------------------------------------


def rendered(unit: int, part: int, first_sample: int, *, last: bool = False) -> ev.OutputRendered:
    """A part of 10 ms."""
    return ev.OutputRendered(unit, part, first_sample, bytes(480), last)


def test_audio_follows_in_parts() -> None:
    """Text at once, audio when it is rendered; the last part of the last unit ends the response."""
    session = Scenario.live(config=AUTO)

    assert ["response.created", *OPENED, TEXT] == types(session.speaks("a", None))
    assert [TEXT] == types(session.speaks("b", None, last=True))
    assert (Render(0, 1), Render(1, 2)) == session.state.renders
    assert [AUDIO] == types(session.worker(rendered(0, 0, 0)))
    assert (Render(0, 1, 1, 240), Render(1, 2)) == session.state.renders
    assert [AUDIO] == types(session.worker(rendered(0, 1, 240, last=True)))
    events = session.worker(rendered(1, 0, 0, last=True))
    assert [AUDIO, *CLOSED] == types(events)
    assert isinstance(events[0], wire.AudioDelta)
    assert events[0].metadata.end_of_turn
    assert not session.state.renders


def test_the_response_waits_for_audio_of_earlier_units() -> None:
    """The last unit brought its audio along, but an earlier one has not been rendered."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None)

    assert [AUDIO, TEXT] == types(session.speaks("b", last=True))
    assert [AUDIO, *CLOSED] == types(session.worker(rendered(0, 0, 0, last=True)))


def test_the_turn_goes_on_after_all_parts() -> None:
    """The last part of a unit in mid-turn ends nothing."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None)

    assert [AUDIO] == types(session.worker(rendered(0, 0, 0, last=True)))
    assert (session.state.response is not None, ()) == (True, session.state.renders)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(rendered(1, 0, 0), id="a later unit"),
        pytest.param(rendered(0, 0, 0), id="a part again"),
        pytest.param(rendered(0, 2, 480), id="a part too far"),
        pytest.param(rendered(0, 1, 239), id="a sample too early"),
    ],
)
def test_a_part_that_is_not_due_changes_nothing(part: ev.OutputRendered) -> None:
    """The renderer of a new owner may begin somewhere else."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None)
    session.speaks("b", None)
    session.worker(rendered(0, 0, 0))
    before = session.state.renders

    assert [] == session.worker(part)
    assert before == session.state.renders


def test_parts_of_a_cancelled_response_change_nothing() -> None:
    """Nobody waits for them."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None)
    session.client(cmd.CancelResponse())

    assert [] == session.worker(rendered(0, 0, 0))


def test_a_new_owner_renders_from_the_first_missing_part() -> None:
    """The units stay taken; what the old worker still appends is stale."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None, last=True)
    session.worker(rendered(0, 0, 0))
    old = session.worker_stamp()
    session.fact(ev.WorkerAssigned("w2", 2))

    assert [] == session.append(rendered(0, 1, 240, last=True), old)
    assert [AUDIO, *CLOSED] == types(session.worker(rendered(0, 1, 240, last=True)))


def test_units_after_the_turn_are_muted_while_its_audio_is_rendered() -> None:
    """A model that goes on speaking is not heard: the response has had its last unit."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None, last=True)
    unit = replace(session.unit_body(ev.Decision.SPEAK), text="b", token_ids=(1, 2))

    assert [] == session.worker(unit)
    assert (ch.UnitTaken(unit, muted=True),) == session.changes
    events = session.worker(rendered(0, 0, 0, last=True))
    assert [AUDIO, *CLOSED] == types(events)
    assert wire.Usage(2, 0, 2) == done(events).usage


def test_a_part_without_audio_is_not_told() -> None:
    """It may be the last one all the same."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", None, last=True)
    session.worker(rendered(0, 0, 0))

    assert CLOSED == types(session.worker(ev.OutputRendered(0, 1, 240, b"", last=True)))


def test_parts_are_counted_in_the_response_s_format() -> None:
    """Half the bytes are as many samples in G.711."""
    session = Scenario.live(config=replace(AUTO, output_format=AudioFormat(Encoding.G711_ULAW, 8_000)))
    session.speaks("a", None)
    session.worker(rendered(0, 0, 0))

    assert (Render(0, 1, 1, 480),) == session.state.renders
    assert [AUDIO] == types(session.worker(rendered(0, 1, 480, last=True)))


# --- playback -----------------------------------------------------------------------------------------------


def test_the_ledger_never_goes_back() -> None:
    """Generated >= sent >= played >= committed, whatever the client says and in whatever order."""
    session = Scenario.live(config=AUTO)
    session.speaks("a")
    ledgers = []
    for played, committed in ((30, None), (20, 10), (10_000, 50), (70, 90), (-5, -5)):
        (event,) = session.client(cmd.AckPlayback(played, committed))
        assert isinstance(event, wire.PlaybackAcknowledged)
        ledgers.append((event.playback.sent_ms, event.playback.played_ms, event.playback.committed_ms))

    assert [(80, 30, 30), (80, 30, 30), (80, 80, 50), (80, 80, 80), (80, 80, 80)] == ledgers


@pytest.mark.parametrize("spoken", [True, False])
def test_a_late_ack_is_harmless(spoken: bool) -> None:
    """An ack of another response, or before anything was said, says nothing and is no error."""
    session = Scenario.live(config=AUTO)
    if spoken:
        session.speaks("a")

    assert [] == session.client(cmd.AckPlayback(10, response_id="resp_z" if spoken else None))


def test_the_ledger_begins_anew_with_each_response_that_speaks() -> None:
    """A response that is only created does not take the ledger from the one that is still played."""
    session = Scenario.live(config=AUTO)
    session.speaks("a", last=True)
    first = session.state.playback
    session.asks()

    assert first == session.state.playback
    session.speaks("b")
    assert first.response_id != session.state.playback.response_id
    assert (UNIT_BYTES // 48, 0) == (session.state.playback.sent_ms, session.state.playback.played_ms)


def test_openai_clients_are_told_no_reason_when_all_is_well() -> None:
    """`status_details` is null for a completed response, and has OpenAI's vocabulary for others."""
    session = Scenario.live(Way.OPENAI)
    session.asks()
    session.speaks("a")
    details = done(session.client(cmd.CancelResponse())).status_details

    assert wire.StatusDetails(type="cancelled", reason="client_cancelled", cause="response_cancel") == details
