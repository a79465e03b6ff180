"""
The load generator's WebSocket client: as little work a frame as will do, for it shares the machine.

Frames are masked with zeros, which the protocol allows and which saves masking; the server notices nothing.
Of a server's audio delta only the first six bytes of sound are looked at: there the frame's number stands.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from binascii import a2b_base64
from collections.abc import Callable
from typing import cast

FRAME_BYTES = 3_840
"""80 ms of PCM16 at 24 kHz."""
_NUMBER = struct.Struct("<IH")
_HEAD = b'{"type":"input_audio_buffer.append","audio":"'
_REST = base64.b64encode(os.urandom(FRAME_BYTES - _NUMBER.size)) + b'"}'
_MARK = b'"delta":"'
_MARK_WITHIN_BYTES = 700
_QUOTE = b'"'
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return struct.pack("!BBI", 0x80 | opcode, 0x80 | size, 0) + payload
    return struct.pack("!BBHI", 0x80 | opcode, 0xFE, size, 0) + payload


class FrameSocket(asyncio.Protocol):
    """
    One connection, from `connect` to `close`.

    Args:
        path: what to ask the server for.
        on_number: called with the number of each frame that comes back.
        on_text: called with the beginning of every other text.
    """

    def __init__(self, path: str, on_number: Callable[[int], None], on_text: Callable[[bytes], None]) -> None:
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._path = path
        self._on_number = on_number
        self._on_text = on_text
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def send_number(self, number: int) -> None:
        """Send one audio frame that carries a number."""
        self.send(b"".join((_HEAD, base64.b64encode(_NUMBER.pack(number, 0)), _REST)))

    def send(self, text: bytes) -> None:
        """Send a text frame."""
        if self._transport is not None:
            self._transport.write(_frame(_TEXT, text))

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self._transport.write(request.encode())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Tell whoever waits."""
        for waiter in (self.upgraded, self.lost):
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take whole frames; keep the rest."""
        data = self._buffer + data if self._buffer else data
        at = 0
        if not self.upgraded.done():
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            if not data.startswith(b"HTTP/1.1 101"):
                raise ConnectionError(data[:80].decode())
            self.upgraded.set_result(None)
            at = end + 4
        while (following := self._take(data, at)) is not None:
            at = following
        self._buffer = data[at:]

    def _take(self, data: bytes, at: int) -> int | None:
        """Handle the frame at `at`; gives where the next one begins, or None if this one is not whole."""
        held = len(data) - at
        if held < 2:
            return None
        size, start = data[at + 1], at + 2
        if size >= 126:
            extra = 2 if size == 126 else 8
            if held < 2 + extra:
                return None
            start += extra
            size = int.from_bytes(data[at + 2 : start])
        end = start + size
        if end > len(data):
            return None
        opcode = data[at] & 0x0F
        if opcode == _TEXT:
            self._text(data, start, end)
        elif opcode == _PING and self._transport is not None:
            self._transport.write(_frame(_PONG, data[start:end]))
        elif opcode == _CLOSE:
            self.close()
        return end

    def _text(self, data: bytes, start: int, end: int) -> None:
        mark = data.find(_MARK, start, min(end, start + _MARK_WITHIN_BYTES))
        sound = mark + len(_MARK)
        if mark < 0 or data.startswith(_QUOTE, sound):
            # No delta, or one without sound: what a session that is closed had still to say is void.
            self._on_text(data[start : min(end, start + 80)])
            return
        number, _ = _NUMBER.unpack(a2b_base64(data[sound : sound + 8]))
        self._on_number(number)
