"""
One connection to a Redis server, and pipelines over it.

redis-py makes the connection (address, TLS, authentication, sentinel); this module sends packed commands
over it and reads as many replies. A connection that was interrupted between a command and its reply is
closed, never used again: the next user would read the wrong reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from .clock import StoreClock
from .errors import StoreUnavailable

Reply: TypeAlias = Any
"""What the server answered: bytes, int, None, a list of replies, a `ResponseError`. The caller decodes it."""


class Connection(Protocol):
    """The part of redis-py's connection that is used here."""

    socket_timeout: float | None
    """Seconds for each single read and write; None waits for ever."""

    async def connect(self) -> None:
        """Connect and authenticate."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:
        """Close, without waiting for the other side if `nowait`."""
        ...

    async def send_packed_command(self, command: Iterable[bytes]) -> None:
        """Write bytes."""
        ...

    async def read_response(self) -> Reply:
        """The next reply; raises `ResponseError` if it is one."""
        ...


def new_connection(pool: ConnectionPool) -> Connection:
    """A connection as the pool would make it, but owned by the caller; not yet connected."""
    connection = cast(Connection, pool.make_connection())  # type: ignore[no-untyped-call]
    # Time-outs are this package's, over whole pipelines. redis-py's own wrap writes in `asyncio.wait_for`,
    # which can swallow a cancellation in Python 3.11.
    connection.socket_timeout = None
    return connection


def pack(*words: bytes) -> bytes:
    """One command in Redis' wire form."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)


class Link:
    """A connection that is made anew when it is lost; one pipeline at a time. Lives as long as the store."""

    def __init__(self, pool: ConnectionPool, clock: StoreClock, timeout_s: float) -> None:
        self._pool = pool
        self._clock = clock
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._busy = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether the last pipeline left the connection in order."""
        return self._connection is not None

    async def connect(self) -> None:
        """
        Make a new connection, whatever became of the last.

        Raises:
            StoreUnavailable: no server there, or it refuses.
        """
        await self.close()
        connection = new_connection(self._pool)
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.connect()
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable("cannot connect") from error
        self._connection = connection

    async def pipeline(self, commands: Sequence[bytes]) -> list[Reply]:
        """
        Send packed commands and read their replies; a refused one has a `ResponseError` for its reply.

        Raises:
            StoreUnavailable: not connected, or the connection is lost (it is closed then): the outcome is
            unknown.
        """
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("not connected")
        replies: list[Reply] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.send_packed_command(commands)
                for _ in commands:
                    try:
                        replies.append(await connection.read_response())
                    except ResponseError as refused:
                        replies.append(refused)
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise StoreUnavailable("connection lost") from error
        except BaseException:
            await self.close()
            raise
        self._clock.contact()
        return replies

    async def ask(self, *commands: bytes) -> list[Reply]:
        """
        As `pipeline`, for callers who share the link.

        Takes turns, connects if need be, and tries once more over a fresh connection: for what may be done
        twice.

        Raises:
            StoreUnavailable: no answer, or refused.
        """
        async with self._busy:
            fresh = not self.connected
            if fresh:
                await self.connect()
            try:
                replies = await self.pipeline(commands)
            except StoreUnavailable:
                if fresh:
                    raise
                await self.connect()
                replies = await self.pipeline(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise StoreUnavailable("refused") from reply
        return replies

    async def close(self) -> None:
        """Drop the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
