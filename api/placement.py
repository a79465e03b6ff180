"""Placement: which models are served, and who takes the next session. Hints only; the journal decides."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from api.settings import GatewaySettings
from eventstore.records import Process
from eventstore.store import EventStore
from session_core.config import ModelProfile, Way
from session_core.fleet import Advertisement, ProcessRole, decode_advertisement
from session_core.reducer import REDUCER_VERSION

_FRESH_S = 0.5


class Worker(NamedTuple):
    """A live worker that takes sessions."""

    worker_id: str
    profile: ModelProfile
    capacity: int


class Fleet:
    """What this gateway knows of the other processes; lives as long as the gateway, refreshed at need."""

    def __init__(self, store: EventStore, settings: GatewaySettings) -> None:
        self._store = store
        self._settings = settings
        self._refreshed_s = float("-inf")
        self._refreshing = asyncio.Lock()
        self.processes: list[Process] = []
        self.workers: list[Worker] = []

    @property
    def models(self) -> dict[str, ModelProfile]:
        """Every model that a live worker serves."""
        return {worker.profile.model: worker.profile for worker in self.workers}

    async def refresh(self, max_age_s: float = _FRESH_S) -> None:
        """
        Ask the store who is there, unless that was done within `max_age_s`.

        Raises:
            StoreUnavailable: no answer.
        """
        async with self._refreshing:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._refreshed_s < max_age_s:
                return
            self.processes = await self._store.processes()
            self.workers = [w for process in self.processes if (w := _worker(process)) is not None]
            self._refreshed_s = now_s

    async def place(self, model: str, member: str) -> Worker | None:
        """
        Take a slot for a session on the emptiest worker that serves its model.

        Args:
            model: a served model.
            member: names the slot: the session and the worker generation.

        Returns:
            The worker, or None if no slot is free.

        Raises:
            StoreUnavailable: no answer.
        """
        await self.refresh()
        candidates = [worker for worker in self.workers if worker.profile.model == model]
        random.shuffle(candidates)
        load = {worker.worker_id: len(await self._store.held(worker.worker_id)) for worker in candidates}
        candidates.sort(key=lambda worker: load[worker.worker_id] / max(1, worker.capacity))
        for worker in candidates:
            if not await self._store.hold(worker.worker_id, member, worker.capacity):
                continue
            # What was known of it may be old: a slot taken after its burial is one that no reaper looks at.
            await self.refresh(0)
            if any(known.worker_id == worker.worker_id for known in self.workers):
                return worker
            await self._store.release(worker.worker_id, member)
        return None

    def name_model(self, name: str, current: str, way: Way) -> str:
        """
        Give the model that a client's word means; a name that means none is given back as it is.

        Args:
            name: what the client said.
            current: the session's model, or "" while none is open.
            way: how the client opened; OpenAI's clients name OpenAI's models by default.
        """
        served, aliases = self.models, self._settings.model_aliases
        if name == current or name in served:
            return name
        if name in aliases or "*" in aliases:
            return aliases.get(name, aliases.get("*", name))
        if way is Way.OPENAI and self._settings.accept_any_model:
            if current:
                return current
            if len(served) == 1:
                return next(iter(served))
        return name

    def unnamed_model(self) -> str:
        """Give the model of clients that name none; "" if that is undecided."""
        if self._settings.default_model:
            return self._settings.default_model
        served = self.models
        return next(iter(served)) if len(served) == 1 else ""


def role_of(process: Process) -> ProcessRole | None:
    """Tell what a process is; None if it speaks a version that this one does not know."""
    advertisement = decode_advertisement(process.info)
    return advertisement.role if advertisement is not None else None


def _worker(process: Process) -> Worker | None:
    said: Advertisement | None = decode_advertisement(process.info)
    if said is None or not process.alive or said.draining or said.role is not ProcessRole.WORKER:
        return None
    if said.profile is None or said.reducer_version != REDUCER_VERSION:
        return None
    return Worker(process.id, said.profile, said.capacity)
