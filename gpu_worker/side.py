"""Responses outside the conversation: given beside the units, each by a task of its own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import structlog

from gpu_worker.errors import WorkerError
from gpu_worker.output_audio import OutputAudio
from gpu_worker.plugin import ModelPlugin, Pcm, SidePiece, SideRequest
from gpu_worker.session_log import SessionLog
from session_core.config import Modality
from session_core.events import SideOutput
from session_core.state import Response

_NO_AUDIO: Pcm = np.zeros(0, np.float32)


class SideResponses:
    """
    Lives as long as the worker serves the session.

    A response that a lost worker began is not begun again: the model is told what was said of it already, and
    goes on from there. One of which nothing is in the journal is as good as new.

    Args:
        log: the session's.
        plugin: the loaded model.
        piece_timeout_s: longest work on one piece.
    """

    def __init__(self, log: SessionLog, plugin: ModelPlugin, piece_timeout_s: float) -> None:
        self._log = log
        self._plugin = plugin
        self._piece_timeout_s = piece_timeout_s

    async def give(self, response_id: str) -> None:
        """Append a response piece by piece. What fails, fails this response alone."""
        response = next((one for one in self._log.state.side if one.response_id == response_id), None)
        if response is None:
            return
        try:
            await self._give(response)
        except (WorkerError, TimeoutError, NotImplementedError) as error:
            structlog.get_logger().warning(
                "side_response.failed",
                session_id=self._log.session_id,
                response_id=response_id,
                reason=str(error) or type(error).__name__,
            )
            self._log.append(SideOutput(response_id, failed=True))

    async def _give(self, response: Response) -> None:
        state, audio = self._log.state, OutputAudio(self._plugin.profile.output_sample_rate_hz)
        given = response.options.input
        said = "" if response.message is None else response.message.text
        items = state.history if given is None else given
        request = SideRequest(state.pinned.session_id, response, items, state.config, said)
        async with aclosing(self._plugin.respond(request)) as pieces:
            while True:
                async with asyncio.timeout(self._piece_timeout_s):
                    piece = await anext(pieces, None)
                is_last = piece is None or piece.last
                self._log.append(self._output(response, piece or SidePiece(), audio, is_last=is_last))
                if is_last:
                    return
                await self._log.room()

    def _output(
        self, response: Response, piece: SidePiece, audio: OutputAudio, *, is_last: bool
    ) -> SideOutput:
        data = b""
        if response.modality is Modality.AUDIO:
            pcm = _NO_AUDIO if piece.audio is None else piece.audio
            data = audio.convert(pcm, response.output_format, last=is_last)
        return SideOutput(response.response_id, piece.text, data, piece.calls, piece.tokens, is_last)
