"""The conversation's items: created, shown, deleted, cut to what was heard."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Limits, Transcription, Way
from session_core.items import Item, ItemStatus, ItemType, Part, Role
from tests.session_core.scenario import CONFIG, PROFILE, UNIT_BYTES, Scenario, error, one, refusal, types

AUTO = replace(CONFIG, auto_response=True)
TEXTUAL = replace(PROFILE, supports_text=True)
ADDED = ["conversation.item.added", "conversation.item.created", "conversation.item.done"]


def said(text: str, item_id: str = "") -> Item:
    """A user's text."""
    return Item(item_id, role=Role.USER, parts=(Part("input_text", text=text),))


def call(call_id: str) -> Item:
    """A function call that the client restores."""
    return Item(f"of {call_id}", ItemType.FUNCTION_CALL, call_id=call_id, name="f", arguments="{}")


def output(call_id: str, item_id: str = "") -> Item:
    """What a call gave."""
    return Item(item_id or f"out {call_id}", ItemType.FUNCTION_CALL_OUTPUT, call_id=call_id, output="42")


def ids(session: Scenario) -> list[str]:
    """The items in the order of the history."""
    return [item.item_id for item in session.state.history]


# --- create -------------------------------------------------------------------------------------------------


def test_items_stand_where_the_client_wants_them() -> None:
    """At the end, at the head, or after a named one; each tells the one before it."""
    session = Scenario.live()
    session.writes("1", "a")
    session.client(cmd.CreateItem(said("3", "c")))
    session.client(cmd.CreateItem(said("2", "b"), "a"))
    session.client(cmd.CreateItem(said("0", "r"), "root"))

    assert ["r", "a", "b", "c"] == [item.item_id for item in session.state.history]
    added = [event for event in session.events if isinstance(event, wire.ItemAdded)]
    assert [None, "a", "a", None] == [event.previous_item_id for event in added]
    assert ["conversation.item.added", "conversation.item.created", "conversation.item.done"] == types(
        session.events[:3]
    )


def test_an_item_without_an_id_gets_one() -> None:
    """The id comes from the entry's position."""
    session = Scenario.live()
    session.client(cmd.CreateItem(said("1")))

    assert f"item_{session.now_ms}_0" == session.state.history[0].item_id


@pytest.mark.parametrize("way", Way)
def test_an_item_comes_once(way: Way) -> None:
    """A second item of one id is refused by the code that stock clients take for success."""
    session = Scenario.live(way)
    session.writes("1", "a")
    events = session.client(cmd.CreateItem(said("2", "a")))

    assert refusal("item_create_duplicate_item_id", "item.id") == error(events)
    assert 1 == len(session.state.history)


@pytest.mark.parametrize(("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "item_not_found")])
def test_nothing_stands_after_an_unknown_item(way: Way, code: str) -> None:
    """The history stays as it was."""
    session = Scenario.live(way)
    events = session.client(cmd.CreateItem(said("1", "a"), "z"))

    assert refusal(code, "previous_item_id") == error(events)
    assert () == session.state.history


def test_the_history_is_bounded() -> None:
    """The oldest items fall out of the state."""
    session = Scenario.live(limits=Limits(max_history_items=2))
    for name in "abc":
        session.client(cmd.CreateItem(said(name, name)))

    assert ["b", "c"] == [item.item_id for item in session.state.history]


def test_the_output_of_a_call_starts_nothing() -> None:
    """The item alone asks for no response."""
    session = Scenario.live(config=AUTO)
    session.calls("f", last=True)

    assert ADDED == types(session.client(cmd.CreateItem(output("call_f"))))
    assert session.state.response is None


def test_outputs_stand_in_the_order_of_their_calls() -> None:
    """Whichever comes first; what follows a call's output is not moved."""
    session = Scenario.live(config=AUTO)
    session.calls("f", "g", "h", last=True)
    calls = ids(session)
    session.client(cmd.CreateItem(output("call_h")))
    session.client(cmd.CreateItem(output("call_f")))
    session.client(cmd.CreateItem(output("call_g")))

    assert [*calls, "out call_f", "out call_g", "out call_h"] == ids(session)
    added = [event for event in session.events if isinstance(event, wire.ItemAdded)][-3:]
    assert [calls[2], calls[2], "out call_f"] == [event.previous_item_id for event in added]


def test_an_output_stands_behind_its_call() -> None:
    """Outputs of earlier calls, and one that the client put before its own call, stay where they are."""
    session = Scenario.live()
    for item, after in ((call("a"), None), (output("a"), None), (call("b"), None), (call("c"), None)):
        session.client(cmd.CreateItem(item, after))
    session.client(cmd.CreateItem(output("c"), "root"))
    session.client(cmd.CreateItem(output("b")))

    assert ["out c", "of a", "out a", "of b", "of c", "out b"] == ids(session)


def test_an_output_stands_where_the_client_wants_it() -> None:
    """A place that is named comes before the order of calls."""
    session = Scenario.live()
    session.client(cmd.CreateItem(call("a")))
    session.writes("Hello", "b")
    session.client(cmd.CreateItem(output("a"), "of a"))

    assert ["of a", "out a", "b"] == ids(session)


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "invalid_value"), (Way.DUPLEX, "invalid_function_call_output")]
)
def test_an_output_of_an_unknown_call_is_refused(way: Way, code: str) -> None:
    """No place for it, whatever place the client names."""
    session = Scenario.live(way)
    session.client(cmd.CreateItem(call("a")))

    for after in (None, "root"):
        events = session.client(cmd.CreateItem(output("z"), after, "e1"))
        assert refusal(code, "item.call_id", "e1") == error(events)
    assert ["of a"] == ids(session)


# --- retrieve -----------------------------------------------------------------------------------------------


def test_an_item_is_shown_as_the_history_holds_it() -> None:
    """To the client's wish, and as often as it likes."""
    session = Scenario.live()
    session.writes("Hello", "a")

    for _ in range(2):
        shown = one(session.client(cmd.RetrieveItem("a")), wire.ItemRetrieved)
        assert ("a", (wire.ContentView(type="input_text", text="Hello"),)) == (
            shown.item.id,
            shown.item.content,
        )


def test_an_interrupted_item_is_shown_as_far_as_it_was_heard() -> None:
    """Its transcript ends with what the user heard; the model's context holds the same."""
    session = Scenario.live(config=AUTO)
    item_id = f"item_resp_{session.now_ms + 1}_0"
    session.speaks("Hello")
    session.speaks(" there.")
    session.client(cmd.AckPlayback(80))
    session.client(cmd.CancelResponse())
    shown = one(session.client(cmd.RetrieveItem(item_id)), wire.ItemRetrieved)

    assert (ItemStatus.INCOMPLETE, (wire.ContentView(type="output_audio", transcript="Hello"),)) == (
        shown.item.status,
        shown.item.content,
    )


def test_an_item_in_progress_is_shown_empty() -> None:
    """What it says comes in deltas."""
    session = Scenario.live(config=AUTO)
    session.speaks("Hello")
    shown = one(session.client(cmd.RetrieveItem(ids(session)[0])), wire.ItemRetrieved)

    assert (ItemStatus.IN_PROGRESS, ()) == (shown.item.status, shown.item.content)


UNKNOWN = [
    pytest.param(cmd.RetrieveItem("z", "e1"), "item_retrieve_invalid_item_id", id="retrieve"),
    pytest.param(cmd.DeleteItem("z", "e1"), "item_delete_invalid_item_id", id="delete"),
    pytest.param(cmd.TruncateItem("z", 0, 0, "e1"), "item_truncate_invalid_item_id", id="truncate"),
]


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize(("body", "code"), UNKNOWN)
def test_an_unknown_item_is_refused(body: cmd.AnyCommand, code: str, way: Way) -> None:
    """Each command has its own code on OpenAI's way."""
    session = Scenario.live(way)

    expected = code if way is Way.OPENAI else "item_not_found"
    assert refusal(expected, "item_id", "e1") == error(session.client(body))


# --- delete -------------------------------------------------------------------------------------------------


def test_a_deleted_item_is_gone() -> None:
    """The one after it now follows the one before it, and the id is free again."""
    session = Scenario.live()
    for name in "abc":
        session.writes(name, name)
    deleted = one(session.client(cmd.DeleteItem("b")), wire.ItemDeleted)

    assert ("b", ["a", "c"]) == (deleted.item_id, ids(session))
    assert ["error"] == types(session.client(cmd.DeleteItem("b")))
    added = one(session.client(cmd.CreateItem(said("B", "b"), "a")), wire.ItemAdded)
    assert ("a", ["a", "b", "c"]) == (added.previous_item_id, ids(session))


def test_a_deleted_item_in_progress_goes_on_being_said() -> None:
    """The response ends as it would; its item does not come back."""
    session = Scenario.live(config=AUTO)
    session.speaks("Hel")
    session.client(cmd.DeleteItem(ids(session)[0]))
    events = session.speaks("lo", last=True)

    done = one(events, wire.ResponseDone).response
    assert ("completed", 1, []) == (done.status, len(done.output), ids(session))


def test_a_deleted_item_is_not_transcribed() -> None:
    """Its transcript comes too late, and nobody is told of it."""
    session = Scenario.live(config=replace(CONFIG, transcription=Transcription("whisper")))
    first, second = session.commits(), session.commits()
    session.client(cmd.DeleteItem(first))

    assert ((second,), []) == (session.state.transcribing, session.worker(ev.InputTranscribed(first, "Hi")))
    assert [second] == ids(session)


# --- truncate -----------------------------------------------------------------------------------------------


def spoken(way: Way = Way.DUPLEX) -> tuple[Scenario, str]:
    """A session whose last item says "Hello there." in 160 ms; give its id."""
    session = Scenario.live(way)
    session.asks()
    session.speaks("Hello")
    session.speaks(" there.", last=True)
    return session, ids(session)[-1]


@pytest.mark.parametrize(
    ("audio_end_ms", "heard"),
    [(0, ""), (1, "Hello"), (80, "Hello"), (81, "Hello there."), (160, "Hello there.")],
)
def test_a_truncated_item_ends_where_the_user_stopped_hearing_it(audio_end_ms: int, heard: str) -> None:
    """Its audio, and its transcript by the marks: a word that was begun counts as heard."""
    session, item_id = spoken()
    (truncated,) = session.client(cmd.TruncateItem(item_id, 0, audio_end_ms))
    (part,) = session.state.history[-1].parts

    assert isinstance(truncated, wire.ItemTruncated)
    assert (item_id, 0, audio_end_ms) == (truncated.item_id, truncated.content_index, truncated.audio_end_ms)
    assert (24 * audio_end_ms, heard, "Hello there.") == (part.heard_samples, part.heard_text, part.text)


def test_a_cut_can_be_taken_back() -> None:
    """What was sent stays known: a later cut may be anywhere within it."""
    session, item_id = spoken()

    for audio_end_ms in (40, 160, 0, 100):
        assert ["conversation.item.truncated"] == types(
            session.client(cmd.TruncateItem(item_id, 0, audio_end_ms))
        )
    assert 2_400 == session.state.history[-1].parts[0].heard_samples


@pytest.mark.parametrize("way", Way)
def test_nothing_is_cut_past_its_end(way: Way) -> None:
    """The refusal names both durations; the item is as it was."""
    session, item_id = spoken(way)
    before = session.state.history
    events = session.client(cmd.TruncateItem(item_id, 0, 161, "e1"))

    assert refusal("invalid_value", "audio_end_ms", "e1") == error(events)
    message = one(events, wire.ErrorEvent).error.message
    assert "160ms is already shorter than 161ms" in message
    assert before == session.state.history


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize(
    ("item", "content_index"),
    [
        pytest.param(Item("a", role=Role.ASSISTANT, parts=(Part("output_text", text="Hi"),)), 0, id="text"),
        pytest.param(said("Hi", "a"), 0, id="the user's text"),
        pytest.param(call("a"), 0, id="no parts"),
        pytest.param(
            Item("a", role=Role.ASSISTANT, parts=(Part("output_audio", text="Hi"),)), 0, id="restored audio"
        ),
        pytest.param(
            Item("a", role=Role.USER, parts=(Part("input_audio", samples=9),)), 0, id="the user's audio"
        ),
        pytest.param(said("Hi", "a"), 1, id="index out of range"),
    ],
)
def test_only_audio_that_the_model_gave_can_be_cut(item: Item, content_index: int, way: Way) -> None:
    """Of all else it is not known how long it lasts."""
    session = Scenario.live(way)
    session.client(cmd.CreateItem(item))
    events = session.client(cmd.TruncateItem(item.item_id, content_index, 0, "e1"))

    assert refusal("unsupported_content_type", "content_index", "e1") == error(events)


def test_an_item_has_one_part_to_cut() -> None:
    """The next index is out of range."""
    session, item_id = spoken()

    assert refusal("unsupported_content_type", "content_index") == error(
        session.client(cmd.TruncateItem(item_id, 1, 0))
    )


def test_an_item_is_cut_while_it_is_said() -> None:
    """Up to what was sent so far; what is said afterwards was not heard either, however the response ends."""
    session = Scenario.live(config=AUTO)
    session.speaks("Hello")
    item_id = ids(session)[0]

    assert ["error"] == types(session.client(cmd.TruncateItem(item_id, 0, 81)))
    assert ["conversation.item.truncated"] == types(session.client(cmd.TruncateItem(item_id, 0, 40)))
    session.speaks(" there.", last=True)
    (part,) = session.state.history[0].parts
    assert (40 * 24, "Hello", UNIT_BYTES) == (part.heard_samples, part.heard_text, part.samples)


def test_another_item_is_cut_while_one_is_said() -> None:
    """An earlier answer; the one in progress is not touched."""
    session, item_id = spoken()
    session.asks()
    session.speaks("And")
    session.client(cmd.TruncateItem(item_id, 0, 0))
    session.speaks(" so on.", last=True)

    heard = [item.parts[0].heard_text for item in session.state.history]
    assert ["", "And so on."] == heard


def test_text_in_progress_cannot_be_cut() -> None:
    """A text answer has no audio at any time."""
    session = Scenario.live()
    session.asks(output_modality="text")
    session.speaks("Hello", b"")

    assert refusal("unsupported_content_type", "content_index") == error(
        session.client(cmd.TruncateItem(ids(session)[0], 0, 0))
    )


# --- transcription ------------------------------------------------------------------------------------------

HEARING = replace(CONFIG, transcription=Transcription("whisper", "en"))
TRANSCRIPTION = "conversation.item.input_audio_transcription."


def test_a_transcript_comes_between_the_commit_and_the_end_of_its_item() -> None:
    """Added, committed, transcribed, done; the item keeps the transcript."""
    session = Scenario.live(config=HEARING)
    session.audio(9_600)

    assert [*ADDED[:2], "input_audio_buffer.committed"] == types(session.client(cmd.CommitInput()))
    (item,) = session.state.history
    events = session.worker(ev.InputTranscribed(item.item_id, "Hello", 200))
    assert [TRANSCRIPTION + "delta", TRANSCRIPTION + "completed", ADDED[2]] == types(events)
    completed = one(events, wire.TranscriptionCompleted)
    assert ("Hello", 0.2) == (completed.transcript, completed.usage.seconds)
    assert "Hello" == session.state.history[0].parts[0].text
    assert ((wire.ContentView(type="input_audio", transcript="Hello"),)) == one(
        events, wire.ItemDone
    ).item.content


def test_transcripts_come_in_any_order() -> None:
    """Each names its own item, and the item its place."""
    session = Scenario.live(config=HEARING)
    first, second = session.commits(), session.commits()

    for item_id, previous in ((second, first), (first, None)):
        events = session.worker(ev.InputTranscribed(item_id, item_id))
        assert {item_id} == {getattr(event, "item_id", item_id) for event in events}
        done = one(events, wire.ItemDone)
        assert (item_id, previous) == (done.item.id, done.previous_item_id)
    assert () == session.state.transcribing


def test_a_failed_transcription_settles_its_item() -> None:
    """It is told, and the item is done without a transcript."""
    session = Scenario.live(config=HEARING)
    item_id = session.commits()
    events = session.worker(ev.InputTranscribed(item_id, "Hel", error="Out of memory."))

    assert [TRANSCRIPTION + "failed", ADDED[2]] == types(events)
    failed = one(events, wire.TranscriptionFailed)
    assert (item_id, "Out of memory.") == (failed.item_id, failed.error.message)
    assert None is session.state.history[0].parts[0].text


@pytest.mark.parametrize("again", [True, False])
def test_a_transcript_that_nobody_waits_for_changes_nothing(again: bool) -> None:
    """A second one, or one of an item that was never to be transcribed."""
    session = Scenario.live(config=HEARING if again else CONFIG)
    item_id = session.commits()
    session.worker(ev.InputTranscribed(item_id, "Hello"))

    assert [] == session.worker(ev.InputTranscribed(item_id, "Bye"))
    assert ("Hello" if again else None) == session.state.history[0].parts[0].text


def test_text_needs_no_transcript() -> None:
    """A turn that was only written is done at once; one with both is transcribed."""
    session = Scenario.live(config=HEARING, profile=TEXTUAL)
    session.client(cmd.AppendText("Hello"))
    assert ADDED[2] == types(session.client(cmd.CommitInput()))[-1]

    session.client(cmd.AppendText("Hello"))
    item_id = session.commits()
    session.worker(ev.InputTranscribed(item_id, "Bye"))
    assert ["Bye", "Hello"] == [part.text for part in session.state.history[1].parts]


def test_an_item_that_fell_out_of_the_history_is_not_transcribed() -> None:
    """Nobody is told of what nobody can see; what waits is bounded like the history."""
    session = Scenario.live(config=HEARING, limits=Limits(max_history_items=1))
    first, second = session.commits(), session.commits()

    assert [second] == list(session.state.transcribing)
    assert [] == session.worker(ev.InputTranscribed(first, "Hello"))
    session.writes("Hi")
    assert [] == session.worker(ev.InputTranscribed(second, "Hello"))
    assert [] == list(session.state.transcribing)


def test_no_transcription_without_a_wish() -> None:
    """The item is done with its commit."""
    session = Scenario.live()
    session.commits()

    assert () == session.state.transcribing
    added = one(session.events[:1], wire.ItemAdded)
    assert (wire.ContentView(type="input_audio", transcript=None),) == added.item.content
    assert UNSET is added.item.call_id
