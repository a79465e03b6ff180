"""The contract over real sockets: text, tools, truncation, side responses, interruptions."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from api.metrics import exposition
from session_core import events as ev
from session_core.config import Modality
from session_core.items import ItemType
from session_core.state import State
from tests.api.conftest import Client, Event, Site, Worker, World, fast, until

_STRICT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
_BETA = {"OpenAI-Beta": "realtime=v1"}


async def opened(world: World, target: str = "/v1/realtime", **options: Any) -> tuple[Client, Worker, str]:
    """A client OpenAI's way, of a model that can do everything."""
    worker = await world.worker(supports_text=True, supports_tools=True)
    client = await (await world.site()).client(target, **options)
    return client, worker, (await client.next())["session"]["id"]


async def duplex(site: Site) -> tuple[Client, str]:
    """A client the duplex way that hears what happens and does not make the model speak."""
    client = await site.duplex()
    await client.send("session.update", session={"model": "loopback"})
    session_id = (await client.get("session.created"))["session"]["id"]
    await client.get("session.updated")
    return client, session_id


def unit(
    state: State, *, text: str = "", audio: bytes = b"", end: bool = True, **more: Any
) -> ev.ModelUnitCompleted:
    """The next unit, in answer to what was asked."""
    assert state.response is not None
    return ev.ModelUnitCompleted(
        unit=state.clock.next_unit,
        epoch=state.epoch,
        first_sample=0,
        input_samples=0,
        silence_samples=1_920,
        decision=ev.Decision.TURN_END if end else ev.Decision.SPEAK,
        text=text,
        audio=audio,
        answers=state.response.response_id,
        **more,
    )


def types(events: list[Event]) -> list[str]:
    """The names of these events."""
    return [event["type"] for event in events]


def strict(events: list[Event]) -> None:
    """Judge each event by OpenAI's own types."""
    for event in events:
        _STRICT.validate_python(event, strict=True)


def message(text: str, item_id: str | None = None) -> dict[str, Any]:
    """An item that a user wrote."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return item if item_id is None else {**item, "id": item_id}


async def test_text_conversation(world: World) -> None:
    """A text item and a response in text give OpenAI's text events, in order, and no audio."""
    client, worker, session_id = await opened(world)
    await client.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
    await client.send("conversation.item.create", item=message("hello", "mine"), previous_item_id="root")
    await client.send("response.create", response={"instructions": "Be brief.", "metadata": {"k": "v"}})
    state = await worker.asked(session_id)
    assert state.response is not None
    assert (Modality.TEXT, "Be brief.") == (state.response.modality, state.response.options.instructions)
    await worker.write(session_id, state, unit(state, text="good day"))
    events = await client.until("rate_limits.updated")
    strict(events)
    assert [
        "session.updated",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "conversation.item.added",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ] == types(events)
    assert ("mine", None) == (events[1]["item"]["id"], events[1]["previous_item_id"])
    assert ("good day", {"k": "v"}) == (events[8]["text"], events[12]["response"]["metadata"])


async def test_beta_text(world: World) -> None:
    """A beta client gets text under beta's names."""
    client, worker, session_id = await opened(world, additional_headers=_BETA)
    await client.send("response.create", response={"modalities": ["text"]})
    state = await worker.asked(session_id)
    await worker.write(session_id, state, unit(state, text="a"))
    events = await client.until("response.done")
    assert ["response.text.delta", "response.text.done"] == [
        kind for kind in types(events) if ".text." in kind
    ]
    assert ["text"] == events[-1]["response"]["modalities"]


async def test_beta_transcription_update(world: World) -> None:
    """Beta's update of the input alone merges into the session."""
    client, _, _ = await opened(world, additional_headers=_BETA)
    session = {"input_audio_transcription": {"model": "whisper-1"}, "turn_detection": None}
    await client.send("transcription_session.update", session=session)
    updated = (await client.get("session.updated"))["session"]
    assert ({"model": "whisper-1"}, None) == (
        updated["input_audio_transcription"],
        updated["turn_detection"],
    )


async def test_tool_call(world: World) -> None:
    """A call is told as OpenAI tells it, and its output starts the next response's context."""
    client, worker, session_id = await opened(world)
    tools = [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}]
    await client.send(
        "session.update", session={"type": "realtime", "tools": tools, "tool_choice": "required"}
    )
    await client.send("response.create")
    state = await worker.asked(session_id)
    assert ("f", "required") == (state.config.tools[0].name, state.config.tool_choice)
    await worker.write(session_id, state, unit(state, calls=(ev.ToolCall("call_1", "f", '{"a":1}'),)))
    events = await client.until("rate_limits.updated")
    strict(events)
    assert [
        "session.updated",
        "response.created",
        "conversation.item.added",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ] == types(events)
    item = events[6]["item"]
    assert ("completed", "call_1", "f", '{"a":1}') == (
        item["status"],
        item["call_id"],
        item["name"],
        item["arguments"],
    )
    output = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    await client.send("conversation.item.create", item=output)
    added = await client.get("conversation.item.added")
    strict([added])
    assert ("42", item["id"]) == (added["item"]["output"], added["previous_item_id"])
    stray = {**output, "call_id": "call_2"}
    await client.send("conversation.item.create", item=stray, event_id="e")
    error = (await client.get("error"))["error"]
    assert ("invalid_value", "item.call_id", "e") == (error["code"], error["param"], error["event_id"])


async def test_truncate_retrieve_delete(world: World) -> None:
    """History is cut, shown and deleted as OpenAI's is; what cannot be done has OpenAI's codes."""
    client, worker, session_id = await opened(world)
    await client.send("response.create")
    await worker.speak(session_id, 2)
    item_id = (await client.get("response.done"))["response"]["output"][0]["id"]
    await client.get("rate_limits.updated")
    await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=40)
    truncated = await client.next()
    assert ("conversation.item.truncated", 40) == (truncated["type"], truncated["audio_end_ms"])
    await client.send("conversation.item.retrieve", item_id=item_id)
    retrieved = await client.next()
    strict([truncated, retrieved])
    assert ("conversation.item.retrieved", "a") == (
        retrieved["type"],
        retrieved["item"]["content"][0]["transcript"],
    )
    mistakes: list[tuple[str, dict[str, Any], str, str]] = [
        (
            "truncate",
            {"item_id": item_id, "content_index": 0, "audio_end_ms": 161},
            "invalid_value",
            "audio_end_ms",
        ),
        (
            "truncate",
            {"item_id": item_id, "content_index": 7, "audio_end_ms": 1},
            "unsupported_content_type",
            "content_index",
        ),
        (
            "truncate",
            {"item_id": "x", "content_index": 0, "audio_end_ms": 1},
            "item_truncate_invalid_item_id",
            "item_id",
        ),
        ("truncate", {"item_id": item_id, "audio_end_ms": 1}, "missing_required_parameter", "content_index"),
        ("retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id", "item_id"),
        ("delete", {"item_id": "x"}, "item_delete_invalid_item_id", "item_id"),
    ]
    for verb, fields, code, param in mistakes:
        await client.send(f"conversation.item.{verb}", **fields, event_id=f"rci_{verb}")
        answer = await client.next()
        strict([answer])
        error = answer["error"]
        assert (code, param, f"rci_{verb}") == (error["code"], error["param"], error["event_id"])
    await client.send("conversation.item.delete", item_id=item_id)
    deleted = await client.next()
    strict([deleted])
    assert ("conversation.item.deleted", item_id) == (deleted["type"], deleted["item_id"])


async def test_response_outside_the_conversation(world: World) -> None:
    """`conversation: "none"` answers its own input, references included, beside the conversation."""
    client, worker, session_id = await opened(world)
    # In one breath: the reference is to what stands before it in the journal, seen by the client or not.
    await client.send("conversation.item.create", item=message("said", "mine"))
    wanted = {
        "conversation": "none",
        "output_modalities": ["text"],
        "input": [{"type": "item_reference", "id": "mine"}, message("sum it up")],
    }
    await client.send("response.create", response=wanted)
    state = await worker.state(session_id, lambda state: bool(state.side))
    side = state.side[0]
    assert side.options.input is not None
    assert [(ItemType.MESSAGE, "said"), (ItemType.MESSAGE, "sum it up")] == [
        (item.item_type, item.parts[0].text) for item in side.options.input
    ]
    await worker.write(session_id, state, ev.SideOutput(side.response_id, text="short", last=True))
    events = await client.until("response.done")
    strict(events)
    assert ["conversation.item.added", "conversation.item.done", "response.created"] == types(events[:3])
    assert not [kind for kind in types(events[3:]) if kind.startswith("conversation.")]
    assert (None, "short") == (
        events[-1]["response"]["conversation_id"],
        events[-1]["response"]["output"][0]["content"][0]["text"],
    )
    gone = {"input": [{"type": "item_reference", "id": "nobody"}]}
    await client.send("response.create", response=gone, event_id="e")
    error = (await client.get("error"))["error"]
    assert ("invalid_value", "response.input", "e") == (error["code"], error["param"], error["event_id"])


async def test_interruptions(world: World) -> None:
    """A barge-in, a signal that means one, and a cleared output each end the response and say so."""
    worker, site = await world.worker(), await world.site()
    client, session_id = await duplex(site)
    events: list[Event] = []
    for epoch, (kind, fields) in enumerate(
        [("barge_in", {}), ("turn.signal", {"event": "barge_in"}), ("output_audio_buffer.clear", {})]
    ):
        await client.send("response.create")
        state = await worker.asked(session_id, epoch)
        await worker.write(session_id, state, unit(state, text="a", audio=bytes(3_840), end=False))
        await client.get("response.output_audio.delta")
        await client.send(kind, **fields)
        events += await client.until("response.done")
        assert "cancelled" == events[-1]["response"]["status"]
    cleared = await client.get("output_audio_buffer.cleared")
    assert events[-1]["response_id"] == cleared["response_id"]
    await client.send("turn.signal", event="user_started")
    assert "user_started" == (await client.get("turn.event"))["event"]
    await client.send("input.text.append", text="a", event_id="e")
    error = (await client.get("error"))["error"]
    assert ("native_text_append_unsupported", "e") == (error["code"], error["event_id"])


async def test_frame_too_large_closes_its_socket(world: World) -> None:
    """An event that no client could take ends its connection with a code instead of being sent."""
    worker = await world.worker()
    site = await world.site(fast(max_server_frame_bytes=10_000))
    client, session_id = await duplex(site)
    await client.send("response.create")
    await worker.speak(session_id, 1, bytes(10_000))
    error = (await client.get("error"))["error"]
    assert ("event_too_large", "server_error") == (error["code"], error["type"])
    assert 1011 == await client.closed()
    await worker.detached(session_id)


async def test_metrics(world: World) -> None:
    """A gateway's gauges and counters can be scraped as text."""
    await world.worker()
    site = await world.site()
    client, _ = await duplex(site)
    await client.raw("{")
    await client.get("error")
    samples = dict(
        line.rsplit(" ", 1) for line in exposition(site.gateway).splitlines() if not line.startswith("#")
    )
    expected = {
        "sockets": "1",
        "attached_sessions": "1",
        "followers": "1",
        "lagging_clients": "0",
        "opened_total": "1",
        "resumes_total": "0",
        "takeovers_total": "0",
        "refused_messages_total": "1",
        "evictions_total": "0",
        "failovers_total": "0",
    }
    assert expected == {name: samples[f"duplex_gateway_{name}"] for name in expected}
    await client.connection.close()
    await until(lambda: site.gateway.stats.websockets == 0)
    assert 0 == site.gateway.stats.followers


TWICE = message("hello", "twice")
REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", "input_audio_buffer_empty"),
    ("response.cancel", {}, "response_cancel_not_active", "response_not_active"),
    ("turn.signal", {"event": "response.cancel"}, "response_cancel_not_active", "response_not_active"),
    ("output_audio_buffer.clear", {}, "invalid_value", "response_not_active"),
    ("input.text.append", {"text": "a"}, "invalid_value", "native_text_append_unsupported"),
    ("barge_in", {}, "invalid_value", "barge_in_unsupported"),
    (
        "conversation.item.create",
        {"item": TWICE},
        *("item_create_duplicate_item_id", "item_create_duplicate_item_id"),
    ),
    (
        "conversation.item.create",
        {"item": message("a"), "previous_item_id": "x"},
        *("invalid_value", "item_not_found"),
    ),
    (
        "conversation.item.create",
        {"item": {"type": "function_call_output", "call_id": "x", "output": ""}},
        *("invalid_value", "invalid_function_call_output"),
    ),
    ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id", "item_not_found"),
    ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id", "item_not_found"),
    (
        "conversation.item.truncate",
        {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
        *("item_truncate_invalid_item_id", "item_not_found"),
    ),
    (
        "conversation.item.truncate",
        {"item_id": "twice", "content_index": 0, "audio_end_ms": 0},
        *("unsupported_content_type", "unsupported_content_type"),
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "x"}]}},
        *("invalid_value", "item_not_found"),
    ),
    (
        "response.create",
        {"response": {"output_modalities": ["text"]}},
        *("invalid_value", "text_only_turn_unsupported"),
    ),
    ("session.resume", {"session_id": "s", "resume_token": "t"}, "invalid_value", "bad_event"),
]


@pytest.mark.parametrize("way", ["openai", "duplex"])
async def test_refusals_by_way(world: World, way: str) -> None:
    """What makes no sense is refused with the code that the way's clients know, and the event id."""
    await world.worker(supports_barge_in=False)
    site = await world.site()
    client = (await duplex(site))[0] if way == "duplex" else await site.client()
    await client.send("conversation.item.create", item=TWICE)
    await client.get("conversation.item.done")
    for kind, fields, openai, omni in REFUSALS:
        await client.send(kind, **fields, event_id="mine")
        event = await client.next()
        if way == "openai":
            strict([event])
        error = event["error"]
        assert (openai if way == "openai" else omni, "mine") == (error["code"], error["event_id"]), kind
    await client.send("response.create")
    await client.get("response.created")
    await client.send("response.create")
    active = (await client.get("error"))["error"]
    expected = "conversation_already_has_active_response" if way == "openai" else "response_already_active"
    assert expected == active["code"]
