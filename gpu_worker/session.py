"""
One session in this worker, from the hold on its slot to the end of this worker generation.

Its tasks share one fold (`SessionLog`): one folds, one works on units, one renders what units left for later;
turn detection, transcription and responses outside the conversation have tasks while the fold says that they
are due.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from eventstore.errors import CursorLost, StoreClosed, UnknownSession
from eventstore.store import EventStore
from gpu_worker.context import ContextLedger
from gpu_worker.due import DueTasks
from gpu_worker.errors import WorkerError
from gpu_worker.item_audio import ItemAudio
from gpu_worker.listening import Listener
from gpu_worker.plugin import ModelPlugin, ModelSession
from gpu_worker.rendering import Rendering
from gpu_worker.session_log import SessionLog, Standing
from gpu_worker.settings import WorkerSettings
from gpu_worker.side import SideResponses
from gpu_worker.transcription import TranscriptionStage
from gpu_worker.transcripts import Transcripts
from gpu_worker.turn_audio import TurnAudio
from gpu_worker.turns.service import TurnDetectionService
from gpu_worker.unit_work import UnitWork
from session_core.derive import has_work
from session_core.events import AssignmentDeclined, ModelFailed, ServingBegan
from session_core.reducer import REDUCER_VERSION

_LISTENING = ("turns",)


_TURN_RETRY_S = 0.1
"""How soon a suspected session looks again whether it is its turn."""


class Stages(NamedTuple):
    """What all sessions of a worker share."""

    plugin: ModelPlugin
    turns: TurnDetectionService
    transcription: TranscriptionStage
    opening: asyncio.Semaphore
    """Bounds how many contexts are built at once."""
    suspects: asyncio.Lock
    """Sessions whose last worker died before it completed a unit begin one at a time, until they have shown
    that it was not them: a session that kills its worker takes no other one's good name along."""


class SessionRunner:
    """
    Serves one session as one worker generation.

    Args:
        store: where the journal lies.
        stages: the loaded model, and what stands around it.
        held_since_ms: when the slot was taken, in store time.
    """

    def __init__(
        self,
        store: EventStore,
        stages: Stages,
        settings: WorkerSettings,
        *,
        session_id: str,
        generation: int,
        held_since_ms: int,
    ) -> None:
        plugin = stages.plugin
        self._stages = stages
        self._settings = settings
        self._held_since_ms = held_since_ms
        self._log = SessionLog(
            store,
            settings,
            session_id,
            generation,
            ledger=ContextLedger(plugin.window_units, plugin.window_samples),
            item_audio=ItemAudio(settings.longest_transcribed_s),
            turn_audio=TurnAudio(),
        )
        self._logger = structlog.get_logger().bind(
            session_id=session_id, generation=generation, worker=settings.worker_id
        )

    @property
    def owns_session(self) -> bool:
        """Whether the log says that the session is this worker's."""
        return self._log.standing is Standing.OURS

    @property
    def is_over(self) -> bool:
        """Whether this generation has ended, for the log or in this process."""
        return self._log.standing is Standing.OVER

    def leave(self, reason: str) -> None:
        """Give the session up before its next unit, so that another worker is assigned."""
        self._log.leave(reason)

    async def run(self) -> None:
        """Serve until the generation is over. Whatever goes wrong ends it, and nothing else."""
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._log.follow())
                if await self._is_claimed():
                    await self._serve(tasks)
                following.cancel()
        except Exception as error:  # noqa: BLE001 - the session's outer edge
            await self._fail(_first_cause(error))
        finally:
            self._log.close()

    async def _is_claimed(self) -> bool:
        """Wait for the log to assign the session; without that the slot is only reserved for a while."""
        log, timeout_ms = self._log, self._settings.claim_timeout_ms
        due_ms = self._held_since_ms + timeout_ms
        while log.standing is Standing.WAITING:
            wait_ms = due_ms - log.now_ms()
            if wait_ms <= 0:
                self._logger.warning("slot.lapsed")
                return False
            read_to = log.state.position
            await log.pulse.wait(wait_ms / 1000)
            if read_to < log.state.position < (self._held_since_ms, 0):
                # Still reading what is older than the hold: the assignment may lie further on.
                due_ms = log.now_ms() + timeout_ms
        return log.standing is Standing.OURS

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        log = self._log
        reason = log.leaving or self._why_unfit()
        if reason is None:
            await self._begin(tasks)
            async with self._stages.opening, asyncio.timeout(self._settings.open_timeout_s):
                session = await self._stages.plugin.open(log.ledger.context(log.state))
            log.ledger.narrow()
            self._logger.info("session.claimed", unit=log.state.clock.next_unit)
            try:
                await self._work(session)
            finally:
                await session.aclose()
        if log.standing is not Standing.OURS:
            self._logger.info("session.left", phase=log.state.phase.value)
            return
        reason = reason or log.leaving or ""
        self._logger.info("session.declined", reason=reason)
        await log.append_last(AssignmentDeclined(log.generation, reason), stamped=False)

    async def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """Say in the log that the work begins; a suspected session waits for its turn before."""
        log, suspects = self._log, self._stages.suspects
        if log.state.worker.barren:
            while suspects.locked() and log.goes_on:
                await log.pulse.wait(_TURN_RETRY_S)
            if not log.goes_on:
                return
            await suspects.acquire()
            tasks.create_task(self._stand_trial(suspects))
        await log.folded(log.append(ServingBegan()))

    async def _stand_trial(self, suspects: asyncio.Lock) -> None:
        """
        Keep the other suspected sessions waiting until this one has completed a unit, or has nothing to do.
        """
        log = self._log
        try:
            while log.goes_on and has_work(log.state) and not log.state.worker.completed_units:
                await log.pulse.wait()
        finally:
            suspects.release()

    def _why_unfit(self) -> str | None:
        """Tell why this worker cannot serve the session, if it cannot."""
        state, profile = self._log.state, self._stages.plugin.profile
        if state.pinned.profile != profile:
            return f"the session's model is not the {profile.model} of this worker"
        if state.pinned.reducer_version != REDUCER_VERSION:
            return f"reducer version {state.pinned.reducer_version}"
        if state.worker.last_n:
            return "another process served this generation"
        return None

    async def _work(self, session: ModelSession) -> None:
        """Work with an open model session until the session is not this worker's any more."""
        log, timeout_s = self._log, self._settings.step_timeout_s
        rate_hz = self._stages.plugin.profile.output_sample_rate_hz
        listener = Listener(log, self._stages.turns)
        units = UnitWork(log, session, rate_hz, timeout_s, listener)
        units.join_output()
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(self._beside(listener, Rendering(log, session, rate_hz, timeout_s)))
            await units.run()
            beside.cancel()

    async def _beside(self, listener: Listener, rendering: Rendering) -> None:
        """Do what goes on beside the units, while there is such work, until cancelled."""
        log, stages = self._log, self._stages
        side = SideResponses(log, stages.plugin, self._settings.step_timeout_s)
        transcripts = Transcripts(log, stages.transcription)
        async with asyncio.TaskGroup() as tasks:
            listening = DueTasks(tasks, listener.run)
            rendered = DueTasks(tasks, rendering.render)
            answered = DueTasks(tasks, side.give)
            transcribed = DueTasks(tasks, transcripts.make)
            is_busy = False
            while log.goes_on:
                state = log.state
                if state.config.turn_detection is not None:
                    listening.look(_LISTENING)
                is_due = bool(state.renders or state.side or state.transcribing)
                if not is_due and not is_busy:
                    await log.pulse.wait()
                    continue
                is_busy = is_due
                rendered.look([str(render.unit) for render in state.renders[:1]])
                answered.look([response.response_id for response in state.side])
                transcribed.look(state.transcribing)
                await log.pulse.wait()

    async def _fail(self, cause: BaseException) -> None:
        log = self._log
        match cause:
            case StoreClosed():
                return
            case UnknownSession():
                self._logger.warning("session.unknown")
                return
            case CursorLost():
                # The fold is void, and with it the number of our next append: another generation goes on.
                self._logger.warning("session.cursor_lost", reason=str(cause))
                await log.append_last(AssignmentDeclined(log.generation, str(cause)), stamped=False)
                return
            case TimeoutError():
                reason = "the model took too long"
                self._logger.error("model.stuck")
            case WorkerError():
                reason = str(cause)
                self._logger.error("model.failed", reason=reason)
            case _:
                reason = f"{type(cause).__name__}: {cause}"
                self._logger.error("model.crashed", exc_info=cause)
        await log.append_last(ModelFailed(reason), stamped=True)


def _first_cause(error: BaseException) -> BaseException:
    """Give the first error of a group that is none itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
