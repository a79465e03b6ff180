"""A client's WebSocket, straight on the ASGI callables: one frame in, one frame out, no layers between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

from api.errors import SocketClosed

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

NORMAL_CLOSURE = 1000
ABNORMAL_CLOSURE = 1006


class ClientSocket:
    """
    One WebSocket from upgrade to close. `receive` is for one task, `send` for any number.

    Attributes:
        sending_since_s: loop time at which the send in progress began; None if none waits.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._closed = False
        self._time_s = asyncio.get_running_loop().time
        self.sending_since_s: float | None = None

    async def accept(self, subprotocol: str | None) -> None:
        """Complete the upgrade."""
        await self._receive()
        await self._pass({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def deny(self, status: HTTPStatus) -> None:
        """Refuse the upgrade with an HTTP status."""
        self._closed = True
        await self._receive()
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        if status is HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._pass({"type": "websocket.http.response.start", "status": int(status), "headers": headers})
        await self._pass({"type": "websocket.http.response.body", "body": status.phrase.encode()})

    async def receive(self) -> str | None:
        """
        Wait for the next frame; None stands for a binary one.

        Raises:
            SocketClosed: there will be no more.
        """
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._closed = True
            raise SocketClosed(message.get("code") or ABNORMAL_CLOSURE)
        text: str | None = message.get("text")
        return text

    async def send(self, text: str) -> None:
        """
        Send a text frame; waits while the client takes nothing.

        Raises:
            SocketClosed: the client is gone.
        """
        if self._closed:
            raise SocketClosed(ABNORMAL_CLOSURE)
        if self.sending_since_s is None:
            self.sending_since_s = self._time_s()
        await self._pass({"type": "websocket.send", "text": text})
        self.sending_since_s = None

    async def close(self, code: int, reason: str) -> None:
        """Close, unless it is closed."""
        if not self._closed:
            self._closed = True
            await self._pass({"type": "websocket.close", "code": code, "reason": reason})

    async def _pass(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:
            self._closed = True
            raise SocketClosed(ABNORMAL_CLOSURE) from error
