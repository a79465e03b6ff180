"""
The reaper: what nobody else sees to. Every gateway has one; all may do the same, the journal takes one.

It looks after sessions whose next deadline is due, sessions without a worker, and what dead processes held. A
suspicion may be wrong and is harmless then: the fold refuses what names a generation that is over.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from api.heads import Head, newest_head
from api.placement import role_of
from eventstore.errors import CursorLost, InvalidSessionId, StoreUnavailable, UnknownSession
from eventstore.records import Process
from session_core import events as ev
from session_core.deadlines import next_deadline
from session_core.errors import UnreadableEntry
from session_core.fleet import ProcessRole, parse_slot_member, slot_member
from session_core.journal import encode_entry
from session_core.state import Phase, State

if TYPE_CHECKING:
    from api.gateway import Gateway

_log = structlog.get_logger()

_DUE_LIMIT = 64
_HEADS_KEPT = 256
_RETRY_MS = 1_000
"""When to look again at what was not settled, and how far apart one session's deadline is appended twice."""


class Reaper:
    """Lives as long as its gateway. Its folds are a cache: no journal is read twice from its beginning."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._suspects: set[str] = set()
        self._retry_ms: dict[str, int] = {}
        """Sessions for which no worker was free, and when to try again."""
        self._unsteady_s = float("-inf")
        """When the store was last seen not to answer."""
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(gateway.settings.reap_concurrency)

    def suspect(self, session_id: str) -> None:
        """Look at a session soon: it seems to have no worker."""
        self._suspects.add(session_id)
        self._wake.set()

    async def run(self) -> None:
        """Reap until cancelled."""
        while True:
            wait_s = self._gateway.settings.reap_s * random.uniform(0.8, 1.2)
            self._wake.clear()
            try:
                await self.sweep()
            except* StoreUnavailable:
                self._unsteady_s = asyncio.get_running_loop().time()
            except* Exception:  # noqa: BLE001 - the outer edge of the reaper: it must outlive its mistakes
                _log.exception("reaper.failed")
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # Every entry of a session without a worker brings a suspicion: not faster than this.
            await asyncio.sleep(wait_s / 5)

    async def sweep(self) -> None:
        """
        Look once at everything that may be due.

        Raises:
            StoreUnavailable: no answer.
        """
        await self._gateway.fleet.refresh(0)
        if self._steady():
            for process in self._gateway.fleet.processes:
                if not process.alive and process.id != self._gateway.gateway_id:
                    await self._bury(process)
        now_ms = self._store.now_ms()
        due = await self._store.due(now_ms, _DUE_LIMIT)
        suspects = {name for name in self._suspects if self._retry_ms.get(name, 0) <= now_ms}
        self._suspects.clear()
        self._retry_ms = {name: at_ms for name, at_ms in self._retry_ms.items() if at_ms > now_ms}
        async with asyncio.TaskGroup() as tasks:
            for session_id in suspects.union(due):
                tasks.create_task(self._tend(session_id, None))

    def _steady(self) -> bool:
        """
        Tell whether heartbeats can be judged.

        Time without a store does not count: after an outage every heartbeat is gone, and everybody lives.
        """
        now_s, ttl_s = asyncio.get_running_loop().time(), self._gateway.settings.beat_ttl_ms / 1000
        if self._store.last_contact_s() > ttl_s / 2:
            self._unsteady_s = now_s
        return now_s - self._unsteady_s > ttl_s

    # --- dead processes -------------------------------------------------------------------------------------

    async def _bury(self, process: Process) -> None:
        """Take over what a dead process held, member by member, then forget it."""
        role = role_of(process)
        members = await self._store.held(process.id)
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(self._inherit(process.id, role, member))
        if await self._store.forget_process(process.id):
            _log.info("process.forgotten", process=process.id, role=role, members=len(members))

    async def _inherit(self, process_id: str, role: ProcessRole | None, member: str) -> None:
        try:
            session_id, generation = parse_slot_member(member)
        except UnreadableEntry:
            await self._store.release(process_id, member)
            return
        if role is ProcessRole.GATEWAY:
            settled = await self._detach(session_id, generation)
        else:
            settled = await self._tend(session_id, process_id)
        if settled:
            await self._store.release(process_id, member)

    async def _detach(self, session_id: str, generation: int) -> bool:
        async with self._slots:
            state = await self._state(session_id)
            if state is None:
                return True
            held = state.attachment
            if state.phase is Phase.OPEN and held.attached and held.generation == generation:
                await self._store.append(session_id, encode_entry(ev.ClientDetached(generation)))
                self._gateway.stats.suspected += 1
                _log.warning("attachment.suspected", session_id=session_id, generation=generation)
                due_ms = self._store.now_ms() + state.pinned.limits.disconnect_grace_ms
                await self._store.schedule(session_id, due_ms)
            return True

    # --- sessions -------------------------------------------------------------------------------------------

    async def _tend(self, session_id: str, dead_worker: str | None) -> bool:
        """
        Do what a session needs now, and note when it next needs something.

        Args:
            session_id: the session.
            dead_worker: a worker that is known to be gone.

        Returns:
            False if the session still has no worker.
        """
        async with self._slots:
            state = await self._state(session_id)
            if state is None or state.phase is Phase.ENDED:
                await self._forget(session_id)
                return True
            if state.phase is Phase.NEW:
                return True
            owned = True
            if state.worker.worker in (None, dead_worker):
                owned = await self._assign(session_id, state)
            await self._pass_deadline(session_id, state, owned)
            return owned

    async def _assign(self, session_id: str, state: State) -> bool:
        generation = state.worker.generation + 1
        model = state.pinned.profile.model
        worker = await self._gateway.fleet.place(model, slot_member(session_id, generation))
        if worker is None:
            _log.warning("session.no_worker", session_id=session_id, generation=generation, model=model)
            return False
        await self._store.append(session_id, encode_entry(ev.WorkerAssigned(worker.worker_id, generation)))
        self._gateway.stats.reassigned += 1
        _log.warning(
            "session.reassigned", session_id=session_id, generation=generation, worker=worker.worker_id
        )
        return True

    async def _pass_deadline(self, session_id: str, state: State, owned: bool) -> None:
        deadline, now_ms = next_deadline(state), self._store.now_ms()
        if deadline is None:
            return
        due_ms = deadline.due_ms
        if due_ms <= now_ms:
            await self._store.append(session_id, encode_entry(ev.DeadlinePassed(deadline.kind, due_ms)))
            self._gateway.stats.deadlines += 1
            _log.info("deadline.passed", session_id=session_id, kind=deadline.kind)
            due_ms = now_ms + _RETRY_MS
        if not owned:
            due_ms = min(due_ms, now_ms + _RETRY_MS)
            self._retry_ms[session_id] = now_ms + _RETRY_MS
        await self._store.schedule(session_id, due_ms)

    async def _forget(self, session_id: str) -> None:
        self._heads.pop(session_id, None)
        try:
            await self._store.schedule(session_id, None)
        except InvalidSessionId:
            _log.warning("reaper.bad_session_id", session_id=session_id)

    async def _state(self, session_id: str) -> State | None:
        """
        Fold a session up to its end; None if there is nothing to fold.

        Raises:
            StoreUnavailable: no answer.
        """
        try:
            head = await newest_head(self._store, session_id, self._heads.pop(session_id, None))
        except (UnknownSession, InvalidSessionId):
            return None
        except CursorLost as error:
            _log.warning("reaper.cannot_fold", session_id=session_id, error=type(error).__name__)
            return None
        if head.fold.state.phase is not Phase.ENDED:
            self._heads[session_id] = head
            if len(self._heads) > _HEADS_KEPT:
                self._heads.popitem(last=False)
        return head.fold.state
