"""Keeps a worker's turn detection running: a model that breaks is loaded again, a few times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gpu_worker.pulse import Pulse
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.errors import DetectionFailed
from gpu_worker.turns.settings import DetectionSettings
from gpu_worker.turns.stage import Hearing, TurnDetectionStage, Turns

_RESTARTS = 3
"""After so many failures something is wrong that loading again does not cure."""


class TurnDetectionService:
    """
    The stage that listens now, and its successors. Lives as long as `run`.

    Args:
        load: gives a speech model; blocking work.
        input_rate_hz: rate of what sessions feed.
    """

    def __init__(self, load: Callable[[], SpeechModel], input_rate_hz: int) -> None:
        self._load = load
        self._input_rate_hz = input_rate_hz
        self._stage: TurnDetectionStage | None = None
        self._failure: DetectionFailed | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """
        Load the model.

        Raises:
            SpeechModelUnavailable: it is not installed.
        """
        model = await asyncio.to_thread(self._load)
        self._stage = TurnDetectionStage(model, self._input_rate_hz)
        self._changed.set()

    async def run(self) -> None:
        """Listen until cancelled; ends early once there is no point in loading the model again."""
        last: DetectionFailed | None = None
        for restart in range(_RESTARTS + 1):
            if self._stage is None:
                await self.start()
            assert self._stage is not None
            try:
                await self._stage.run()
            except DetectionFailed as failure:
                self._stage = None
                self._changed.clear()
                structlog.get_logger().error("turns.restarting", failures=restart + 1)
                last = failure
        self._failure = last
        self._changed.set()
        structlog.get_logger().error("turns.given_up", reason=str(last))

    async def open(self, settings: DetectionSettings, hearing: Hearing, news: Pulse | None = None) -> Turns:
        """
        Begin to listen to a session as the stage does; waits while the model is being loaded again.

        Raises:
            DetectionFailed: no session is heard in this worker any more.
        """
        while True:
            await self._changed.wait()
            if self._failure is not None:
                raise DetectionFailed(self._failure.reason)
            stage = self._stage
            if stage is not None and stage.failure is None:
                return stage.open(settings, hearing, news)
            self._changed.clear()
