"""
A worker process of the tests: settings as JSON on the command line; serves until it is killed.

    python -m tests.vllm.worker_process '{"worker_id": ...}'
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpu_worker.frames_lm import FramesLmPlugin, FramesLmSettings
from gpu_worker.main import run_worker
from gpu_worker.plugin import Context, ModelSession, UnitInput, UnitOutput
from gpu_worker.settings import WorkerSettings


class HoldingSettings(FramesLmSettings, frozen=True, kw_only=True):
    """Where the first owner of a session stops: within a unit, when the model has worked on it."""

    hold_session: str = ""
    hold_unit: int = -1
    hold_file: str = ""
    """Made when it has come there."""


class _Holding(ModelSession):
    def __init__(self, session: ModelSession, settings: HoldingSettings) -> None:
        self._session = session
        self._settings = settings

    async def step(self, unit: UnitInput) -> UnitOutput:
        output = await self._session.step(unit)
        if unit.plan.unit == self._settings.hold_unit:
            Path(self._settings.hold_file).touch()  # noqa: ASYNC240 - once, in a test
            await asyncio.Event().wait()
        return output

    async def aclose(self) -> None:
        await self._session.aclose()


class HoldingPlugin(FramesLmPlugin):
    """`frames_lm` for all sessions but the one that is held at its first owner."""

    def __init__(self, settings: HoldingSettings) -> None:
        super().__init__(settings)
        self._holding = settings

    async def open(self, context: Context) -> ModelSession:
        """Hold only as the first owner."""
        session = await super().open(context)
        is_held = context.session_id == self._holding.hold_session and not context.units
        return _Holding(session, self._holding) if is_held else session


def holding(options: Mapping[str, str]) -> HoldingPlugin:
    """Make the plugin; the workers find it by import path."""
    return HoldingPlugin(HoldingSettings.from_options(options))


if __name__ == "__main__":
    run_worker(msgspec.json.decode(sys.argv[1], type=WorkerSettings))
