"""
One session in this worker: follows its journal, feeds the model unit by unit, and appends what came out.

Three tasks share one fold. `follow` reads and folds; `units` works on the next unit when the fold says that
there is one, and waits until the fold has taken its outcome before it looks again; `render` gives the audio
that units left for later. Nothing that this worker appends counts before it is read back, so what another
owner wrote first has always been seen.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from enum import Enum

import structlog

from eventstore.errors import CursorLost, StoreClosed, UnknownSession
from eventstore.follow import Follower
from eventstore.store import EventStore
from gpu_worker.audio import samples_within
from gpu_worker.context import ContextLedger
from gpu_worker.errors import ModelError, WorkerError
from gpu_worker.output_audio import TAIL_S, OutputAudio
from gpu_worker.plugin import ModelPlugin, ModelSession, UnitInput, UnitOutput
from gpu_worker.pulse import Pulse
from gpu_worker.settings import WorkerSettings
from session_core.audio import AudioFormat
from session_core.events import (
    AssignmentDeclined,
    Decision,
    ModelFailed,
    ModelUnitCompleted,
    OutputRendered,
    SpeechStarted,
    SpeechStopped,
)
from session_core.journal import Body, Role, Stamp, encode_entry
from session_core.reducer import REDUCER_VERSION, reduce_bytes
from session_core.state import Phase, Render, State
from session_core.units import UnitPlan, next_unit, silence_due_ms

_QUIET_RETRY_S = 0.25
"""How soon a unit that only waits for the store to answer is looked at again."""


class Standing(Enum):
    """
    How a session's log stands to one worker's generation. WAITING: not assigned yet.
    """

    WAITING = "waiting"
    OURS = "ours"
    OVER = "over"


def standing(state: State, worker_id: str, generation: int) -> Standing:
    """
    Tell whether the session is this worker's, by the log alone.
    """
    hold = state.worker
    if state.phase is Phase.ENDED or hold.generation > generation:
        return Standing.OVER
    if hold.generation < generation:
        return Standing.WAITING
    return Standing.OURS if hold.worker == worker_id else Standing.OVER


class SessionRunner:
    """
    Serves one session as one worker generation; lives from the hold on its slot to that generation's end.

    Args:
        store: where the journal lies.
        plugin: the loaded model.
        opening: bounds how many contexts are built at once in this worker.
        held_since_ms: when the slot was taken, in store time.
    """

    def __init__(
        self,
        store: EventStore,
        plugin: ModelPlugin,
        settings: WorkerSettings,
        *,
        session_id: str,
        generation: int,
        held_since_ms: int,
        opening: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._plugin = plugin
        self._settings = settings
        self._session_id = session_id
        self._generation = generation
        self._held_since_ms = held_since_ms
        self._opening = opening
        self._state = State()
        self._standing = Standing.WAITING
        self._ledger = ContextLedger(plugin.window_units, plugin.window_samples)
        self._unit_audio = OutputAudio(plugin.profile.output_sample_rate_hz)
        self._rendered_audio = OutputAudio(plugin.profile.output_sample_rate_hz)
        self._pulse = Pulse()
        self._follower = store.follow(session_id)
        self._writer = store.writer(session_id)
        self._n = 0
        """Number of this generation's last append."""
        self._silence_from_ms = 0
        """No silence stands in before; moves on while the store does not answer."""
        self._leaving: str | None = None
        """Why the session is to be given to another worker; None while it is not."""
        self._log = structlog.get_logger().bind(
            session_id=session_id, generation=generation, worker=settings.worker_id
        )

    @property
    def owns_session(self) -> bool:
        """
        Whether the log says that the session is this worker's.
        """
        return self._standing is Standing.OURS

    @property
    def is_over(self) -> bool:
        """
        Whether this generation has ended, for the log or in this process.
        """
        return self._standing is Standing.OVER

    def leave(self, reason: str) -> None:
        """
        Give the session up before its next unit, so that another worker is assigned.
        """
        self._leaving = self._leaving or reason
        self._pulse.fire()

    async def run(self) -> None:
        """
        Serve until the generation is over. Whatever goes wrong ends it, and nothing else.
        """
        try:
            await self._follow_and_serve()
        except Exception as error:  # noqa: BLE001 - the session's outer edge
            await self._fail(_first_cause(error))
        finally:
            self._standing = Standing.OVER
            self._follower.close()
            self._writer.close()

    # --- follow ---------------------------------------------------------------------------------------------

    async def _follow_and_serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(self._follower))
            if await self._is_claimed():
                await self._serve()
            following.cancel()

    async def _follow(self, follower: Follower) -> None:
        ledger, worker_id, generation = self._ledger, self._settings.worker_id, self._generation
        async for batch in follower:
            state = self._state
            for position, data in batch:
                reduction = reduce_bytes(state, position, data)
                state = reduction.state
                if reduction.changes:
                    ledger.take(reduction.changes, state)
            self._state = state
            self._standing = standing(state, worker_id, generation)
            self._pulse.fire()

    async def _is_claimed(self) -> bool:
        """
        Wait for the log to assign the session; without that the slot is only reserved for a while.
        """
        due_ms = self._held_since_ms + self._settings.claim_timeout_ms
        while self._standing is Standing.WAITING:
            wait_ms = due_ms - self._store.now_ms()
            if wait_ms <= 0:
                self._log.warning("slot.lapsed")
                return False
            read_to = self._state.position
            await self._pulse.wait(wait_ms / 1000)
            if read_to < self._state.position < (self._held_since_ms, 0):
                # Still reading what is older than the hold: the assignment may lie further on.
                due_ms = self._store.now_ms() + self._settings.claim_timeout_ms
        return self._standing is Standing.OURS

    # --- serve ----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        reason = self._leaving or self._why_unfit()
        if reason is None:
            async with self._opening, asyncio.timeout(self._settings.open_timeout_s):
                session = await self._plugin.open(self._ledger.context(self._state))
            self._ledger.narrow()
            self._join_output(session)
            self._log.info("session.claimed", unit=self._state.clock.next_unit)
            try:
                await self._work(session)
            finally:
                await session.aclose()
        if self._standing is not Standing.OURS:
            self._log.info("session.left", phase=self._state.phase.value)
            return
        reason = reason or self._leaving or ""
        self._log.info("session.declined", reason=reason)
        await self._append_last(encode_entry(AssignmentDeclined(self._generation, reason)))

    def _join_output(self, session: ModelSession) -> None:
        """
        Go on with the converted audio of a response in which another worker stopped.
        """
        response, rate_hz = self._state.response, self._plugin.profile.output_sample_rate_hz
        if response is None or response.message is None or response.output_format.sample_rate_hz == rate_hz:
            return
        spoken = session.spoken(round(rate_hz * TAIL_S))
        if spoken is not None:
            self._unit_audio.resume(response.output_format, response.message.samples, spoken)

    def _why_unfit(self) -> str | None:
        """
        Tell why this worker cannot serve the session, if it cannot.
        """
        pinned = self._state.pinned
        if pinned.profile != self._plugin.profile:
            return f"the session's model is not the {self._plugin.profile.model} of this worker"
        if pinned.reducer_version != REDUCER_VERSION:
            return f"reducer version {pinned.reducer_version}"
        if self._state.worker.last_n:
            return "another process served this generation"
        return None

    async def _work(self, session: ModelSession) -> None:
        async with asyncio.TaskGroup() as tasks:
            rendering = tasks.create_task(self._render(session))
            while self._goes_on:
                plan = self._plan()
                if plan is None:
                    await self._pulse.wait(self._silence_wait_s())
                else:
                    await self._run_unit(session, plan)
            rendering.cancel()

    @property
    def _goes_on(self) -> bool:
        return self._standing is Standing.OURS and self._leaving is None

    # --- units ----------------------------------------------------------------------------------------------

    def _plan(self) -> UnitPlan | None:
        """
        Give the next unit. Silence stands in only where nothing is unread, as far as this process can know.
        """
        plan = next_unit(self._state, self._silence_time_ms())
        if plan is not None and plan.silence_samples and self._follower.buffered_bytes:
            return None
        return plan

    def _silence_time_ms(self) -> int:
        """
        Give the time by which silence may be due; 0 while it may not be.

        It may not while the store does not answer, nor until what was kept back meanwhile had time to arrive.
        """
        now_ms = self._store.now_ms()
        if self._store.last_contact_s() >= self._settings.store_quiet_s:
            self._silence_from_ms = now_ms + self._state.pinned.profile.silence_grace_ms
        return now_ms if now_ms >= self._silence_from_ms else 0

    def _silence_wait_s(self) -> float | None:
        due_ms = silence_due_ms(self._state)
        if due_ms is None:
            return None
        wait_s = (due_ms - self._store.now_ms()) / 1000
        return wait_s if wait_s > 0 else _QUIET_RETRY_S

    async def _run_unit(self, session: ModelSession, plan: UnitPlan) -> None:
        state = self._state
        is_interrupted = plan.epoch != self._ledger.last_epoch
        if is_interrupted:
            self._unit_audio.end()
        pcm = self._ledger.unit_input(plan, state)
        unit = UnitInput(plan, pcm, is_interrupted, state.history, state.config, state.response)
        async with asyncio.timeout(self._settings.step_timeout_s):
            output = await session.step(unit)
        for edge in output.edges:
            fact = SpeechStarted if edge.kind == "started" else SpeechStopped
            self._append(fact(edge.sample))
        self._append(self._completed(plan, output))
        while self._standing is Standing.OURS and self._state.clock.next_unit <= plan.unit:
            await self._pulse.wait()

    def _completed(self, plan: UnitPlan, output: UnitOutput) -> ModelUnitCompleted:
        return ModelUnitCompleted(
            unit=plan.unit,
            epoch=plan.epoch,
            first_sample=plan.first_sample,
            input_samples=plan.input_samples,
            silence_samples=plan.silence_samples,
            decision=output.decision,
            token_ids=output.token_ids,
            codes=output.codes,
            text=output.text,
            audio=self._converted(output),
            answers=plan.answers,
            output_format=None if self._state.response is not None else self._output_format,
        )

    def _converted(self, output: UnitOutput) -> bytes | None:
        if output.decision is Decision.LISTEN:
            self._unit_audio.end()
            return b""
        if output.audio is None:
            return None
        is_last = output.decision is Decision.TURN_END
        return self._unit_audio.convert(output.audio, self._output_format, last=is_last)

    @property
    def _output_format(self) -> AudioFormat:
        state = self._state
        return state.config.output_format if state.response is None else state.response.output_format

    @property
    def _response_id(self) -> str | None:
        return None if self._state.response is None else self._state.response.response_id

    # --- render ---------------------------------------------------------------------------------------------

    async def _render(self, session: ModelSession) -> None:
        while True:
            renders = self._state.renders
            if renders and self._is_due(renders[0].unit):
                response_id = self._response_id
                await self._render_unit(session, renders[0])
                if response_id != self._response_id:
                    self._rendered_audio.end()
            else:
                await self._pulse.wait()

    def _is_due(self, unit: int) -> bool:
        """
        Tell whether this unit's audio is the next that the session waits for.
        """
        renders = self._state.renders
        return self._goes_on and bool(renders) and renders[0].unit == unit

    async def _render_unit(self, session: ModelSession, due: Render) -> None:
        """
        Append the parts that are missing, until they are all there or nobody needs them.
        """
        audio_format = self._output_format
        unit = self._ledger.unit_to_render(due.unit)
        rate_hz = self._plugin.profile.output_sample_rate_hz
        first_sample = samples_within(due.next_sample, audio_format.sample_rate_hz, rate_hz)
        number, at = due.next_part, due.next_sample
        async with aclosing(session.render(unit, first_sample)) as parts:
            while self._is_due(due.unit):
                async with asyncio.timeout(self._settings.step_timeout_s):
                    part = await anext(parts, None)
                if part is None:
                    raise ModelError(f"the audio of unit {due.unit} ended without a last part")
                if not self._is_due(due.unit):
                    return
                is_last = part.last and unit.decision is Decision.TURN_END
                audio = self._rendered_audio.convert(part.audio, audio_format, last=is_last)
                self._append(OutputRendered(due.unit, number, at, audio, part.last))
                number, at = number + 1, at + audio_format.samples(len(audio))
                if part.last:
                    break
                await self._writer.room()
        while self._is_due(due.unit):
            await self._pulse.wait()

    # --- append ---------------------------------------------------------------------------------------------

    def _append(self, body: Body) -> None:
        """
        Append as this generation. The fold, not the acknowledgement, tells what came of it.
        """
        self._writer.append(self._stamped(body))

    def _stamped(self, body: Body) -> bytes:
        self._n += 1
        return encode_entry(body, Stamp(Role.WORKER, self._generation, self._n))

    async def _append_last(self, data: bytes) -> None:
        """
        Append the generation's last word and wait until it is in the journal; not for ever.
        """
        with suppress(TimeoutError, StoreClosed):
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self._writer.append(data)

    async def _fail(self, cause: BaseException) -> None:
        match cause:
            case StoreClosed():
                return
            case UnknownSession():
                self._log.warning("session.unknown")
            case CursorLost():
                # The fold is void, and with it the number of our next append: another generation goes on.
                self._log.warning("session.cursor_lost", reason=str(cause))
                await self._append_last(encode_entry(AssignmentDeclined(self._generation, str(cause))))
            case TimeoutError():
                self._log.error("model.stuck")
                await self._append_last(self._stamped(ModelFailed("the model took too long")))
            case WorkerError():
                self._log.error("model.failed", reason=str(cause))
                await self._append_last(self._stamped(ModelFailed(str(cause))))
            case _:
                self._log.error("model.crashed", exc_info=cause)
                await self._append_last(self._stamped(ModelFailed(f"{type(cause).__name__}: {cause}")))


def _first_cause(error: BaseException) -> BaseException:
    """
    Give the first error of a group that is none itself.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
