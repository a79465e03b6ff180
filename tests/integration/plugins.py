"""
Models for the worst: `loopback` that kills its process, or stands still at a chosen place.

The instructions of a session say what to do, so one stack serves misbehaving sessions beside ordinary ones. A
worker finds them by import path ("tests.integration.plugins:Unruly").
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

from gpu_worker.loopback import (
    LoopbackPartsPlugin,
    LoopbackPartsSession,
    LoopbackPlugin,
    LoopbackSession,
)
from gpu_worker.plugin import Context, ModelSession, RenderedPart, UnitInput, UnitOutput
from session_core.events import Decision, ModelUnitCompleted

POISON = "kill every process that works on this"
HOLD_AFTER_UNIT = "the first owner stops after its third unit of speech"
HOLD_AFTER_PART = "the first owner stops after the first part of its second unit of speech"


class _Poisoned(LoopbackSession):
    async def step(self, unit: UnitInput) -> UnitOutput:
        os.kill(os.getpid(), signal.SIGKILL)
        return await super().step(unit)


class _HoldingAfterUnit(LoopbackSession):
    _spoken = 0

    async def step(self, unit: UnitInput) -> UnitOutput:
        if self._spoken == 3:
            await asyncio.Event().wait()
        output = await super().step(unit)
        self._spoken += output.decision is not Decision.LISTEN
        return output


class _HoldingAfterPart(LoopbackPartsSession):
    _begun = 0

    async def render(self, unit: ModelUnitCompleted, first_sample: int) -> AsyncGenerator[RenderedPart, None]:
        self._begun += 1
        async for part in super().render(unit, first_sample):
            yield part
            if self._begun == 2:
                await asyncio.Event().wait()


class Unruly(LoopbackPlugin):
    """`loopback` for all sessions but those whose instructions ask for worse."""

    async def open(self, context: Context) -> ModelSession:
        """Hold only as the first owner; kill always."""
        wish = context.config.instructions
        if wish == POISON:
            return _Poisoned(context)
        if wish == HOLD_AFTER_UNIT and not context.units:
            return _HoldingAfterUnit(context)
        return await super().open(context)


class UnrulyParts(LoopbackPartsPlugin):
    """The same for `loopback_parts`."""

    async def open(self, context: Context) -> ModelSession:
        """Hold only as the first owner."""
        if context.config.instructions == HOLD_AFTER_PART and not context.units:
            return _HoldingAfterPart(context)
        return await super().open(context)
