"""Gives the audio that units left for later, part by part."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from gpu_worker.audio import samples_within
from gpu_worker.errors import ModelError
from gpu_worker.output_audio import OutputAudio
from gpu_worker.plugin import ModelSession
from gpu_worker.session_log import SessionLog
from gpu_worker.unit_work import format_of
from session_core.events import Decision, OutputRendered
from session_core.state import Render


class Rendering:
    """
    The rendered parts of one session in one model session; lives as long as that.

    Args:
        log: the session's.
        rate_hz: rate of the model's output.
        part_timeout_s: longest work on one part.
    """

    def __init__(self, log: SessionLog, session: ModelSession, rate_hz: int, part_timeout_s: float) -> None:
        self._log = log
        self._session = session
        self._rate_hz = rate_hz
        self._part_timeout_s = part_timeout_s
        self._audio = OutputAudio(rate_hz)
        self._response_id = ""
        """The response that the last part belonged to."""

    async def render(self, unit: str) -> None:
        """
        Append the parts of a unit that are missing, until they are all there or nobody needs them.

        Raises:
            ModelError: the model cannot go on.
            TimeoutError: it took too long.
        """
        state = self._log.state
        if state.response is None or not self._is_due(int(unit)):
            return
        if state.response.response_id != self._response_id:
            self._response_id = state.response.response_id
            self._audio.end()
        await self._render(state.renders[0])

    def _is_due(self, unit: int) -> bool:
        """Tell whether this unit's audio is the next that the session waits for."""
        renders = self._log.state.renders
        return self._log.goes_on and bool(renders) and renders[0].unit == unit

    async def _render(self, due: Render) -> None:
        audio_format = format_of(self._log.state)
        unit = self._log.ledger.unit_to_render(due.unit)
        first_sample = samples_within(due.next_sample, audio_format.sample_rate_hz, self._rate_hz)
        number, at = due.next_part, due.next_sample
        async with aclosing(self._session.render(unit, first_sample)) as parts:
            while self._is_due(due.unit):
                async with asyncio.timeout(self._part_timeout_s):
                    part = await anext(parts, None)
                if part is None:
                    raise ModelError(f"the audio of unit {due.unit} ended without a last part")
                if not self._is_due(due.unit):
                    return
                is_last = part.last and (unit.decision is Decision.TURN_END or bool(unit.calls))
                audio = self._audio.convert(part.audio, audio_format, last=is_last)
                self._log.append(OutputRendered(due.unit, number, at, audio, part.last))
                number, at = number + 1, at + audio_format.samples(len(audio))
                if part.last:
                    break
                await self._log.room()
