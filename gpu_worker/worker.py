"""
The worker: says that it lives, takes the sessions that hold a slot of it, and hands them over when it leaves.

The store's set of slots is only a hint. The log says which sessions are this worker's, and once a second the
set is put right by it: a slot without a runner gets one (which frees it again where the log says that it is
over), and a session that is served without a slot gets its slot back.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial

import structlog

from eventstore.errors import InvalidSessionId, StoreUnavailable
from eventstore.store import EventStore
from gpu_worker.plugin import ModelPlugin
from gpu_worker.session import SessionRunner, Stages
from gpu_worker.settings import WorkerSettings
from gpu_worker.transcription import TranscriptionStage, create_transcriber
from gpu_worker.turns.models import load_speech_model
from gpu_worker.turns.service import TurnDetectionService
from session_core.errors import UnreadableEntry
from session_core.fleet import Advertisement, ProcessRole, encode_advertisement, parse_slot_member
from session_core.reducer import REDUCER_VERSION


class Worker:
    """
    One worker process's work; lives as long as the process, or as a test wants.

    Args:
        store: an open event store.
        plugin: the model, not yet started; the worker starts and closes it.
    """

    def __init__(self, store: EventStore, plugin: ModelPlugin, settings: WorkerSettings) -> None:
        self._store = store
        self._plugin = plugin
        self._settings = settings
        self._runners: dict[str, SessionRunner] = {}
        """By slot member."""
        self._stages = Stages(
            plugin,
            TurnDetectionService(
                partial(load_speech_model, settings.speech_model), plugin.profile.input_sample_rate_hz
            ),
            TranscriptionStage(
                create_transcriber(settings.transcriber),
                settings.transcription_concurrency,
                settings.transcription_timeout_s,
            ),
            asyncio.Semaphore(settings.start_concurrency),
            asyncio.Lock(),
        )
        self._stopping = asyncio.Event()
        self._is_empty = asyncio.Event()
        """No slot is held and none served; only looked at while stopping."""
        self._log = structlog.get_logger().bind(worker=settings.worker_id, model=plugin.profile.model)

    @property
    def sessions(self) -> int:
        """Sessions that the log says are this worker's."""
        return sum(runner.owns_session for runner in self._runners.values())

    def stop(self) -> None:
        """Leave: take nothing new, give every session up between two units, then end `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`. Cancelled, it drops everything at once, as a crash would."""
        await self._start_all()
        self._log.info("worker.started", capacity=self._capacity)
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(self._stages.turns.run())
                beating = tasks.create_task(self._beat())
                watching = tasks.create_task(self._watch(tasks))
                failing = tasks.create_task(self._leave_when_failed())
                await self._stopping.wait()
                await self._leave()
                for task in (failing, watching, beating, listening):
                    task.cancel()
            await self._forget()
        finally:
            self._stages.transcription.close()
            await self._plugin.aclose()

    @property
    def _capacity(self) -> int:
        """Sessions at once: what the operator says, as far as the model has room for it."""
        room = self._plugin.capacity
        return self._settings.capacity if room is None else min(room, self._settings.capacity)

    async def _leave_when_failed(self) -> None:
        """Leave when the model can serve nobody any more. Staying would take sessions only to fail them."""
        reason = await self._plugin.failed()
        self._log.error("model.gone", reason=reason)
        self.stop()

    async def _start_all(self) -> None:
        await self._plugin.start()
        await self._stages.turns.start()
        await self._stages.transcription.start()

    async def _beat(self) -> None:
        settings = self._settings
        while True:
            info = Advertisement(
                ProcessRole.WORKER,
                REDUCER_VERSION,
                self._plugin.profile,
                self._capacity,
                self._stopping.is_set(),
            )
            try:
                await self._store.beat(
                    settings.worker_id, encode_advertisement(info), settings.heartbeat_ttl_ms
                )
            except StoreUnavailable:
                self._log.warning("heartbeat.failed")
            await asyncio.sleep(settings.heartbeat_s)

    async def _watch(self, tasks: asyncio.TaskGroup) -> None:
        async with aclosing(self._store.watch_holds(self._settings.worker_id)) as holds:
            async for held in holds:
                try:
                    await self._reconcile(held, tasks)
                except StoreUnavailable:
                    self._log.warning("slots.not_reconciled")

    async def _reconcile(self, held: dict[str, int], tasks: asyncio.TaskGroup) -> None:
        """Put runners and slots in line with each other."""
        for member, since_ms in held.items():
            if member not in self._runners:
                await self._start(member, since_ms, tasks)
        for member, runner in list(self._runners.items()):
            if member not in held and runner.owns_session:
                await self._store.hold(self._settings.worker_id, member, None)
        if self._stopping.is_set():
            for runner in self._runners.values():
                runner.leave("the worker is leaving")
            if not held and not self._runners:
                self._is_empty.set()

    async def _start(self, member: str, since_ms: int, tasks: asyncio.TaskGroup) -> None:
        worker_id = self._settings.worker_id
        try:
            session_id, generation = parse_slot_member(member)
            runner = SessionRunner(
                self._store,
                self._stages,
                self._settings,
                session_id=session_id,
                generation=generation,
                held_since_ms=since_ms,
            )
        except (UnreadableEntry, InvalidSessionId):
            self._log.warning("slot.unreadable", member=member)
            await self._store.release(worker_id, member)
            return
        if sum(not other.is_over for other in self._runners.values()) >= self._capacity:
            runner.leave("the worker is full")
        self._runners[member] = runner
        tasks.create_task(self._run(member, runner), name=f"session {member}")

    async def _run(self, member: str, runner: SessionRunner) -> None:
        try:
            await runner.run()
            await self._store.release(self._settings.worker_id, member)
        except StoreUnavailable:
            self._log.warning("slot.not_released", member=member)
        finally:
            del self._runners[member]

    async def _leave(self) -> None:
        """Wait until every session is given up, but not for ever: reapers find what is left."""
        self._log.info("worker.leaving", sessions=self.sessions)
        for runner in self._runners.values():
            runner.leave("the worker is leaving")
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self._is_empty.wait()
        except TimeoutError:
            self._log.warning("worker.left_sessions", sessions=self.sessions)

    async def _forget(self) -> None:
        try:
            await self._store.forget_process(self._settings.worker_id)
        except StoreUnavailable:
            self._log.warning("worker.not_forgotten")
        self._log.info("worker.stopped")
