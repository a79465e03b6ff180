"""Function calls and text: what else a response is made of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Modality
from session_core.items import ItemStatus, ItemType
from tests.session_core.scenario import CONFIG, Scenario, one, types
from tests.session_core.sequences import CALLED, CLOSED, DONE, OPENED, SPOKEN, TEXT_CLOSED

AUTO = replace(CONFIG, auto_response=True)
F = ev.ToolCall("call_f", "f", "{}")
G = ev.ToolCall("call_g", "g", "{}")


def outline(response: wire.ResponseView) -> list[tuple[str, str]]:
    """Type and status of each item of a response."""
    return [(item.type, item.status) for item in response.output]


# --- calls --------------------------------------------------------------------------------------------------


def test_a_call_is_told_whole() -> None:
    """Added with its name before its arguments, completed when it is done."""
    session = Scenario.live()
    response_id = session.asks()
    events = session.calls("f")
    (item,) = session.state.history

    assert CALLED == types(events)
    added, done = one(events, wire.OutputItemAdded).item, one(events, wire.OutputItemDone).item
    assert ("call_f", "f", "", "in_progress") == (added.call_id, added.name, added.arguments, added.status)
    assert ("call_f", "f", '{"of": "f"}', "completed") == (
        done.call_id,
        done.name,
        done.arguments,
        done.status,
    )
    assert (response_id, item.item_id, 0, "call_f", "f", '{"of": "f"}') == (
        one(events, wire.CallArgumentsDone).response_id,
        one(events, wire.CallArgumentsDone).item_id,
        one(events, wire.CallArgumentsDone).output_index,
        one(events, wire.CallArgumentsDone).call_id,
        one(events, wire.CallArgumentsDone).name,
        one(events, wire.CallArgumentsDone).arguments,
    )
    assert (ItemType.FUNCTION_CALL, ItemStatus.COMPLETED, None) == (item.item_type, item.status, item.role)


MALFORMED = [
    ev.ToolCall("call_m", "f", "{broken"),
    ev.ToolCall("call_m", "f", "[1]"),
    ev.ToolCall("call_m", "", "{}"),
    ev.ToolCall("call_m", "f", "[" * 5_000),
]


@pytest.mark.parametrize("call", MALFORMED, ids=["no JSON", "no object", "no name", "too deep"])
def test_a_malformed_call_is_told_to_duplex_clients_alone(call: ev.ToolCall) -> None:
    """It stands as the model wrote it in one event, makes no item, and the calls beside it are made."""
    session = Scenario.live(config=AUTO)
    events = session.speaks(audio=b"", calls=(call, F), last=True)

    told = one(events, wire.MalformedCall)
    assert (call.call_id, call.name, call.arguments) == (told.call_id, told.name, told.arguments)
    assert (3, "malformed") == (told.tier, told.status)
    assert [ItemType.FUNCTION_CALL] == [item.item_type for item in session.state.history]


def test_a_malformed_call_waits_for_the_audio_before_it() -> None:
    """Delayed calls are judged when their turn has come."""
    session = Scenario.live(config=AUTO)
    session.speaks("One moment.", None, calls=(MALFORMED[0], F), last=True)
    events = session.worker(ev.OutputRendered(0, 0, 0, bytes(480), True))

    assert [MALFORMED[0].arguments] == [
        event.arguments for event in events if isinstance(event, wire.MalformedCall)
    ]
    assert session.state.response is None


def test_a_malformed_call_outside_the_conversation() -> None:
    """The response ends with the calls that can be made."""
    session = Scenario.live()
    session.client(cmd.CreateResponse(cmd.ResponseOptions(outside=True)))
    [response] = session.state.side
    events = session.worker(ev.SideOutput(response.response_id, calls=(MALFORMED[0], F)))

    assert response.response_id == one(events, wire.MalformedCall).response_id
    assert [("function_call", "completed")] == outline(one(events, wire.ResponseDone).response)


def test_calls_close_the_message_before_them() -> None:
    """One unit says a text and calls a function: the text is over before the call."""
    session = Scenario.live(config=AUTO)
    events = session.speaks("One moment.", calls=(F,), last=True)

    opened = [*OPENED, "response.speak"]
    assert ["response.created", *opened, *SPOKEN, *CLOSED, *CALLED, *DONE] == types(events)
    assert [("message", "completed"), ("function_call", "completed")] == outline(
        one(events, wire.ResponseDone).response
    )


def test_parallel_calls_come_one_after_the_other() -> None:
    """Each with its own id, index and place."""
    session = Scenario.live()
    response_id = session.asks()
    events = session.calls("f", "g", last=True)

    assert [*CALLED, *CALLED, *DONE] == types(events)
    done = [event for event in events if isinstance(event, wire.OutputItemDone)]
    assert [(0, f"item_{response_id}"), (1, f"item_{response_id}_1")] == [
        (event.output_index, event.item.id) for event in done
    ]
    added = [event.previous_item_id for event in events if isinstance(event, wire.ItemAdded)]
    assert [None, f"item_{response_id}"] == added


def test_text_call_text_cancelled_in_the_second_text() -> None:
    """What was closed before the cancel stays completed; ids and indexes are stable, items chain."""
    session = Scenario.live()
    response_id = session.asks()
    events = session.speaks("Let me see.", calls=(F,))
    events += session.speaks("It is")
    events += session.speaks(" half")
    events += session.client(cmd.CancelResponse())

    assert [("message", "completed"), ("function_call", "completed"), ("message", "incomplete")] == outline(
        one(events, wire.ResponseDone).response
    )
    names = [f"item_{response_id}", f"item_{response_id}_1", f"item_{response_id}_2"]
    for kind in (wire.OutputItemAdded, wire.OutputItemDone):
        seen = [event for event in events if isinstance(event, kind)]
        assert list(enumerate(names)) == [(event.output_index, event.item.id) for event in seen]
    chain = [event.previous_item_id for event in events if isinstance(event, wire.ItemAdded)]
    assert [None, *names[:2]] == chain
    assert 1 == types(events).count("response.speak")
    deltas = [event for event in events if isinstance(event, wire.AudioDelta)]
    assert [(0, names[0]), (2, names[2]), (2, names[2])] == [
        (event.output_index, event.item_id) for event in deltas
    ]


def test_the_first_message_speaks_wherever_it_stands() -> None:
    """A response that begins with a call decides to speak later."""
    session = Scenario.live()
    session.asks()
    session.calls("f")

    assert [*OPENED, "response.speak", *SPOKEN] == types(session.speaks("Hello"))


def test_a_turn_ends_without_a_word() -> None:
    """The last unit has nothing to add to the call, and opens no message for it; its tokens count."""
    session = Scenario.live()
    session.asks()
    session.calls("f")

    events = session.speaks("", b"", last=True)
    assert DONE == types(events)
    assert wire.Usage(4, 0, 4) == one(events, wire.ResponseDone).response.usage


def test_listening_after_a_call_cancels_what_is_open_only() -> None:
    """There is no message to close."""
    session = Scenario.live()
    session.asks()
    session.calls("f")
    events = session.listens()

    assert DONE == types(events)
    assert ("cancelled", [("function_call", "completed")]) == (
        one(events, wire.ResponseDone).response.status,
        outline(one(events, wire.ResponseDone).response),
    )


def test_a_cancel_between_items_closes_none() -> None:
    """All that was said is closed already."""
    session = Scenario.live()
    session.asks()
    session.calls("f")

    assert DONE == types(session.client(cmd.CancelResponse()))


def test_calls_wait_for_the_audio_before_them() -> None:
    """A unit's text is rendered later: its message ends with the audio, and then the call comes."""
    session = Scenario.live(config=AUTO)
    session.speaks("One", None)
    assert ["response.output_audio_transcript.delta"] == types(session.speaks(" moment.", None, calls=(F,)))
    assert [] == session.speaks("", b"", calls=(G,), last=True)
    assert (F, G) == (session.state.response and session.state.response.calls)

    assert SPOKEN[:1] == types(session.worker(ev.OutputRendered(0, 0, 0, bytes(480), last=True)))
    events = session.worker(ev.OutputRendered(1, 0, 0, bytes(480), last=True))
    assert [*SPOKEN[:1], *CLOSED, *CALLED, *CALLED, *DONE] == types(events)
    assert wire.Usage(6, 0, 6) == one(events, wire.ResponseDone).response.usage


def test_a_turn_goes_on_after_calls_that_waited() -> None:
    """The next text opens another message."""
    session = Scenario.live(config=AUTO)
    session.speaks("One moment.", None, calls=(F,))

    events = session.worker(ev.OutputRendered(0, 0, 0, bytes(480), last=True))
    assert [*SPOKEN[:1], *CLOSED, *CALLED] == types(events)
    assert () == (session.state.response and session.state.response.calls)
    assert [*OPENED, *SPOKEN] == types(session.speaks("Done."))


def test_calls_that_waited_in_vain_are_not_made() -> None:
    """The response was cancelled before their audio was there."""
    session = Scenario.live(config=AUTO)
    session.speaks("One moment.", None, calls=(F,))
    events = session.client(cmd.CancelResponse())

    assert [*CLOSED, *DONE] == types(events)
    assert [("message", "incomplete")] == outline(one(events, wire.ResponseDone).response)


def test_tokens_of_calls_are_counted() -> None:
    """Once a unit, whether it says something or not."""
    session = Scenario.live()
    session.asks()
    session.speaks("Hello", calls=(F, G))
    session.calls("f", "g")
    events = session.calls("f", last=True)

    assert wire.Usage(6, 0, 6) == one(events, wire.ResponseDone).response.usage


def test_a_muted_unit_calls_nothing() -> None:
    """It was begun before the cancel."""
    session = Scenario.live()
    session.asks()
    late = replace(session.unit_body(ev.Decision.SPEAK), calls=(F,))
    session.client(cmd.CancelResponse())

    assert [] == session.worker(late)
    assert () == session.state.history


# --- text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_session", [True, False])
def test_a_text_answer(by_session: bool) -> None:
    """By the session's modality or the response's own: text parts, no audio event, nothing to play."""
    config = replace(CONFIG, output_modality=Modality.TEXT) if by_session else CONFIG
    session = Scenario.live(config=config)
    response_id = session.asks(**({} if by_session else {"output_modality": Modality.TEXT}))
    assert [*OPENED, "response.output_text.delta"] == types(session.speaks("Hel", b""))
    events = session.speaks("lo", b"", last=True)

    assert ["response.output_text.delta", *TEXT_CLOSED, *DONE] == types(events)
    assert "Hello" == one(events, wire.TextDone).text
    assert wire.PartView(type="text", text="Hello") == one(events, wire.ContentPartDone).part
    assert (("text",), (wire.ContentView(type="output_text", text="Hello"),)) == (
        one(events, wire.ResponseDone).response.output_modalities,
        one(events, wire.ResponseDone).response.output[0].content,
    )
    assert (f"item_{response_id}", "") == (
        session.state.history[0].item_id,
        session.state.playback.response_id,
    )


def test_a_response_may_speak_in_a_text_session() -> None:
    """The override is its own; the next one is text again."""
    session = Scenario.live(config=replace(CONFIG, output_modality=Modality.TEXT))
    session.asks(output_modality=Modality.AUDIO)

    assert [*OPENED, "response.speak", *SPOKEN] == types(session.speaks("Hello"))
    session.speaks(last=True)
    session.asks()
    assert [*OPENED, "response.output_text.delta"] == types(session.speaks("Hello"))


@pytest.mark.parametrize("audio", [None, bytes(480)])
def test_audio_of_a_text_answer_is_dropped(audio: bytes | None) -> None:
    """The client asked for none, and the response waits for none."""
    session = Scenario.live()
    session.asks(output_modality=Modality.TEXT)
    events = session.speaks("Hello", audio, last=True)

    assert [*OPENED, "response.output_text.delta", *TEXT_CLOSED, *DONE] == types(events)
    assert () == session.state.renders


def test_a_cancelled_text_is_told_as_far_as_it_came() -> None:
    """Reading takes no time: what was sent was read."""
    session = Scenario.live()
    session.asks(output_modality=Modality.TEXT)
    session.speaks("Hel", b"")
    events = session.client(cmd.CancelResponse())

    assert [*TEXT_CLOSED, *DONE] == types(events)
    (item,) = session.state.history
    assert (ItemStatus.INCOMPLETE, "Hel") == (item.status, item.parts[0].heard_text)
