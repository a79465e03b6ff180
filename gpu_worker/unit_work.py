"""Feeds the model unit by unit: plans, works, and appends what came out."""

from __future__ import annotations

import asyncio

from gpu_worker.listening import Listener
from gpu_worker.output_audio import TAIL_S, OutputAudio
from gpu_worker.plugin import ModelSession, UnitInput, UnitOutput
from gpu_worker.session_log import SessionLog
from session_core.audio import AudioFormat
from session_core.config import Modality
from session_core.events import Decision, ModelUnitCompleted
from session_core.state import State
from session_core.units import UnitPlan, next_unit, silence_due_ms

_QUIET_RETRY_S = 0.25
"""How soon a unit that only waits for the store to answer is looked at again."""


class UnitWork:
    """
    The units of one session in one model session; lives as long as that.

    Args:
        log: the session's.
        rate_hz: rate of the model's output.
        step_timeout_s: longest work on one unit.
        listener: the session's turn detection.
    """

    def __init__(
        self,
        log: SessionLog,
        session: ModelSession,
        rate_hz: int,
        step_timeout_s: float,
        listener: Listener,
    ) -> None:
        self._log = log
        self._session = session
        self._rate_hz = rate_hz
        self._step_timeout_s = step_timeout_s
        self._audio = OutputAudio(rate_hz)
        self._listener = listener

    def join_output(self) -> None:
        """Go on with the converted audio of a response in which another worker stopped."""
        response = self._log.state.response
        if response is None or response.message is None:
            return
        if response.output_format.sample_rate_hz == self._rate_hz:
            return
        spoken = self._session.spoken(round(self._rate_hz * TAIL_S))
        if spoken is not None:
            self._audio.resume(response.output_format, response.message.samples, spoken)

    async def run(self) -> None:
        """
        Work until the session is not this worker's any more.

        Raises:
            ModelError: the model cannot go on.
            TimeoutError: it took too long.
        """
        log = self._log
        while log.goes_on:
            plan = await self._next_plan()
            if plan is None:
                await log.pulse.wait(self._silence_wait_s())
            else:
                await self._work_on(plan)

    async def _next_plan(self) -> UnitPlan | None:
        """
        Give the next unit, once the speech in its input is told: it may interrupt, or ask for an answer.
        """
        plan, heard_to = self._plan(), 0
        while plan is not None and heard_to < plan.first_sample + plan.input_samples:
            heard_to = plan.first_sample + plan.input_samples
            if self._log.state.config.turn_detection is None:
                break
            await self._listener.heard(heard_to)
            plan = self._plan()
        return plan if self._log.goes_on else None

    def _plan(self) -> UnitPlan | None:
        log = self._log
        plan = next_unit(log.state, log.now_ms())
        if plan is None or not plan.silence_samples:
            return plan
        is_asked = plan.answers is not None and not log.has_unread
        return plan if is_asked or log.silence_may_stand_in() else None

    def _silence_wait_s(self) -> float | None:
        due_ms = silence_due_ms(self._log.state)
        if due_ms is None:
            return None
        wait_s = (due_ms - self._log.now_ms()) / 1000
        return wait_s if wait_s > 0 else _QUIET_RETRY_S

    async def _work_on(self, plan: UnitPlan) -> None:
        log, state = self._log, self._log.state
        is_interrupted = plan.epoch != log.ledger.last_epoch
        if is_interrupted:
            self._audio.end()
        pcm = log.ledger.unit_input(plan)
        unit = UnitInput(plan, pcm, is_interrupted, state.history, state.config, state.response)
        async with asyncio.timeout(self._step_timeout_s):
            output = await self._session.step(unit)
        await log.folded(log.append(self._completed(plan, output, state)))

    def _completed(self, plan: UnitPlan, output: UnitOutput, state: State) -> ModelUnitCompleted:
        """Give the unit's entry; `state` is what it was planned in."""
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
            audio=self._converted(plan, output, state),
            answers=plan.answers,
            calls=output.calls,
            output_format=None if state.response is not None else state.config.output_format,
            late=plan.late,
        )

    def _converted(self, plan: UnitPlan, output: UnitOutput, state: State) -> bytes | None:
        if plan.late:
            return b""  # what was being said goes on later: its audio is one stream
        if output.decision is Decision.LISTEN:
            self._audio.end()
            return b""
        if modality_of(state) is Modality.TEXT:
            return b""
        if output.audio is None:
            return None
        is_last = output.decision is Decision.TURN_END or bool(output.calls)
        return self._audio.convert(output.audio, format_of(state), last=is_last)


def format_of(state: State) -> AudioFormat:
    """Give the format of what is said now."""
    return state.config.output_format if state.response is None else state.response.output_format


def modality_of(state: State) -> Modality:
    """Tell what is made of what is said now."""
    return state.config.output_modality if state.response is None else state.response.modality
