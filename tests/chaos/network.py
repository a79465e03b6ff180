"""A network that breaks in the middle of a frame: a TCP relay before each gateway."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Self

PIECE_BYTES = 1 << 16


class _Link:
    """
    One connection through the relay. `budget` bytes may still pass, counted over both directions; None: any.
    """

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.budget: int | None = None
        self._writers = (near, far)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one direction on, until either side is gone or the budget is used up."""
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self.budget is not None:
                    piece = piece[: self.budget]
                    self.budget -= len(piece)
                if writer.is_closing():
                    break
                writer.write(piece)
                await writer.drain()
                if self.budget == 0:
                    break
        self.cut()

    def cut(self) -> None:
        """Break it both ways, without a goodbye."""
        for writer in self._writers:
            # What was written is sent first, so that the cut stands at the byte that was chosen.
            writer.close()


class Relay:
    """
    Passes bytes between its own port and a port of 127.0.0.1; an async context manager.

    Attributes:
        port: where it listens; 0 before it does.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cut()
        await self._server.wait_closed()

    def cut_some(self, rng: random.Random, share: float) -> int:
        """Cut some connections, each after a random number of further bytes; gives how many."""
        chosen = [link for link in self._links if link.budget is None and rng.random() < share]
        for link in chosen:
            link.budget = rng.randrange(1, 8_000)
        return len(chosen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, back)
        self._links.add(link)
        try:
            await asyncio.gather(link.carry(reader, back), link.carry(there, writer))
        finally:
            self._links.discard(link)
