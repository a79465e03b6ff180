"""The checker can fail: one broken rule at a time, in a sequence that is otherwise right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from replay_tools.lint import Body, Playback, Seen, read, violations
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Transcription, TurnDetection, Way
from session_core.items import Item, Role
from tests.session_core.scenario import CONFIG, Scenario

Edit = Callable[[list[Seen]], list[Seen]]


def conversation(way: Way = Way.DUPLEX) -> list[Seen]:
    """An utterance, its answer, another one that interrupts the next answer, an ack, and the end."""
    session = Scenario.live(way, config=replace(CONFIG, turn_detection=TurnDetection()))
    session.audio(48_000)
    session.worker(ev.SpeechStarted(0))
    session.worker(ev.SpeechStopped(9_600))
    session.speaks("Hel")
    session.speaks("lo", last=True)
    session.client(cmd.AckPlayback(40))
    session.asks()
    session.speaks("and")
    session.worker(ev.SpeechStarted(12_000))
    session.worker(ev.SpeechStopped(19_200))
    session.client(cmd.CloseSession())
    return [
        read(msgspec.json.encode(event))
        for event, _ in session.outbound
        if way is Way.DUPLEX or event.tier < 3
    ]


def numbered(events: list[Seen]) -> list[Seen]:
    """The events with numbers from 1 again, so that an edit breaks no other rule than its own."""
    numbers = count(1)
    return [
        event if event.server_event_seq is None else replace(event, server_event_seq=next(numbers))
        for event in events
    ]


def at(events: list[Seen], name: str, occurrence: int = 0) -> int:
    """Where the event of this type stands."""
    return [index for index, event in enumerate(events) if event.type == name][occurrence]


def drop(name: str, occurrence: int = 0) -> Edit:
    """Leave an event out."""

    def edit(events: list[Seen]) -> list[Seen]:
        index = at(events, name, occurrence)
        return numbered(events[:index] + events[index + 1 :])

    return edit


def twice(name: str, occurrence: int = 0) -> Edit:
    """Say an event two times."""

    def edit(events: list[Seen]) -> list[Seen]:
        index = at(events, name, occurrence)
        return numbered([*events[: index + 1], *events[index:]])

    return edit


def move(name: str, before: str, occurrence: int = 0, before_occurrence: int = 0) -> Edit:
    """Put an event before another one."""

    def edit(events: list[Seen]) -> list[Seen]:
        event = events[at(events, name, occurrence)]
        target = events[at(events, before, before_occurrence)]
        rest = [other for other in events if other is not event]
        rest.insert(rest.index(target), event)
        return numbered(rest)

    return edit


def change(kind: str, occurrence: int = 0, **fields: object) -> Edit:
    """Give an event other fields."""

    def edit(events: list[Seen]) -> list[Seen]:
        index = at(events, kind, occurrence)
        return [*events[:index], replace(events[index], **fields), *events[index + 1 :]]

    return edit


@pytest.mark.parametrize("way", Way)
def test_a_right_conversation_has_no_violations(way: Way) -> None:
    """Both ways of opening, as their clients read them."""
    assert [] == violations(conversation(way), tier_3=way is Way.DUPLEX)


def test_a_resumed_client_reads_on() -> None:
    """After a resume the numbers go on behind the last one that the client has."""
    events = conversation()

    assert [] == violations(events[1:6], after=0)
    rest = events[at(events, "playback.acknowledged") :]
    assert [] == violations(rest[:1], after=(rest[0].server_event_seq or 0) - 1)


RESPONSE = Body("resp_z", status="completed")
SPEECH = "input_audio_buffer.speech_"
ITEM = "conversation.item."
AUDIO = "response.output_audio"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # numbers, epochs, the end
        pytest.param(
            change("session.created", server_event_seq=1), "has a number", id="created with a number"
        ),
        pytest.param(change("response.created", server_event_seq=None), "has no number", id="no number"),
        pytest.param(lambda events: events[:3] + events[4:], "number after", id="a gap"),
        pytest.param(lambda events: [*events[:4], *events[3:]], "number after", id="a number twice"),
        pytest.param(change("session.closed", epoch=0), "epoch 0 after epoch 1", id="an old epoch"),
        pytest.param(twice("session.closed"), "after the session's end", id="after the end"),
        # responses
        pytest.param(drop("response.created"), "was not created", id="response not created"),
        pytest.param(twice("response.created"), "or twice", id="created twice"),
        pytest.param(
            lambda events: drop(ITEM + "created", 1)(drop(ITEM + "added", 1)(events)),
            "not the conversation's last",
            id="output item not added",
        ),
        pytest.param(
            drop("response.output_item.added"), "without response.output_item.added", id="item not opened"
        ),
        pytest.param(
            drop("response.content_part.added"), "without response.content_part.added", id="part not opened"
        ),
        pytest.param(drop("response.speak"), "without response.speak", id="no speak"),
        pytest.param(twice("response.speak"), "or twice", id="speak twice"),
        pytest.param(
            move("response.content_part.added", "response.output_item.added"),
            "without response.output_item.added",
            id="part first",
        ),
        pytest.param(move(AUDIO + ".done", AUDIO + ".delta"), "too late", id="delta after audio done"),
        pytest.param(drop(AUDIO + "_transcript.delta"), "not the deltas joined", id="a delta lost"),
        pytest.param(
            change(AUDIO + "_transcript.done", transcript="Hi"), "not the deltas joined", id="transcript"
        ),
        pytest.param(drop(AUDIO + ".done"), "without response.output_audio.done", id="audio not done"),
        pytest.param(
            drop("response.output_item.done"), "without response.output_item.done", id="item not done"
        ),
        pytest.param(
            move("response.output_item.done", AUDIO + ".done"), "too late", id="item done before its part"
        ),
        pytest.param(
            drop(ITEM + "done", 1), "without conversation.item.done", id="conversation item not done"
        ),
        pytest.param(
            change("response.output_item.done", item=Body("item_z", status="completed")),
            "not opened by this response",
            id="another item",
        ),
        pytest.param(
            change("response.done", response=RESPONSE),
            "resp_z, which was not created",
            id="an unknown response",
        ),
        pytest.param(move(AUDIO + ".delta", "session.closed"), "too late", id="a delta after the end"),
        pytest.param(move(AUDIO + ".delta", "session.closed", 2), "too late", id="a delta after a cancel"),
        pytest.param(drop("rate_limits.updated"), "follows each response.done", id="no rate limits"),
        pytest.param(twice("rate_limits.updated"), "follows each response.done", id="rate limits twice"),
        # items and commits
        pytest.param(twice(ITEM + "added"), "a second time", id="added twice"),
        pytest.param(twice(ITEM + "created"), "a second time", id="created twice"),
        pytest.param(twice(ITEM + "done"), "a second time", id="done twice"),
        pytest.param(move(ITEM + "done", ITEM + "added"), "was not added", id="done before added"),
        pytest.param(change(ITEM + "added", previous_item_id="z"), "was never added", id="after nobody"),
        pytest.param(
            change("input_audio_buffer.committed", 1, previous_item_id=None),
            "previous_item_id None",
            id="not first",
        ),
        pytest.param(
            move("input_audio_buffer.committed", ITEM + "added"),
            "not the newest item",
            id="committed before added",
        ),
        pytest.param(
            move(ITEM + "done", "input_audio_buffer.committed"), "still open", id="done before committed"
        ),
        pytest.param(
            change("response.output_item.added", item=Body("item_z", status="cancelled")),
            "item status",
            id="status",
        ),
        # speech
        pytest.param(twice(SPEECH + "started"), "while the user speaks", id="started twice"),
        pytest.param(drop(SPEECH + "started"), "while the user is silent", id="not started"),
        pytest.param(
            move(SPEECH + "stopped", SPEECH + "started"), "while the user is silent", id="stopped first"
        ),
        pytest.param(
            move(SPEECH + "stopped", "response.created"),
            "is committed already",
            id="stopped after the commit",
        ),
        pytest.param(
            move(SPEECH + "started", "response.created"), "is there already", id="started after the commit"
        ),
        pytest.param(change(SPEECH + "stopped", item_id=""), "no id", id="no item id"),
        # playback
        pytest.param(change("playback.acknowledged", playback=Playback(9, 9, 4, 5)), "ledger", id="ledger"),
        pytest.param(change("playback.acknowledged", playback=None), "ledger", id="no ledger"),
    ],
)
def test_a_broken_rule_is_found(edit: Edit, expected: str) -> None:
    """Each rule of the contract names the event that breaks it."""
    wrong = violations(edit(conversation()))

    assert any(expected in violation for violation in wrong), wrong


def test_the_status_of_an_item_fits_its_response() -> None:
    """A cancelled response has no completed item."""
    events = conversation()
    index = at(events, "response.done", 1)
    response = events[index].response
    assert response is not None
    events[index] = replace(events[index], response=replace(response, status="completed"))

    assert any("is completed, its items ['incomplete']" in violation for violation in violations(events))


# --- items, calls, text, transcripts ------------------------------------------------------------------------

TRANSCRIPTION = ITEM + "input_audio_transcription."
CALL = "response.function_call_arguments."
TEXT = "response.output_text."


def work(way: Way = Way.DUPLEX) -> list[Seen]:
    """Two commits with transcripts, an answer with calls, one beside it, items cut, shown, deleted."""
    config = replace(CONFIG, transcription=Transcription("whisper"))
    session = Scenario.live(way, config=config)
    first, second = session.commits(), session.commits()
    session.worker(ev.InputTranscribed(second, error="Too loud."))
    session.worker(ev.InputTranscribed(first, "Hello"))
    side = session.asks(outside=True, output_modality="text")
    session.asks()
    session.speaks("Let me see", calls=(ev.ToolCall("c1", "f", "{}"), ev.ToolCall("c2", "g", "{}")))
    session.worker(ev.SideOutput(side, "Hm"))
    session.speaks("It is")
    session.client(cmd.ClearOutput())
    answer = session.state.history[2].item_id
    session.client(cmd.TruncateItem(answer, 0, 10))
    session.client(cmd.RetrieveItem(answer))
    session.client(cmd.DeleteItem(second))
    session.client(cmd.CreateItem(Item(second, role=Role.USER)))
    return [
        read(msgspec.json.encode(event))
        for event, _ in session.outbound
        if way is Way.DUPLEX or event.tier < 3
    ]


@pytest.mark.parametrize("way", Way)
def test_right_work_has_no_violations(way: Way) -> None:
    """Both ways of opening, as their clients read them."""
    assert [] == violations(work(way), tier_3=way is Way.DUPLEX)


UNNAMED = Body("item_z", "function_call", "in_progress", call_id="c1", arguments="")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # transcription
        pytest.param(
            move(TRANSCRIPTION + "failed", "input_audio_buffer.committed", 0, 1),
            "was not committed",
            id="transcribed before the commit",
        ),
        pytest.param(
            move(ITEM + "done", TRANSCRIPTION + "failed"), "is done with it", id="transcribed after the end"
        ),
        pytest.param(
            move(ITEM + "done", TRANSCRIPTION + "completed", 1), "is being transcribed", id="done too early"
        ),
        pytest.param(twice(TRANSCRIPTION + "completed"), "is done with it", id="transcribed twice"),
        pytest.param(drop(TRANSCRIPTION + "delta"), "has deltas", id="no transcript deltas"),
        pytest.param(
            change(TRANSCRIPTION + "failed", type=TRANSCRIPTION + "completed"), "has deltas", id="not failed"
        ),
        # calls
        pytest.param(
            change("response.output_item.added", 1, item=UNNAMED),
            "its id and name",
            id="a call without a name",
        ),
        pytest.param(drop(CALL + "delta"), "not the deltas joined", id="no arguments"),
        pytest.param(change(CALL + "done", name="h"), "name h, not f", id="another name"),
        pytest.param(drop(CALL + "done"), "without " + CALL + "done", id="arguments not done"),
        pytest.param(
            change("response.output_item.done", 1, output_index=0), "output_index 0", id="another index"
        ),
        pytest.param(
            change("response.output_item.added", 1, output_index=2),
            "output_index 2, not 1",
            id="a wrong index",
        ),
        pytest.param(
            move("response.output_item.added", "response.output_item.done", 1, 0),
            "while the item before is open",
            id="two open items",
        ),
        pytest.param(twice("response.output_item.added"), "too late, or twice", id="opened twice"),
        pytest.param(
            change(CALL + "delta", type=TEXT + "delta"), "is made of function_call", id="text in a call"
        ),
        pytest.param(
            change(CALL + "done", type=TEXT + "done"),
            "is made of function_call",
            id="a call that ends as text",
        ),
        # text
        pytest.param(change(TEXT + "done", text="Mh"), "not the deltas joined", id="another text"),
        pytest.param(drop(TEXT + "done"), "without " + TEXT + "done", id="text not done"),
        # items
        pytest.param(change(ITEM + "truncated", item_id="z"), "z is not there", id="cut nothing"),
        pytest.param(change(ITEM + "deleted", item_id="z"), "z is not there", id="deleted nothing"),
        pytest.param(drop(ITEM + "deleted"), "a second time", id="a taken id"),
        pytest.param(
            change("output_audio_buffer.cleared", response_id="z"), "z is not over", id="cleared nothing"
        ),
        pytest.param(
            move("output_audio_buffer.cleared", "response.done", 0, 1), "is not over", id="cleared too early"
        ),
    ],
)
def test_a_broken_rule_of_work_is_found(edit: Edit, expected: str) -> None:
    """Each rule of the contract names the event that breaks it."""
    wrong = violations(edit(work()))

    assert any(expected in violation for violation in wrong), wrong


@pytest.mark.parametrize(("index", "expected"), [(0, "its items"), (1, "call incomplete")])
def test_what_was_closed_stays_completed(index: int, expected: str) -> None:
    """Of a cancelled response the last item alone may be incomplete, and a call never is."""
    events = work()
    place = at(events, "response.output_item.done", index)
    item = events[place].item
    assert item is not None
    events[place] = replace(events[place], item=replace(item, status="incomplete"))

    assert any(expected in violation for violation in violations(events))


def test_the_output_of_a_response_is_its_items() -> None:
    """In the order in which they were opened."""
    events = work()
    place = at(events, "response.done", 1)
    response = events[place].response
    assert response is not None
    assert isinstance(response.output, tuple)
    events[place] = replace(events[place], response=replace(response, output=response.output[1:]))

    assert any("its output is not" in violation for violation in violations(events))


def test_silence_names_an_item_to_come() -> None:
    """It is committed after the event that announces it."""
    events = work()
    added = at(events, ITEM + "added")
    item = events[added].item
    assert item is not None
    timeout = Seen("input_audio_buffer.timeout_triggered", 1, 0, item_id=item.id)

    assert [] == violations(numbered([*events[:added], timeout, *events[added:]]))
    wrong = violations(numbered([*events[: added + 1], timeout, *events[added + 1 :]]))
    assert any("is there already" in violation for violation in wrong)


class _Details(Struct):
    reason: str


@pytest.mark.parametrize("reason", ["barge_in", "new_response"])
def test_a_reason_of_our_own_is_not_read(reason: str) -> None:
    """Strict clients know four reasons."""
    frame = msgspec.json.encode(
        {"type": "response.done", "response": {"id": "r", "status_details": _Details(reason)}}
    )

    with pytest.raises(msgspec.ValidationError):
        read(frame)
