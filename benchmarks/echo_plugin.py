"""
The load generator's model: each unit of input is said back at once, as that unit's audio.

    duplex worker --model benchmarks.echo_plugin:EchoPlugin

It costs next to nothing, so what is measured is the service.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_worker.errors import ModelError
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, UnitInput, UnitOutput
from session_core.config import ModelProfile
from session_core.events import Decision

UNIT_SAMPLES = 1_920
RATE_HZ = 24_000


class EchoPlugin(ModelPlugin):
    """
    Says back what it hears, without end. Its clock waits for input for a minute: no silence gets in between.
    """

    profile = ModelProfile(
        model="echo",
        input_sample_rate_hz=RATE_HZ,
        output_sample_rate_hz=RATE_HZ,
        unit_samples=UNIT_SAMPLES,
        silence_grace_ms=60_000,
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        if options:
            raise ModelError("the echo has no options")

    async def open(self, context: Context) -> ModelSession:  # noqa: ARG002 - an echo has no context
        """Nothing to build: a unit depends on nothing but its input."""
        return _EchoSession()


class _EchoSession(ModelSession):
    async def step(self, unit: UnitInput) -> UnitOutput:
        if not unit.plan.may_speak:
            return UnitOutput(Decision.LISTEN)
        return UnitOutput(Decision.SPEAK, audio=unit.pcm)

    async def aclose(self) -> None:
        return
