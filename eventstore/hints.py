"""
Hints: pub/sub messages that say only "look there".

They may be lost, doubled or late; whoever listens looks by itself from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError

from .backoff import Backoff
from .link import Connection, new_connection, pack
from .options import StoreOptions

_PING_EVERY_S = 5.0


class HintListener:
    """
    Listens on channels over a connection of its own and calls back on each message; lives with the store.

    A callback is also called when its subscription takes effect, the first time and after each reconnect:
    hints sent before that were missed.
    """

    def __init__(self, pool: ConnectionPool, options: StoreOptions) -> None:
        self._pool = pool
        self._options = options
        self._listeners: dict[bytes, list[Callable[[], None]]] = {}
        self._subscribed: set[bytes] = set()
        """Channels asked for on the present connection."""
        self._dirty = asyncio.Event()
        """Set when `_subscribed` may differ from the channels listened on."""
        self._heard = False
        """Whether anything came since the last ping."""

    def listen(self, channel: bytes, on_hint: Callable[[], None]) -> None:
        """Call back on each hint of a channel."""
        self._listeners.setdefault(channel, []).append(on_hint)
        self._dirty.set()

    def unlisten(self, channel: bytes, on_hint: Callable[[], None]) -> None:
        """Undo one `listen`."""
        listeners = self._listeners[channel]
        listeners.remove(on_hint)
        if not listeners:
            del self._listeners[channel]
            self._dirty.set()

    async def run(self) -> None:
        """Listen until cancelled, reconnecting for ever."""
        backoff = Backoff(self._options.backoff_min_s, self._options.backoff_max_s)
        while True:
            connection = new_connection(self._pool)
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    await connection.connect()
                backoff.reset()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._receive(connection))
                    tasks.create_task(self._subscribe(connection))
            except* (RedisError, OSError, TimeoutError):
                pass
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff.next_s())

    async def _receive(self, connection: Connection) -> None:
        while True:
            kind, channel, *_ = await connection.read_response()
            self._heard = True
            if kind in (b"message", b"subscribe"):
                for listener in list(self._listeners.get(channel, ())):
                    listener()

    async def _subscribe(self, connection: Connection) -> None:
        self._subscribed.clear()
        self._dirty.set()
        self._heard = True
        while True:
            try:
                async with asyncio.timeout(_PING_EVERY_S):
                    await self._dirty.wait()
            except TimeoutError:
                if not self._heard:
                    raise
                self._heard = False
                await connection.send_packed_command([pack(b"PING")])
                continue
            self._dirty.clear()
            wanted = self._listeners.keys()
            commands = []
            if added := wanted - self._subscribed:
                commands.append(pack(b"SUBSCRIBE", *added))
            if removed := self._subscribed - wanted:
                commands.append(pack(b"UNSUBSCRIBE", *removed))
            self._subscribed = set(wanted)
            if commands:
                await connection.send_packed_command(commands)
