"""A bare client on the wire: sends what a test says, keeps every frame, and can be cut off at any moment."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duplex.wav import read_wav
from tests.integration.stack import PATIENCE_S

Event: TypeAlias = dict[str, Any]
"""An event as the client reads it. Compared whole, so it stays JSON."""

RATE_HZ = 24_000
SPEECH = Path(__file__).parents[1] / "data" / "speech"
SHORT, LONG = "cards_001.wav", "austen_0880.wav"
_LAST = ("session.closed", "session.expired")


@cache
def spoken(clip: str, silence_ms: int = 900) -> bytes:
    """A clip as PCM16 at 24 kHz, and silence after it: enough for the model to hear that the user is done."""
    return read_wav(SPEECH / clip, RATE_HZ) + bytes(2 * RATE_HZ * silence_ms // 1000)


def pieces(pcm: bytes, piece_ms: int = 40) -> list[bytes]:
    """Audio as a microphone gives it."""
    size = 2 * RATE_HZ * piece_ms // 1000
    return [pcm[at : at + size] for at in range(0, len(pcm), size)]


def audio_of(events: Iterable[Event], response_id: str | None = None) -> bytes:
    """The audio in events: of a response, or of all."""
    return b"".join(
        base64.b64decode(event["delta"])
        for event in events
        if event["type"] == "response.output_audio.delta" and response_id in (None, event["response_id"])
    )


class Caller:
    """
    One client of one session, over as many connections as it takes.

    Attributes:
        frames: everything read, in order, over all connections.
        session_id: set by `open`.
        token: what the next resume presents.
        seq: number of the newest event read.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.session_id = ""
        self.token = ""
        self.seq = 0
        self.connection: ClientConnection | None = None
        self._turns = 0

    # --- connections ----------------------------------------------------------------------------------------

    async def open(self, url: str, *, model: str = "loopback", **session: Any) -> Event:
        """Open a session the duplex way, PCM16 at 24 kHz in and out; gives `session.created`."""
        await self._connect(url)
        audio = {"format": {"type": "audio/pcm", "rate": RATE_HZ}}
        options = {
            "type": "realtime",
            "model": model,
            "audio": {"input": audio, "output": audio},
            "extra_body": {"auto_response": True},
            **session,
        }
        await self.send("session.update", session=options)
        created = await self.next()
        assert "session.created" == created["type"], created
        self.session_id, self.token = created["session"]["id"], created["resume_token"]
        return created

    async def resume(self, url: str) -> Event:
        """Go on with the session on a new connection; gives the answer, good or bad."""
        await self.ask_to_resume(url)
        answer = await self.next()
        if answer["type"] == "session.resumed":
            self.token = answer["resume_token"]
        return answer

    async def ask_to_resume(self, url: str) -> None:
        """The same without reading the answer."""
        await self._connect(url)
        await self.send(
            "session.resume",
            session_id=self.session_id,
            resume_token=self.token,
            last_received_server_event_seq=self.seq,
        )

    def twin(self) -> Caller:
        """Another client that knows what this one knows."""
        other = Caller()
        other.session_id, other.token, other.seq = self.session_id, self.token, self.seq
        return other

    async def drop(self) -> None:
        """Lose the connection without a word, as on a train."""
        assert self.connection is not None
        self.connection.transport.abort()
        await self.connection.wait_closed()

    async def _connect(self, url: str) -> None:
        self.connection = await connect(
            f"{url}/v1/realtime?duplex=1&autostart=0",
            compression=None,
            max_size=1 << 20,
            max_queue=None,  # A test that does not read for a while is no slow client.
            ping_interval=None,
        )

    # --- sending --------------------------------------------------------------------------------------------

    async def send(self, type_: str, **fields: Any) -> None:
        """Send one client event; a connection that is gone swallows it."""
        await self.raw(msgspec.json.encode({"type": type_, **fields}).decode())

    async def raw(self, frame: str | bytes) -> None:
        """Send one frame as it is."""
        assert self.connection is not None
        with suppress(ConnectionClosed):
            await self.connection.send(frame)

    async def append(self, audio: bytes, **fields: Any) -> None:
        """Send audio."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(audio).decode(), **fields)

    # --- reading --------------------------------------------------------------------------------------------

    async def next(self) -> Event:
        """
        Read the next event.

        Raises:
            ConnectionClosed: there is none.
        """
        assert self.connection is not None
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.connection.recv(decode=False)
        assert isinstance(frame, bytes)
        self.frames.append(frame)
        event: Event = msgspec.json.decode(frame)
        self.seq = event.get("server_event_seq", self.seq)
        return event

    async def get(self, type_: str) -> Event:
        """Read up to the next event of a type and give that."""
        while (event := await self.next())["type"] != type_:
            pass
        return event

    async def rest(self) -> int | None:
        """Read until the server has closed; gives its code."""
        assert self.connection is not None
        with suppress(ConnectionClosed):
            while True:
                await self.next()
        await self.connection.wait_closed()
        return self.connection.close_code

    async def turn(self) -> bytes:
        """Read to the end of the next response, if it did not come already; gives its audio."""
        self._turns += 1
        while (
            len(done := [e["response_id"] for e in self.numbered if e["type"] == "response.done"])
            < self._turns
        ):
            await self.next()
        return self.audio(done[self._turns - 1])

    async def close(self) -> None:
        """End the session and read its last events."""
        await self.send("session.close")
        assert 1000 == await self.rest()
        assert self.events[-1]["type"] in _LAST

    # --- what was read --------------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """Everything read."""
        return [msgspec.json.decode(frame) for frame in self.frames]

    @property
    def numbered(self) -> list[Event]:
        """The session's events, as opposed to those of one connection."""
        return [event for event in self.events if "server_event_seq" in event]

    def audio(self, response_id: str | None = None) -> bytes:
        """The audio of a response, or of all."""
        return audio_of(self.numbered, response_id)
