"""
A client of the service: one session over WebSocket connections that may break.

On the duplex way a broken connection is made again, through any of the given gateways, and the session goes
on: every event once, in order, and no input lost or doubled. OpenAI's way has no receipts, so there a break
ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Literal, Self
from urllib.parse import quote

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from . import messages as msg
from .errors import ConnectionLost, SessionRefused
from .outbox import Outbox

FINAL_CODES = frozenset(
    {
        "invalid_session_resume",
        "session_resume_expired",
        "unsupported_session_resume",
        "invalid_resume_token",
        "session_resume_conflict",
    }
)
"""Answers to a resume after which trying again is of no use."""
LAST_EVENTS = frozenset({"session.closed", "session.expired", "session.replaced"})


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What to connect to, and how."""

    urls: tuple[str, ...] = ("ws://127.0.0.1:8000",)
    """Gateways; a resume goes through the next one."""
    model: str = "loopback"
    way: Literal["duplex", "openai"] = "duplex"
    rate_hz: int = 24_000
    """Of input and output, PCM16."""
    auto_response: bool = True
    """Duplex way: the model may speak unasked."""
    api_key: str | None = None
    open_timeout_s: float = 10.0
    resume_timeout_s: float = 30.0
    """How long a broken connection may take to be made again."""
    retry_s: float = 0.2


class SessionClient:
    """
    One session; an async context manager that opens it, and leaves the connection at the end.

    `close` ends the session. One task reads `events`; any may send. Audio that is appended while the
    connection is broken waits in the outbox.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.session_id = ""
        self.last_seq = 0
        """Newest outbound event received."""
        self.resumes = 0
        self.missed = 0
        """Numbers that never came; always 0 on the duplex way, unless the server is wrong."""
        self._token: str | None = None
        self._outbox = Outbox()
        self._socket: ClientConnection | None = None
        self._sending = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._greeting: list[msg.ServerEvent] = []

    async def __aenter__(self) -> Self:
        """
        Connect and open the session.

        Raises:
            SessionRefused: the server answered with an error.
            ConnectionLost: nobody answered.
        """
        opening = self.opening
        try:
            async with asyncio.timeout(opening.open_timeout_s):
                self._socket = await self._connect(opening.urls[0])
                await self._open(self._socket)
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ConnectionClosed) as error:
            await self._stack.aclose()
            raise ConnectionLost(str(error) or type(error).__name__) from error
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    # --- sending --------------------------------------------------------------------------------------------

    async def append(self, audio: bytes) -> None:
        """
        Append input: whole samples. Returns at once while the connection is broken; the audio is sent later.

        Raises:
            OutboxFull: too much is unacknowledged.
        """
        self._outbox.put(audio)
        await self._pump()

    async def send(self, event: msg.ClientEvent) -> None:
        """
        Send a client event, after all audio that was appended before.

        What a broken connection swallows is lost: fine for what is repeated or cumulative, and for the rest a
        reason to look at the events that follow.
        """
        await self._pump()
        async with self._sending:
            if self._socket is not None:
                with contextlib.suppress(ConnectionClosed):
                    await self._socket.send(msg.encode(event))

    async def close(self) -> None:
        """Ask for the session's end; `events` ends with it."""
        if self.opening.way == "duplex":
            await self.send(msg.SessionClose())
        else:
            await self._stack.aclose()

    async def keep_alive(self, interval_s: float = 1.0) -> None:
        """Send heartbeats until cancelled. Their answers are the receipts that let the outbox go."""
        while True:
            await asyncio.sleep(interval_s)
            await self.send(msg.SessionHeartbeat())

    async def _pump(self) -> None:
        async with self._sending:
            while self._socket is not None and (piece := self._outbox.take()) is not None:
                # What a broken connection swallowed is taken again from the receipt on, after the resume.
                with contextlib.suppress(ConnectionClosed):
                    await self._socket.send(msg.encode(msg.AppendInput(piece)))
            if self.opening.way == "openai":
                self._outbox.forget_sent()

    # --- reading --------------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[msg.ServerEvent, None]:
        """
        Give every event once, in order, `session.created` first, until the session is over.

        Raises:
            ConnectionLost: the connection broke and the session could not be resumed in time.
            SessionRefused: the session cannot be resumed.
        """
        while self._greeting:
            yield self._greeting.pop(0)
        while self._socket is not None:
            try:
                message = await self._socket.recv(decode=False)
            except ConnectionClosed as closed:
                if self.opening.way == "openai":
                    if closed.rcvd is None and closed.sent is None:
                        raise ConnectionLost(str(closed)) from closed
                    return
                yield await self._resume()
                continue
            event = msg.decode(message)
            if not self._is_new(event):
                continue
            yield event
            if event.type in LAST_EVENTS:
                return

    def _is_new(self, event: msg.ServerEvent) -> bool:
        """Keep the books; False for an event that came before."""
        if event.input_audio_received_bytes is not None:
            self._outbox.acknowledge(event.input_audio_received_bytes)
        seq = event.server_event_seq
        if seq is None:
            return True
        if seq <= self.last_seq:
            return False
        if self.opening.way == "duplex":
            self.missed += seq - self.last_seq - 1
        self.last_seq = seq
        return True

    # --- connections ----------------------------------------------------------------------------------------

    async def _connect(self, url: str) -> ClientConnection:
        opening = self.opening
        if opening.way == "duplex":
            address = f"{url}/v1/realtime?duplex=1&autostart=0"
        else:
            address = f"{url}/v1/realtime?model={quote(opening.model)}"
        headers = {"Authorization": f"Bearer {opening.api_key}"} if opening.api_key else None
        return await self._stack.enter_async_context(
            connect(address, additional_headers=headers, compression=None, max_size=None, open_timeout=None)
        )

    async def _open(self, socket: ClientConnection) -> None:
        audio_format = msg.AudioFormatOption("audio/pcm", self.opening.rate_hz)
        output = msg.DirectionOptions(audio_format)
        if self.opening.way == "duplex":
            audio = msg.AudioOptions(msg.DirectionOptions(audio_format), output)
            extra = msg.ExtraBody(self.opening.auto_response)
            options = msg.SessionOptions(audio, "realtime", self.opening.model, extra)
            await socket.send(msg.encode(msg.SessionUpdate(options)))
        created = await _receive(socket, "session.created")
        if self.opening.way == "openai":
            audio = msg.AudioOptions(msg.UntimedInputOptions(audio_format), output)
            await socket.send(msg.encode(msg.SessionUpdate(msg.SessionOptions(audio, "realtime"))))
        assert created.session is not None
        self.session_id, self._token = created.session.id, created.resume_token
        self._greeting.append(created)

    async def _resume(self) -> msg.ServerEvent:
        """Make the connection again; gives `session.resumed`."""
        opening = self.opening
        async with self._sending:
            self._socket = None
        await self._stack.aclose()
        if self._token is None:
            raise ConnectionLost("the session gave no resume token")
        reason = ""
        try:
            async with asyncio.timeout(opening.resume_timeout_s):
                attempt = self.resumes
                while True:
                    attempt += 1
                    try:
                        return await self._resume_through(opening.urls[attempt % len(opening.urls)])
                    except (OSError, InvalidHandshake, ConnectionClosed) as error:
                        reason = str(error) or type(error).__name__
                    except SessionRefused as refused:
                        if refused.code in FINAL_CODES:
                            raise
                        reason = str(refused)
                    await self._stack.aclose()
                    await asyncio.sleep(opening.retry_s)
        except TimeoutError as error:
            raise ConnectionLost(reason or "nobody answers") from error

    async def _resume_through(self, url: str) -> msg.ServerEvent:
        assert self._token is not None
        socket = await self._connect(url)
        await socket.send(msg.encode(msg.SessionResume(self.session_id, self._token, self.last_seq)))
        resumed = await _receive(socket, "session.resumed")
        async with self._sending:
            self._token = resumed.resume_token or self._token
            self._outbox.rewind(resumed.input_audio_received_bytes or 0)
            self._socket = socket
        self.resumes += 1
        await self._pump()
        return resumed


async def _receive(socket: ClientConnection, expected: str) -> msg.ServerEvent:
    event = msg.decode(await socket.recv(decode=False))
    if event.type != expected:
        error = event.error or msg.ErrorInfo(message=f"{event.type} instead of {expected}")
        raise SessionRefused(error.code or "unexpected_event", error.message)
    return event
