"""The gateway: what its connections share. Kill it and nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from api.admission.ephemeral import ClientSecrets
from api.placement import Fleet
from api.reaper import Reaper
from api.settings import GatewaySettings
from api.stats import Stats
from eventstore.errors import StoreUnavailable
from eventstore.store import EventStore
from session_core.fleet import Advertisement, ProcessRole, encode_advertisement
from session_core.reducer import REDUCER_VERSION

if TYPE_CHECKING:
    from api.connection import Connection

_log = structlog.get_logger()


class Gateway:
    """
    One gateway process (or app in a test). Lives from `running`'s begin to its end.

    Attributes:
        gateway_id: names this process in heartbeats, holds and journals; new with each start.
    """

    def __init__(self, store: EventStore, settings: GatewaySettings) -> None:
        self.gateway_id = f"gateway-{secrets.token_hex(8)}"
        self.store = store
        self.settings = settings
        self.stats = Stats()
        self.fleet = Fleet(store, settings)
        self.client_secrets = ClientSecrets(settings.client_secret_key)
        self.reaper = Reaper(self)
        self._connections: set[Connection] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Beat, tick and reap while the context is open; it closes after the last connection."""
        async with asyncio.TaskGroup() as tasks:
            await self._announce()
            background = [
                tasks.create_task(self._beat(), name="gateway.beat"),
                tasks.create_task(self._tick(), name="gateway.tick"),
                tasks.create_task(self.reaper.run(), name="gateway.reap"),
            ]
            _log.info("gateway.started", gateway=self.gateway_id)
            try:
                yield
            finally:
                for task in background:
                    task.cancel()
        with suppress(StoreUnavailable):
            # A hold that is left belongs to a client that could not be detached: others must find it.
            if not await self.store.held(self.gateway_id):
                await self.store.forget_process(self.gateway_id)
        _log.info("gateway.stopped", gateway=self.gateway_id)

    @contextmanager
    def registered(self, connection: Connection) -> Iterator[None]:
        """Count a connection and tick it."""
        self._connections.add(connection)
        self.stats.sockets += 1
        try:
            yield
        finally:
            self._connections.discard(connection)
            self.stats.sockets -= 1

    @property
    def lagging(self) -> int:
        """How many connections are behind and read their journals again."""
        return sum(connection.lagging for connection in self._connections)

    async def ready(self) -> bool:
        """Tell whether a session could be opened now, slots aside."""
        try:
            await self.fleet.refresh()
        except StoreUnavailable:
            return False
        return bool(self.fleet.workers)

    async def _announce(self) -> None:
        info = encode_advertisement(Advertisement(ProcessRole.GATEWAY, REDUCER_VERSION))
        with suppress(StoreUnavailable):
            await self.store.beat(self.gateway_id, info, self.settings.beat_ttl_ms)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.beat_s)
            await self._announce()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_s)
            for connection in list(self._connections):
                try:
                    await connection.tick()
                except StoreUnavailable:
                    break
                except Exception:  # noqa: BLE001 - the outer edge: it is not the others' trouble
                    _log.exception("connection.tick_failed")
