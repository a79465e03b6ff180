"""What no client should send: each gets its error, the socket lives, and the journal holds nothing of it."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from tests.integration.caller import SHORT, Caller, Event, spoken
from tests.integration.record import check_reply, check_session
from tests.integration.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

APPEND = "input_audio_buffer.append"


def text(type_: str, **fields: Any) -> str:
    """A client event with an id."""
    return msgspec.json.encode({"type": type_, "event_id": "mine", **fields}).decode()


BAD: dict[str, tuple[str | bytes, str, str | None]] = {
    "half a JSON object": ('{"type": "input_audio', "invalid_json", None),
    "no JSON at all": ("hello", "invalid_json", None),
    "nothing": ("", "invalid_json", None),
    "half a surrogate pair": ('{"type": "\\ud800"}', "invalid_json", None),
    "deep nesting": ('{"type": "close", "x": ' + "[" * 100_000, "invalid_json", None),
    "many arrays": ("[" * 100_000, "bad_event", None),
    "an array": ("[1, 2]", "bad_event", None),
    "a number": ("1e999", "bad_event", None),
    "no type": ('{"event_id": "mine"}', "bad_event", "type"),
    "a type that is a number": ('{"type": 5}', "bad_event", "type"),
    "an unknown type": (text("response.explode"), "unknown_event", "type"),
    "a server event": (text("response.done"), "unknown_event", "type"),
    "a binary frame": (b"\x00\x01\x02", "bad_event", None),
    "audio missing": (text(APPEND), "bad_audio", "audio"),
    "audio empty": (text(APPEND, audio=""), "bad_audio", "audio"),
    "audio a number": (text(APPEND, audio=17), "bad_audio", "audio"),
    "audio null": (text(APPEND, audio=None), "bad_audio", "audio"),
    "audio no base64": (text(APPEND, audio="!!!"), "bad_audio", "audio"),
    "audio with garbage inside": (text(APPEND, audio="AAAA\nAA*="), "bad_audio", "audio"),
    "audio without padding": (text(APPEND, audio="AAAAAAA"), "bad_audio", "audio"),
    "audio in the other alphabet": (text(APPEND, audio="_-8A"), "bad_audio", "audio"),
    "audio of three bytes": (text(APPEND, audio="AAAA"), "bad_audio", "audio"),
    "a format that is not the session's": (
        text(APPEND, audio="AAA=", format="g711_ulaw"),
        "unsupported_audio_format",
        "format",
    ),
    "a truncate of nothing": (text("conversation.item.truncate"), "missing_item_id", "item_id"),
    "milliseconds as text": (text("playback.ack", played_ms="ten"), "bad_event", "played_ms"),
    "negative milliseconds": (text("playback.ack", played_ms=-1), "bad_event", "played_ms"),
    "an endless number": (text("playback.ack", played_ms=2**70), "bad_event", "played_ms"),
    "an update that is a list": (text("session.update", session=[]), "bad_event", "session"),
    "a rate that does not exist": (
        text(
            "session.update", session={"audio": {"input": {"format": {"type": "audio/pcm", "rate": 11025}}}}
        ),
        "",
        None,
    ),
    "a model that does not exist": (text("session.update", session={"model": "gpt-9"}), "", None),
    "a cancel of nothing": (text("response.cancel"), "response_not_active", None),
    "a commit of nothing": (text("input_audio_buffer.commit"), "input_audio_buffer_empty", None),
    "a resume inside a session": (
        text("session.resume", session_id="s", resume_token="t", last_received_server_event_seq=0),
        "bad_event",
        "type",
    ),
}


async def test_every_bad_frame_is_answered(stack: Stack) -> None:
    """One typed error each, with the client's own event id where it can be read, and then a turn as ever."""
    caller = Caller()
    await caller.open(stack.url())
    answers: dict[str, Event] = {}
    for name, (frame, _, _) in BAD.items():
        await caller.raw(frame)
        answers[name] = await caller.get("error")
    await caller.append(spoken(SHORT))
    reply = await caller.turn()
    await caller.close()

    wrong = {
        name: answers[name]["error"]
        for name, (frame, code, param) in BAD.items()
        if (code and answers[name]["error"]["code"] != code)
        or (param and answers[name]["error"]["param"] != param)
        or (isinstance(frame, str) and '"mine"' in frame and answers[name]["error"]["event_id"] != "mine")
        or answers[name]["error"]["type"] != "invalid_request_error"
    }
    assert {} == wrong, wrong
    check_reply(reply, spoken(SHORT))
    found = await check_session(stack, caller)
    assert spoken(SHORT) == found.input


async def test_an_endless_frame_costs_its_own_socket(stack: Stack) -> None:
    """Above the limit: 1009, for that connection alone; its session resumes, its neighbour hears no gap."""
    neighbour, caller = Caller(), Caller()
    await neighbour.open(stack.url())
    await caller.open(stack.url())
    await neighbour.append(spoken(SHORT))
    too_long = text(APPEND, audio=base64.b64encode(bytes(17 << 20)).decode())
    _, reply = await asyncio.gather(caller.raw(too_long), neighbour.turn())
    code = await caller.rest()
    resumed = await caller.resume(stack.url())
    await caller.append(spoken(SHORT))
    own = await caller.turn()
    await caller.close()
    await neighbour.close()

    assert 1009 == code
    assert "session.resumed" == resumed["type"]
    check_reply(reply, spoken(SHORT))
    check_reply(own, spoken(SHORT))
    await check_session(stack, neighbour)
    await check_session(stack, caller)


async def test_the_longest_frame_is_taken(stack: Stack) -> None:
    """An append of exactly 15 MiB is audio like any other; the next byte is refused."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(bytes((15 << 20) + 2))
    refused = await caller.get("error")
    await caller.append(bytes(15 << 20))
    await stack.state_when(caller.session_id, lambda state: state.input.received_bytes == 15 << 20)
    await caller.close()

    assert "event_too_large" == refused["error"]["code"]
    found = await check_session(stack, caller)
    assert bytes(15 << 20) == found.input


@pytest.mark.parametrize("token", ["", "wrong", "\u00fc" * 50], ids=["empty", "wrong", "not ASCII"])
async def test_a_wrong_token(stack: Stack, token: str) -> None:
    """Whoever has no token gets an error and a close, and the session does not notice."""
    caller = Caller()
    await caller.open(stack.url())
    stranger = caller.twin()
    stranger.token = token
    refused = await stranger.resume(stack.url(1))
    closed = await stranger.rest()
    await caller.append(spoken(SHORT))
    reply = await caller.turn()
    await caller.close()

    assert "invalid_resume_token" == refused["error"]["code"]
    assert 1008 == closed
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_a_token_that_is_too_long(stack: Stack) -> None:
    """It is a bad message like any other: the connection waits for a better one."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.drop()
    stranger = caller.twin()
    stranger.token = "x" * 100_000
    refused = await stranger.resume(stack.url(1))
    await stranger.send(
        "session.resume",
        session_id=caller.session_id,
        resume_token=caller.token,
        last_received_server_event_seq=0,
    )
    resumed = await stranger.next()
    await stranger.close()

    assert "invalid_session_resume" == refused["error"]["code"]
    assert "session.resumed" == resumed["type"]


@pytest.mark.parametrize(
    "session_id",
    ["", "sess_00_AAAAAAAAAAAAAAAAAAAAAA", "sess_99_AAAAAAAAAAAAAAAAAAAAAA", "*", "{s1}:journal"],
)
async def test_a_session_that_is_not(stack: Stack, session_id: str) -> None:
    """A session id of nobody's is answered as an expired session is; it is no way into the store."""
    stranger = Caller()
    stranger.session_id, stranger.token = session_id, "t"
    refused = await stranger.resume(stack.url())

    assert "session_resume_expired" == refused["error"]["code"]
    assert 1008 == await stranger.rest()
    assert session_id not in await stack.store.sessions()


async def test_bad_first_messages(stack: Stack) -> None:
    """Before there is a session every bad message gets its error, and a good one still opens it."""
    async with connect(
        f"{stack.url()}/v1/realtime?duplex=1&autostart=0&model=loopback", compression=None
    ) as raw:
        answers: list[Event] = []
        for frame in ("{", b"\x00", text("nonsense"), text("session.update", session=5)):
            await raw.send(frame)
            answers.append(msgspec.json.decode(await raw.recv()))
        await raw.send(text("session.update", session={"model": "loopback"}))
        created = msgspec.json.decode(await raw.recv())
        await raw.send(text("session.close"))
        async for _ in raw:
            pass

    codes = [answer["error"]["code"] for answer in answers]
    assert ["invalid_json", "bad_event", "unknown_event", "bad_event"] == codes
    assert all("server_event_seq" not in answer for answer in answers)
    assert "session.created" == created["type"]
