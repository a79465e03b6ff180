"""
The client of all conformance tests: sends what a test says, reads strictly, and keeps everything.

It knows the protocol and no server. `wrong` gives what was wrong with what it read; the fixture that makes
recorders asks for it when their test is over, so that each test checks every rule of order beside its own.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlencode

import msgspec
from openai.types.realtime import RealtimeServerEvent
from pydantic import Field, TypeAdapter, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from replay_tools.lint import read, violations
from tests.conformance.vocabulary import SERVER_EVENTS

Event: TypeAlias = dict[str, Any]
"""An event as a client reads it; compared as JSON."""
Way: TypeAlias = Literal["openai", "duplex"]

RATE_HZ = 24_000
PATIENCE_S = 20.0
"""How long any answer may take. Reached only where something is wrong."""
MAX_FRAME_BYTES = 1 << 20
"""Pipecat's limit: no server frame may be larger."""
PIECE_BYTES = 2 * RATE_HZ * 40 // 1000
BETA_HEADER = ("OpenAI-Beta", "realtime=v1")

_strict: TypeAdapter[Any] = TypeAdapter(
    Annotated[get_args(RealtimeServerEvent)[0], Field(discriminator="type")]  # type: ignore[arg-type]
)
"""OpenAI's own types, told apart by `type` as their SDK does it."""
_TIER_3 = {name for name, tier in SERVER_EVENTS.items() if tier == 3}
_FROM_OURS_ALONE = ("has no number", "rate_limits.updated follows")
"""Rules of the contract that OpenAI's protocol does not have."""


@dataclass
class Server:
    """
    Where the server under test is.

    Attributes:
        url: scheme, host and port, without a path.
        more_urls: other gateways of the same deployment, where there are any.
        ours: started by the suite: its model is the performer, and of what it does nothing is left open.
    """

    url: str
    key: str | None = None
    model: str = "loopback"
    more_urls: list[str] = field(default_factory=list)
    ours: bool = False

    @property
    def other_url(self) -> str:
        """Another gateway, or the same one where there is no other."""
        return self.more_urls[0] if self.more_urls else self.url


class Recorder:
    """
    One client of one session, over as many connections as it takes.

    Attributes:
        frames: everything read, in order.
        sent: the types of everything sent.
        created: `session.created`, or the answer to the newest resume.
        token: what the next resume presents.
        seq: number of the newest event read.
        connection: the newest connection.
        family: this one and all its twins.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.way: Way = "openai"
        self.beta = False
        self.frames: list[bytes] = []
        self.sent: list[str] = []
        self.malformed: list[str] = []
        self.created: Event = {}
        self.session_id = ""
        self.token = ""
        self.seq = 0
        self.connection: ClientConnection | None = None
        self.family: list[Recorder] = [self]
        self._ids = itertools.count(1)

    # --- connections ----------------------------------------------------------------------------------------

    async def open(self, *, beta: bool = False, **query: str) -> Event:
        """Open a session OpenAI's way; gives `session.created`."""
        self.way, self.beta = "openai", beta
        await self.connect({"model": self.server.model, **query})
        return self._joined(await self.get("session.created"))

    async def open_duplex(self, **session: Any) -> Event:
        """Open a session the duplex way, PCM16 at 24 kHz unless said otherwise; gives `session.created`."""
        self.way = "duplex"
        await self.connect({"duplex": "1", "autostart": "0"})
        audio = {"format": {"type": "audio/pcm", "rate": RATE_HZ}}
        options = {"model": self.server.model, "audio": {"input": audio, "output": audio}, **session}
        await self.send("session.update", session=options)
        created = self._joined(await self.get("session.created"))
        await self.get("session.updated")
        return created

    async def resume(self, url: str | None = None, token: str | None = None) -> Event:
        """Continue the session on a new connection; gives the answer, good or bad."""
        token = self.token if token is None else token
        if self.way == "openai":
            answer = await self._resume_by_query(url, token)
        else:
            await self.connect({"duplex": "1", "autostart": "0"}, url)
            await self.send(
                "session.resume",
                session_id=self.session_id,
                resume_token=token,
                last_received_server_event_seq=self.seq,
            )
            answer = await self.next()
        return self._joined(answer) if answer["type"].startswith("session.") else answer

    async def _resume_by_query(self, url: str | None, token: str) -> Event:
        query = {"session_id": self.session_id, "resume_token": token}
        await self.connect({**query, "last_received_server_event_seq": str(self.seq)}, url)
        return await self.next()

    def twin(self) -> Recorder:
        """Another client that knows, and has read, what this one has."""
        other = Recorder(self.server)
        other.way, other.beta = self.way, self.beta
        other.frames = list(self.frames)
        other.session_id, other.token, other.seq = self.session_id, self.token, self.seq
        other.family = self.family
        self.family.append(other)
        return other

    async def connect(
        self,
        query: Mapping[str, str],
        url: str | None = None,
        *,
        path: str = "/v1/realtime",
        **options: Any,
    ) -> None:
        """Connect, with the key if there is one."""
        headers = [BETA_HEADER] if self.beta else []
        if self.server.key:
            headers.append(("Authorization", f"Bearer {self.server.key}"))
        settings = {
            "compression": None,
            "max_size": MAX_FRAME_BYTES,
            "max_queue": None,
            "ping_interval": None,
        }
        self.connection = await connect(
            f"{url or self.server.url}{path}?{urlencode(query)}",
            **{**settings, "additional_headers": headers, **options},
        )

    async def drop(self) -> None:
        """Lose the connection without a word."""
        if self.connection is not None:
            self.connection.transport.abort()
            await self.connection.wait_closed()

    def _joined(self, answer: Event) -> Event:
        session = answer.get("session", {})
        self.created = answer
        self.session_id = session.get("id") or self.session_id
        self.token = answer.get("resume_token") or self.token
        return answer

    # --- sending --------------------------------------------------------------------------------------------

    async def send(self, type_: str, **fields: Any) -> None:
        """Send one client event; a connection that is gone swallows it."""
        self.sent.append(type_)
        await self.raw(msgspec.json.encode({"type": type_, **fields}).decode())

    async def raw(self, frame: str | bytes) -> None:
        """Send one frame as it is."""
        assert self.connection is not None
        with suppress(ConnectionClosed):
            await self.connection.send(frame)

    async def append(self, audio: bytes, **fields: Any) -> None:
        """Send audio in one piece."""
        encoded = base64.b64encode(audio).decode()
        await self.send("input_audio_buffer.append", audio=encoded, **fields)

    async def say(self, pcm: bytes) -> None:
        """Send audio as a microphone gives it, without waiting between the pieces."""
        for at in range(0, len(pcm), PIECE_BYTES):
            await self.append(pcm[at : at + PIECE_BYTES])

    async def update(self, **session: Any) -> Event:
        """Change the session; gives the answer, `session.updated` or `error`."""
        kind = {} if self.beta else {"type": "realtime"}
        await self.send("session.update", event_id=self._id("update"), session={**kind, **session})
        return await self.get("session.updated", "error")

    async def listen(self, detection: Event | None) -> Event:
        """Set turn detection; None: off."""
        return await self.update(audio={"input": {"turn_detection": detection}})

    async def write(self, text: str, **item: Any) -> Event:
        """Put a user's text into the conversation; gives the item."""
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content, **item}
        )
        while True:
            done: Event = (await self.get("conversation.item.done"))["item"]
            if done.get("role") == "user":
                return done

    async def ask(self, text: str, **response: Any) -> list[Event]:
        """Put a user's text into the conversation and have it answered; gives the answer's events."""
        await self.write(text)
        first = len(self.frames)
        await self.send("response.create", **({"response": response} if response else {}))
        await self.get("response.done")
        return self.events[first:]

    # --- reading --------------------------------------------------------------------------------------------

    async def next(self) -> Event:
        """
        Read the next event.

        Raises:
            ConnectionClosed: there is none.
            TimeoutError: none came in time.
        """
        assert self.connection is not None
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.connection.recv(decode=False)
        assert isinstance(frame, bytes)
        self.frames.append(frame)
        event: Event = msgspec.json.decode(frame)
        self.seq = event.get("server_event_seq", self.seq)
        self.malformed += self._check_shape(event, frame)
        return event

    async def get(self, *types: str, **match: Any) -> Event:
        """Read up to the next event of one of these types whose fields match, and give it."""
        while True:
            event = await self.next()
            if event["type"] in types and all(event.get(name) == value for name, value in match.items()):
                return event

    async def refusal(self, event_id: str) -> Event:
        """Read up to the error that answers an event; gives its inner object."""
        while True:
            detail: Event = (await self.get("error"))["error"]
            if detail.get("event_id") == event_id:
                return detail

    async def probe(self) -> list[Event]:
        """
        Wait until the server has handled all that was sent; gives what it said meanwhile.

        Asks for an item that does not exist: whoever handles events in order refuses this after all others.
        """
        first, event_id = len(self.frames), self._id("probe")
        await self.send("conversation.item.retrieve", event_id=event_id, item_id="item_of_nobody")
        await self.refusal(event_id)
        return self.events[first:-1]

    async def nothing_for(self, seconds: float) -> None:
        """The server says nothing for a while."""
        assert self.connection is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                raise AssertionError(await self.connection.recv())

    async def rest(self) -> int | None:
        """Read until the server has closed; gives its code."""
        assert self.connection is not None
        with suppress(ConnectionClosed):
            while True:
                await self.next()
        await self.connection.wait_closed()
        return self.connection.close_code

    async def is_alive(self) -> bool:
        """Whether the socket is open and the next event is handled."""
        try:
            await self.probe()
        except ConnectionClosed:
            return False
        return True

    async def close(self) -> None:
        """End the session, or at least the connection."""
        if self.connection is None or self.connection.close_code is not None:
            return
        # Not OpenAI's, but a server that lets sessions be resumed keeps those that only disconnect.
        if self.way == "duplex" or self.numbers_events:
            await self.send("session.close")
            await self.rest()
        else:
            await self.connection.close()

    # --- what was read --------------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """Everything read."""
        return [msgspec.json.decode(frame) for frame in self.frames]

    def of(self, *types: str, response_id: str | None = None) -> list[Event]:
        """Everything read of these types, and of a response."""
        return [
            event
            for event in self.events
            if event["type"] in types and (response_id is None or _response_of(event) == response_id)
        ]

    def audio(self, response_id: str | None = None) -> bytes:
        """The audio of a response, or of all."""
        deltas = self.of("response.output_audio.delta", "response.audio.delta", response_id=response_id)
        return b"".join(base64.b64decode(event["delta"]) for event in deltas)

    @property
    def numbers_events(self) -> bool:
        """Whether the server numbers its events, as the contract has it and OpenAI's servers do not."""
        return any("server_event_seq" in event for event in self.events)

    def wrong(self) -> list[str]:
        """What was wrong with all that was read: shape, order, cardinality."""
        found = list(self.malformed)
        # Beta has other names and fewer events; what decides their order is the same.
        if not self.beta:
            found += violations(map(read, self._of_session()), tier_3=self.way == "duplex")
        if not self.numbers_events:
            found = [what for what in found if not any(rule in what for rule in _FROM_OURS_ALONE)]
        return found

    def _of_session(self) -> list[bytes]:
        """
        What belongs to the session's order. Where events have numbers, those without are for one connection.
        """
        if not self.numbers_events:
            return self.frames
        return [frame for frame in self.frames if frame is self.frames[0] or b'"server_event_seq":' in frame]

    def _check_shape(self, event: Event, frame: bytes) -> list[str]:
        kind = event["type"]
        if not event.get("event_id"):
            return [f"{kind} without event_id"]
        if self.way == "duplex" or self.beta:
            return [] if self.beta or kind in SERVER_EVENTS else [f"{kind} is not in the contract"]
        if kind in _TIER_3:
            return [f"{kind} sent to a stock client"]
        try:
            _strict.validate_json(frame, strict=True)
        except ValidationError as error:
            reasons = {f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()}
            return [f"{kind}: {reason}" for reason in sorted(reasons)]
        return []

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._ids)}"


def _response_of(event: Event) -> str | None:
    response_id: str | None = event.get("response_id") or event.get("response", {}).get("id")
    return response_id
