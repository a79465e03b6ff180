"""One connection of a client, which keeps an account of every numbered event that comes over it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

CONNECT_S = 5.0
PATIENCE_S = 12.0
"""
Longer than the store is ever out of reach: in an outage sockets stay open and say nothing, and a client that
left for that would never show that they do.
"""


class LineLost(Exception):
    """The connection broke, or nobody answers on it."""


class SessionRef(Struct, frozen=True):
    """The session object, as far as it is read."""

    id: str


class ErrorRef(Struct, frozen=True):
    """The error object, as far as it is read."""

    code: str | None = None
    message: str = ""


class ResponseRef(Struct, frozen=True):
    """The response object, as far as it is read."""

    id: str
    status: str = ""


class Heard(Struct, frozen=True):
    """A server event, as far as it is read."""

    type: str
    server_event_seq: int | None = None
    session: SessionRef | None = None
    attachment_generation: int = 0
    resume_token: str | None = None
    input_audio_received_bytes: int | None = None
    last_client_event_id: str | None = None
    response_id: str | None = None
    response: ResponseRef | None = None
    reason: str = ""
    error: ErrorRef | None = None


class Receipt(NamedTuple):
    """One numbered event that arrived."""

    seq: int
    digest: bytes
    """Of the frame."""
    at_ms: float
    """Wall clock, the one that the store's server reads too."""
    type: str


_events = msgspec.json.Decoder(Heard)


def digest_of(frame: bytes) -> bytes:
    """What is kept of a frame, to compare it by."""
    return hashlib.blake2b(frame, digest_size=16).digest()


class Line:
    """
    A connection to one gateway; lives until it is lost.

    Attributes:
        gateway: index of the gateway.
        asked_seq: events after this are to come.
        generation: of the attachment, once there is one.
        receipts: every numbered event, in the order of arrival.
        last_type: of the newest event of any kind.
        close_code: the server's, once the connection is over.
    """

    def __init__(self, gateway: int, asked_seq: int) -> None:
        self.gateway = gateway
        self.asked_seq = asked_seq
        self.generation = 0
        self.receipts: list[Receipt] = []
        self.last_type = ""
        self.close_code: int | None = None
        self._socket: ClientConnection | None = None

    async def connect(self, url: str) -> None:
        """
        Connect.

        Raises:
            LineLost: nobody answers.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                self._socket = await connect(
                    f"{url}/v1/realtime?duplex=1&autostart=0",
                    compression=None,
                    max_size=None,
                    max_queue=None,
                    ping_interval=None,
                    open_timeout=None,
                    close_timeout=1,
                )
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed, EOFError) as error:
            raise LineLost(str(error)) from error

    async def send(self, text: str) -> bool:
        """Send a frame; whether the connection seemed to take it."""
        assert self._socket is not None
        try:
            await self._socket.send(text)
        except ConnectionClosed:
            return False
        return True

    async def hear(self, patience_s: float = PATIENCE_S) -> Heard:
        """
        Read the next event.

        Raises:
            LineLost: there is none, or none came in time.
        """
        assert self._socket is not None
        try:
            async with asyncio.timeout(patience_s):
                frame = await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            self.close_code = closed.rcvd.code if closed.rcvd is not None else None
            raise LineLost(str(closed)) from closed
        except TimeoutError as error:
            self.drop()
            raise LineLost("silence") from error
        event = _events.decode(frame)
        self.last_type = event.type
        if event.server_event_seq is not None:
            at_ms = time.time() * 1000
            self.receipts.append(Receipt(event.server_event_seq, digest_of(frame), at_ms, event.type))
        return event

    def drop(self) -> None:
        """Break the connection without a word."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def hear_out(self) -> None:
        """Read until the server closes."""
        with suppress(LineLost):
            while True:
                await self.hear()
