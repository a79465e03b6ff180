from __future__ import annotations

import asyncio
import json

import pybase64
from websockets.asyncio.server import ServerConnection

from duplex.client import Opening
from duplex.talk import Talk, report
from tests.duplex.test_client import greet, receive, send, server

RATE_HZ = 24_000
SOUND = b"\x00\x10" * (RATE_HZ * 160 // 1000)
PIECE = bytes(RATE_HZ * 80 // 1000 * 2)


async def until_close(socket: ServerConnection) -> list[dict[str, str | int]]:
    """Everything that the client sends until it closes the session."""
    received: list[dict[str, str | int]] = []
    while True:
        event = await receive(socket)
        if event["type"] == "session.close":
            await send(socket, "session.closed", server_event_seq=99)
            return received
        received.append(event)


async def test_a_reply_is_played_and_acknowledged() -> None:
    """The reply's audio comes back, its transcript too, and the last ack covers all of it."""
    heard: list[dict[str, str | int]] = []

    async def handler(socket: ServerConnection, number: int) -> None:
        await greet(socket)
        # The sound is two frames long; the reply comes after it.
        heard.extend([await receive(socket) for _ in range(3)])
        await send(socket, "response.created", server_event_seq=1, response={"id": "resp_1"})
        await send(socket, "response.speak", server_event_seq=2, response_id="resp_1")
        for seq in (3, 4, 5):
            delta = pybase64.b64encode(PIECE).decode()
            await send(socket, "response.output_audio.delta", server_event_seq=seq, delta=delta)
        await send(socket, "response.output_audio_transcript.delta", server_event_seq=6, delta="hello")
        done = {"id": "resp_1", "status": "completed"}
        await send(socket, "response.done", server_event_seq=7, response=done)
        heard.extend(await until_close(socket))

    async with server(handler) as url, asyncio.timeout(20):
        reply = await Talk(Opening(urls=(url,)), SOUND).run()

    result = reply.result
    acks = [event for event in heard if event["type"] == "playback.ack"]
    assert 3 * PIECE == reply.audio
    assert (160, 240, 240, "hello") == (result.input_ms, result.reply_ms, result.played_ms, result.transcript)
    assert ("resp_1", 240) == (acks[-1]["response_id"], acks[-1]["played_ms"])
    notes = [moment.what for moment in result.timeline]
    assert ["model decides: speak", "first audio", "response completed"] == [
        note for note in notes if note.startswith(("model", "first", "response c"))
    ]


async def test_no_reply_ends_with_patience() -> None:
    """A model that only listens is not waited for for ever, and the result says so."""

    async def handler(socket: ServerConnection, number: int) -> None:
        await greet(socket)
        await send(socket, "response.listen", server_event_seq=1)
        await until_close(socket)

    async with server(handler) as url, asyncio.timeout(20):
        reply = await Talk(Opening(urls=(url,)), SOUND, patience_s=0.1).run()

    assert (b"", None) == (reply.audio, reply.result.first_audio_latency_ms)
    assert "no reply" == report(reply.result)[-1]


async def test_openais_way_commits_after_the_sound() -> None:
    """
    On OpenAI's way nothing answers by itself: the sound is followed by a commit and a request for a response.
    """
    kinds: list[str] = []

    async def handler(socket: ServerConnection, number: int) -> None:
        await send(socket, "session.created", session={"id": "sess_1"})
        async for message in socket:
            kind = json.loads(message)["type"]
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
            if kind == "response.create":
                delta = pybase64.b64encode(PIECE).decode()
                await send(socket, "response.output_audio.delta", server_event_seq=3, delta=delta)
                done = {"id": "resp_1", "status": "completed"}
                await send(socket, "response.done", server_event_seq=9, response=done)

    async with server(handler) as url, asyncio.timeout(20):
        reply = await Talk(Opening(urls=(url,), way="openai"), SOUND).run()

    assert PIECE == reply.audio
    begin = ["session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "response.create"]
    assert begin == kinds[:4]
