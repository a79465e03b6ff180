"""The heard point: how much of an answer the history holds, by acks, by time, by a cut."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import CommitPolicy, TurnDetection
from session_core.items import ItemStatus
from tests.session_core.scenario import CONFIG, Scenario, one, types

VAD = replace(CONFIG, turn_detection=TurnDetection())


def told(policy: CommitPolicy = CommitPolicy.COMMIT_ALL_ON_DONE, units: int = 5) -> Scenario:
    """An answer in progress: one word of 80 ms in each unit, all given out within a few milliseconds."""
    session = Scenario.live(config=replace(CONFIG, playback_commit_policy=policy))
    session.asks()
    for word in "abcdefghij"[:units]:
        session.speaks(word)
    return session


def heard(session: Scenario, index: int = 0) -> str | None:
    """What the history says that the user heard of its first message."""
    return session.state.history[index].parts[0].heard_text


# --- when it closes -----------------------------------------------------------------------------------------


def test_an_interrupted_answer_ends_where_the_client_says() -> None:
    """By its last ack, not by time."""
    session = told()
    session.client(cmd.AckPlayback(170))
    session.wait(10_000)
    session.client(cmd.CancelResponse())

    assert (170 * 24, "abc") == (session.state.history[0].parts[0].heard_samples, heard(session))


def test_an_interrupted_answer_ends_by_time_without_acks() -> None:
    """Playing keeps pace with time from the first audio on, and ends with what was sent."""
    for waited_ms, expected in ((0, "a"), (150, "ab"), (10_000, "abcde")):
        session = told()
        began_ms = session.state.playback.began_ms
        session.now_ms = began_ms + waited_ms
        session.client(cmd.CancelResponse())
        assert (min(400, waited_ms + 1) * 24, expected) == (
            session.state.history[0].parts[0].heard_samples,
            heard(session),
        )


def test_speech_stores_no_unheard_text() -> None:
    """An interruption by the user, without any command of the client."""
    session = Scenario.live(config=VAD)
    session.audio(48_000)
    session.asks()
    for word in "abcde":
        session.speaks(word)
    session.client(cmd.AckPlayback(100))
    events = session.worker(ev.SpeechStarted(0))

    assert ("ab", "abcde") == (heard(session), one(events, wire.TranscriptDone).transcript)
    view = one(events, wire.ResponseDone).response.output[0]
    assert (wire.ContentView(type="output_audio", transcript="ab"),) == view.content


def test_what_is_committed_counts_as_heard() -> None:
    """A client that tells both: what it played may not have been heard to the end."""
    session = told()
    session.client(cmd.AckPlayback(300, 90))
    session.client(cmd.CancelResponse())

    assert "ab" == heard(session)


@pytest.mark.parametrize(
    ("policy", "expected"), [(CommitPolicy.ACK_ONLY, "ab"), (CommitPolicy.COMMIT_ALL_ON_DONE, "abcdef")]
)
def test_a_whole_answer_is_stored_by_policy(policy: CommitPolicy, expected: str) -> None:
    """As far as it was acknowledged, or whole."""
    session = told(policy)
    session.client(cmd.AckPlayback(100))
    session.speaks("f", last=True)

    assert (expected, ItemStatus.COMPLETED) == (heard(session), session.state.history[0].status)


def test_a_message_without_audio_was_not_heard() -> None:
    """It was opened, and nothing of it was sent; an earlier answer's ledger says nothing of it."""
    session = told()
    session.speaks(last=True)
    session.asks()
    session.speaks("never", b"")
    session.client(cmd.CancelResponse())

    assert (0, "") == (session.state.history[1].parts[0].heard_samples, heard(session, 1))


# --- afterwards ---------------------------------------------------------------------------------------------


def test_later_acks_move_the_heard_point() -> None:
    """The client stopped a little later than the server knew; it may also go back to what the acks say."""
    session = told()
    session.client(cmd.CancelResponse())
    assert "a" == heard(session)

    for played, expected in ((90, "ab"), (200, "abc"), (100, "abc")):
        session.client(cmd.AckPlayback(played))
        assert expected == heard(session)


@pytest.mark.parametrize("by", ["unit", "response", "commit"])
def test_the_next_use_fixes_the_heard_point(by: str) -> None:
    """A unit or a response has used it: later acks move the ledger only."""
    session = told()
    session.client(cmd.AckPlayback(90))
    session.client(cmd.CancelResponse())
    session.client(cmd.AckPlayback(170))
    if by == "unit":
        session.listens()
    elif by == "response":
        session.asks()
    else:
        session.audio(9_600)
        session.client(cmd.CommitInput(respond=True))
    acknowledged = one(session.client(cmd.AckPlayback(400)), wire.PlaybackAcknowledged)

    assert ("abc", 400) == (heard(session), acknowledged.playback.played_ms)


def test_a_unit_begun_before_the_interruption_uses_nothing() -> None:
    """It was under way with the whole answer in its context; the heard point is still open."""
    session = told()
    late = session.unit_body(ev.Decision.SPEAK)
    session.client(cmd.CancelResponse())
    session.worker(late)
    session.client(cmd.AckPlayback(170))

    assert "abc" == heard(session)


def test_a_response_outside_the_conversation_fixes_nothing() -> None:
    """It stands beside it."""
    session = told()
    session.client(cmd.CancelResponse())
    session.asks(outside=True)
    session.client(cmd.AckPlayback(170))

    assert "abc" == heard(session)


def test_a_whole_answer_is_not_cut_by_acks() -> None:
    """Committed when it was done."""
    session = told()
    session.speaks("f", last=True)
    session.client(cmd.AckPlayback(10))

    assert "abcdef" == heard(session)


def test_with_ack_only_a_whole_answer_grows_with_the_acks() -> None:
    """Also while the clock goes on, until something else is said."""
    session = told(CommitPolicy.ACK_ONLY)
    session.speaks("f", last=True)
    session.listens()
    assert "a" == heard(session)

    session.client(cmd.AckPlayback(240))
    session.listens()
    assert "abc" == heard(session)
    session.client(cmd.AckPlayback(480))
    assert "abcdef" == heard(session)


def test_acks_of_an_item_that_is_gone_move_the_ledger() -> None:
    """The client deleted it meanwhile."""
    session = told()
    session.client(cmd.CancelResponse())
    session.client(cmd.DeleteItem(session.state.playback.item_id))

    assert ["playback.acknowledged"] == types(session.client(cmd.AckPlayback(90)))
    assert () == session.state.history


# --- cut ----------------------------------------------------------------------------------------------------


def test_a_cut_comes_before_all_acks() -> None:
    """It is what the client wants: later acks leave it alone, a later cut does not."""
    session = told()
    session.client(cmd.AckPlayback(90))
    session.client(cmd.CancelResponse())
    item_id = session.state.playback.item_id
    session.client(cmd.TruncateItem(item_id, 0, 250))
    assert "abcd" == heard(session)

    session.client(cmd.AckPlayback(400))
    assert "abcd" == heard(session)
    session.client(cmd.TruncateItem(item_id, 0, 400))
    assert "abcde" == heard(session)


def test_an_ack_may_be_the_last() -> None:
    """With `truncate` the client plays no more: the item ends there, and later acks leave it alone."""
    session = told()
    session.client(cmd.CancelResponse())
    events = session.client(cmd.AckPlayback(250, truncate=True))

    assert ["playback.acknowledged", "conversation.item.truncated"] == types(events)
    assert 250 == one(events, wire.ItemTruncated).audio_end_ms
    assert "abcd" == heard(session)
    session.client(cmd.AckPlayback(400))
    assert "abcd" == heard(session)

    session.client(cmd.DeleteItem(session.state.playback.item_id))
    assert ["playback.acknowledged"] == types(session.client(cmd.AckPlayback(400, truncate=True)))


def test_a_cut_comes_after_the_heard_point_is_fixed() -> None:
    """Up to all that was sent, though the model went on from less."""
    session = told()
    session.client(cmd.CancelResponse())
    item_id = session.state.playback.item_id
    session.asks()
    assert "a" == heard(session)

    session.client(cmd.TruncateItem(item_id, 0, 400))
    assert "abcde" == heard(session)


@pytest.mark.parametrize("policy", CommitPolicy)
def test_a_cut_while_it_is_said_outlasts_the_end(policy: CommitPolicy) -> None:
    """Neither the policy nor an ack takes it back."""
    session = told(policy)
    session.client(cmd.TruncateItem(session.state.playback.item_id, 0, 90))
    session.client(cmd.AckPlayback(400))
    session.speaks("f", last=True)
    session.client(cmd.AckPlayback(480))

    assert "ab" == heard(session)


def test_cutting_an_older_item_leaves_the_newest_open() -> None:
    """Acks still move what the newest answer's heard point is."""
    session = told()
    session.speaks("f", last=True)
    older = session.state.playback.item_id
    session.asks()
    session.speaks("g")
    session.speaks("h")
    session.client(cmd.CancelResponse())
    session.client(cmd.TruncateItem(older, 0, 0))
    session.client(cmd.AckPlayback(160))

    assert ("", "gh") == (heard(session), heard(session, 1))


# --- several messages ---------------------------------------------------------------------------------------


def test_clients_count_playing_time_by_response() -> None:
    """After a call the second message's audio follows the first's: one ledger for both."""
    session = Scenario.live()
    session.asks()
    session.speaks("a", calls=(ev.ToolCall("call_f", "f", "{}"),))
    session.speaks("b")
    session.speaks("c")
    ledgers = []
    for played in (40, 100, 240):
        acknowledged = one(session.client(cmd.AckPlayback(played, played - 10)), wire.PlaybackAcknowledged)
        ledgers.append(
            (
                acknowledged.playback.sent_ms,
                acknowledged.playback.played_ms,
                acknowledged.playback.committed_ms,
            )
        )
    assert [(240, 80, 80), (240, 100, 90), (240, 240, 230)] == ledgers

    session.client(cmd.CancelResponse())
    assert ("a", "bc") == (heard(session), heard(session, 2))


def test_the_next_response_counts_from_nothing() -> None:
    """Its client does, too."""
    session = told()
    session.speaks("f", last=True)
    session.asks()
    session.speaks("g")

    assert (0, 80) == (session.state.playback.earlier_ms, session.state.playback.sent_ms)


# --- marks --------------------------------------------------------------------------------------------------


def marks(events: list[wire.ServerEvent]) -> list[tuple[int, int]]:
    """The marks of the audio deltas: from which millisecond on, the text up to which character."""
    found: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, wire.AudioDelta) and isinstance(event.metadata.audio_text_marks, tuple):
            found += [(mark.audio_ms, mark.text_chars) for mark in event.metadata.audio_text_marks]
    return found


def test_audio_is_marked_where_new_text_begins() -> None:
    """Audio without new text has no mark; text without audio is marked with the audio that follows."""
    session = Scenario.live()
    session.asks()
    told = [
        marks(session.speaks(text, bytes(size)))
        for text, size in (("Hello", 3_840), ("", 3_840), (" th", 0), ("ere", 3_840))
    ]

    assert [[(0, 5)], [], [], [(160, 11)]] == told


def test_rendered_audio_is_marked_with_the_text_of_its_unit() -> None:
    """At its first part with audio, whatever was said meanwhile."""
    session = Scenario.live()
    session.asks()
    session.speaks("Hello", None)
    session.speaks(" there.", None, last=True)
    parts = [
        ev.OutputRendered(0, 0, 0, b"", last=False),
        ev.OutputRendered(0, 1, 0, bytes(480), last=False),
        ev.OutputRendered(0, 2, 240, bytes(480), last=True),
        ev.OutputRendered(1, 0, 0, bytes(480), last=True),
    ]

    assert [[], [(0, 5)], [], [(20, 12)]] == [marks(session.worker(part)) for part in parts]


def test_an_answer_is_cut_by_marks_of_rendered_audio() -> None:
    """Text whose audio was not rendered was not heard."""
    session = Scenario.live()
    session.asks()
    session.speaks("Hello", None)
    session.speaks(" there.", None)
    session.worker(ev.OutputRendered(0, 0, 0, bytes(480), last=True))
    session.wait(1_000).client(cmd.CancelResponse())

    assert "Hello" == heard(session)
