"""Input audio until the server says that it has it."""

from __future__ import annotations

from collections import deque

from .errors import OutboxFull

LIMIT_BYTES = 8 << 20
"""Nearly three minutes at 24 kHz."""


class Outbox:
    """
    What was appended and is not acknowledged, up to a place sent. Lives as long as its session.

    All places are counts of input bytes since the session opened, the same that receipts count in.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: deque[bytes] = deque()
        self._first = 0
        """Place of the first piece."""
        self._next = 0
        """Index of the first piece that is not sent."""
        self.end = 0

    def put(self, audio: bytes) -> None:
        """
        Take audio to be sent.

        Raises:
            OutboxFull: too much is unacknowledged.
        """
        if self.end + len(audio) - self._first > self._limit_bytes:
            raise OutboxFull(self._limit_bytes)
        self._pieces.append(audio)
        self.end += len(audio)

    def take(self) -> bytes | None:
        """The next piece to send; None if there is none."""
        if self._next == len(self._pieces):
            return None
        piece = self._pieces[self._next]
        self._next += 1
        return piece

    def acknowledge(self, received: int) -> None:
        """The server has everything before `received`."""
        while self._pieces and self._first + len(self._pieces[0]) <= received:
            self._first += len(self._pieces.popleft())
            self._next = max(0, self._next - 1)

    def rewind(self, received: int) -> None:
        """On a new connection: everything from `received` on is to be sent (again)."""
        self.acknowledge(received)
        if self._pieces and self._first < received:
            self._pieces[0] = self._pieces[0][received - self._first :]
            self._first = received
        self._next = 0

    def forget_sent(self) -> None:
        """Keep nothing that was sent: on a way that gives no receipts nothing can be sent again."""
        for _ in range(self._next):
            self._first += len(self._pieces.popleft())
        self._next = 0
