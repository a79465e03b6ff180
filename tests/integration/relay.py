"""A network that breaks: a TCP relay whose connections a test cuts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class Relay:
    """
    Passes bytes between its own port and a port of 127.0.0.1; an async context manager.

    Attributes:
        port: where it listens; None before it does.
        connections: how many it has accepted.
    """

    def __init__(self, target: int) -> None:
        self.port: int | None = None
        self.connections = 0
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection, both ways, without a goodbye."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass(reader, back))
                tasks.create_task(_pass(there, writer))
        finally:
            self._writers -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()
