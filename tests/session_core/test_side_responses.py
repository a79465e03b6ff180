"""Responses outside the conversation: beside the default one, without an item."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Limits, Modality, Way
from session_core.items import Item, ItemType
from session_core.state import EndReason
from tests.session_core.scenario import CONFIG, Scenario, one, types
from tests.session_core.sequences import CALLED, CLOSED, DONE, OPENED, SPOKEN, TEXT_CLOSED

AUTO = replace(CONFIG, auto_response=True)
F = ev.ToolCall("call_f", "f", "{}")
G = ev.ToolCall("call_g", "g", "{}")
SIDE_OPENED = OPENED[2:]
SIDE_CLOSED = CLOSED[:-1]


def piece(response_id: str, text: str = "", audio: bytes = b"", *, last: bool = False) -> ev.SideOutput:
    """More of a response outside the conversation."""
    return ev.SideOutput(response_id, text, audio, tokens=3, last=last)


def test_a_response_outside_the_conversation_leaves_no_trace() -> None:
    """It has all events of a response but those of the conversation, and its output is in its end alone."""
    session = Scenario.live()
    side = session.asks(outside=True, metadata={"k": "v"})
    created = one(session.events, wire.ResponseCreated).response
    assert (None, {"k": "v"}) == (created.conversation_id, created.metadata)

    assert [*SIDE_OPENED, "response.speak", *SPOKEN] == types(session.worker(piece(side, "Hel", bytes(480))))
    assert SPOKEN == types(session.worker(piece(side, "lo", bytes(480))))
    events = session.worker(piece(side, last=True))
    assert [*SIDE_CLOSED, *DONE] == types(events)
    done = one(events, wire.ResponseDone).response
    assert ("completed", None, wire.Usage(9, 0, 9)) == (done.status, done.conversation_id, done.usage)
    assert ("Hello", f"item_{side}") == (one(events, wire.TranscriptDone).transcript, done.output[0].id)
    assert ((), (), "") == (
        session.state.history,
        session.state.side,
        session.state.playback.response_id,
    )


def test_a_text_response_outside_the_conversation() -> None:
    """In one piece; audio that it brings along is dropped."""
    session = Scenario.live()
    side = session.asks(outside=True, output_modality=Modality.TEXT)

    assert [*SIDE_OPENED, "response.output_text.delta", *TEXT_CLOSED[:-1], *DONE] == types(
        session.worker(piece(side, "Hello", bytes(480), last=True))
    )


def test_responses_outside_the_conversation_call_functions() -> None:
    """After what they say, or without a word; no item comes into the conversation."""
    session = Scenario.live()
    first, second = session.asks(outside=True), session.asks(outside=True)
    calls = [name for name in CALLED if not name.startswith("conversation")]

    events = session.worker(ev.SideOutput(first, "Hello", bytes(480), (F, G)))
    assert [*SIDE_OPENED, "response.speak", *SPOKEN, *SIDE_CLOSED, *calls, *calls, *DONE] == types(events)
    done = [event for event in events if isinstance(event, wire.OutputItemDone)]
    assert [0, 1, 2] == [event.output_index for event in done]
    assert 3 == len({event.item.id for event in done})

    events = session.worker(ev.SideOutput(second, calls=(F,), tokens=5))
    assert [*calls, *DONE] == types(events)
    assert wire.Usage(5, 0, 5) == one(events, wire.ResponseDone).response.usage
    assert () == session.state.history


def test_a_response_runs_beside_the_conversation() -> None:
    """Neither the default response nor a bare cancel touches it; a cancel by its id touches nothing else."""
    session = Scenario.live()
    default, first, second = session.asks(), session.asks(outside=True), session.asks(outside=True)
    session.worker(piece(first, "Hel", bytes(480)))
    session.speaks("Hello")

    events = session.client(cmd.CancelResponse(first))
    assert [*SIDE_CLOSED, *DONE] == types(events)
    assert (first, "cancelled", "incomplete") == (
        one(events, wire.ResponseDone).response_id,
        one(events, wire.ResponseDone).response.status,
        one(events, wire.OutputItemDone).item.status,
    )
    assert 0 == session.state.epoch
    events = session.client(cmd.CancelResponse())
    assert default == one(events, wire.ResponseDone).response_id
    assert [second] == [response.response_id for response in session.state.side]
    assert ["error"] == types(session.client(cmd.CancelResponse()))
    assert [] == session.worker(piece(first, "too late", last=True))


def test_a_cancelled_response_outside_says_why() -> None:
    """In the vocabulary of all responses."""
    session = Scenario.live()
    side = session.asks(outside=True)
    details = one(session.client(cmd.CancelResponse(side)), wire.ResponseDone).response.status_details

    assert wire.StatusDetails(type="cancelled", reason="client_cancelled", cause="response_cancel") == details


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "rate_limit_exceeded"), (Way.DUPLEX, "resource_exhausted")]
)
def test_responses_outside_the_conversation_are_limited(way: Way, code: str) -> None:
    """Until one of them is over; the default response is not among them."""
    session = Scenario.live(way, limits=Limits(max_side_responses=1))
    side = session.asks(outside=True)
    session.asks()
    request = cmd.CreateResponse(cmd.ResponseOptions(outside=True), "e1")
    refused = one(session.client(request), wire.ErrorEvent)
    assert (code, "e1") == (refused.error.code, refused.error.event_id)

    session.worker(piece(side, last=True))
    assert ["response.created"] == types(session.client(request))


@pytest.mark.parametrize("broken", [True, False])
def test_responses_outside_the_conversation_end_with_the_session(broken: bool) -> None:
    """The default response first, then each of them, then the session, which says why."""
    session = Scenario.live()
    session.asks()
    sides = [session.asks(outside=True), session.asks(outside=True)]
    session.worker(piece(sides[0], "Hel", bytes(480)))
    events = session.put(b"") if broken else session.client(cmd.CloseSession())

    last = ["error", "session.closed"] if broken else ["session.closed"]
    assert [*DONE, *SIDE_CLOSED, *DONE, *DONE, *last] == types(events)
    reason = EndReason.INTERNAL_ERROR if broken else EndReason.CLOSED
    expected = (
        wire.StatusDetails(type="failed", cause=reason)
        if broken
        else wire.StatusDetails(type="cancelled", reason="client_cancelled", cause=reason)
    )
    done = [event.response for event in events if isinstance(event, wire.ResponseDone)]
    assert [expected] * 3 == [response.status_details for response in done]


def test_output_of_an_unknown_response_changes_nothing() -> None:
    """Also of the default one, which gives units."""
    session = Scenario.live()
    response_id = session.asks()

    assert [] == session.worker(piece("resp_z", "Hello"))
    assert [] == session.worker(piece(response_id, "Hello"))


def test_a_response_outside_takes_items_of_the_history_by_reference() -> None:
    """As they are when it is asked for; a reference to nothing is refused."""
    session = Scenario.live()
    session.writes("Hello", "a")
    reference, own = Item("a", ItemType.REFERENCE), Item("b")
    session.asks(outside=True, input=(reference, own))
    session.client(cmd.DeleteItem("a"))

    (side,) = session.state.side
    assert ["message", "message"] == [item.item_type for item in side.options.input or ()]
    assert "Hello" == (side.options.input or ())[0].parts[0].text
    events = session.client(cmd.CreateResponse(cmd.ResponseOptions(outside=True, input=(reference,))))
    assert ("item_not_found", "response.input") == (
        one(events, wire.ErrorEvent).error.code,
        one(events, wire.ErrorEvent).error.param,
    )
