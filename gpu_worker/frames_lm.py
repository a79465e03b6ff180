"""
`frames_lm`: the smallest native duplex model on vLLM, for measuring and as a pattern. It understands nothing.

It has the shape of the Moshi family: each unit of 80 ms is one position of a causal language model, made of
what was heard in the unit and of what the model said in the unit before; one token comes out, and it decides
whether the model listens or speaks. Any Llama-like checkpoint will do, with random weights too: what is heard
is the unit's loudness, what is said a tone for the token.

What a model of this kind has to do for its sessions is all here:

- One resumable request a session. A cancel or a barge-in only ends what is being said: what the model said
  stands in its context, and nothing is computed anew.
- The context is a prompt and the last positions. Where it begins is a pure function of the unit's number, so
  a worker that takes over has the same window; it moves on by half a window at a time.
- Each unit records its position, and where a window begins also the prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np

from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling, unit_seed
from gpu_worker.engine.settings import EngineSettings
from gpu_worker.engine.stream import EngineStream
from gpu_worker.errors import ModelError
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, Pcm, UnitInput, UnitOutput
from session_core.config import ModelProfile
from session_core.events import Decision
from session_core.units import UnitPlan

RATE_HZ = 24_000
UNIT_SAMPLES = 1_920
LEVELS = 16
"""Loudness of a unit, in steps of 5 dB; 0 is silence."""
PROMPT_BYTES = 63
"""Of the instructions, so much becomes the prompt."""
BEGIN_TOKEN = 1
_BEGINS_ONE_IN, _ENDS_ONE_IN = 8, 16
"""Of the tokens that may be said, so many begin a turn, and so many end one."""
_TONES = 64
_GREEDY = UnitSampling(max_tokens=1)


class FramesLmSettings(EngineSettings, frozen=True, kw_only=True):
    """The engine's settings, and what the model's clock does."""

    model: str = "frames_lm"
    """The name that clients ask for."""
    temperature: float = 0.0
    silence_grace_ms: int = 200

    @property
    def window_units(self) -> int:
        """Units that a context holds at most, beside the prompt and one token that was not computed."""
        return self.window_tokens - PROMPT_BYTES - 3


class Position(msgspec.Struct, frozen=True, array_like=True):
    """
    A unit's record: its codes.

    Attributes:
        token: the token that stood for what was heard and said.
        speaking: whether the model is in the middle of a turn after the unit.
        prompt: what stands before it, where a window begins; None within one.
    """

    token: int
    speaking: bool = False
    prompt: tuple[int, ...] | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Position)


def decode_position(codes: bytes) -> Position:
    """
    Read a unit's codes.

    Raises:
        ModelError: they are not this model's.
    """
    try:
        return _decoder.decode(codes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"a unit's codes are not this model's: {error}") from error


def window_start(unit: int, window_units: int) -> int:
    """Give the first unit that stands in the context when `unit` is worked on."""
    if unit < window_units:
        return 0
    step = window_units - window_units // 2
    return ((unit - window_units) // step + 1) * step


def loudness(pcm: Pcm) -> int:
    """
    Give a unit's level.

    Args:
        pcm: float32 [samples], 24 kHz mono.
    """
    mean_square = float(np.dot(pcm, pcm)) / len(pcm)
    return int(np.clip(LEVELS + 10 * np.log10(mean_square + 1e-12) // 5, 0, LEVELS - 1))


def _tones() -> Pcm:
    """Give float32 [tones, samples]: whole waves, so that neighbouring units join without a click."""
    turns = np.arange(UNIT_SAMPLES) / UNIT_SAMPLES
    waves = np.arange(16, 16 + _TONES)[:, np.newaxis]
    tones: Pcm = (0.1 * np.sin(2 * np.pi * waves * turns)).astype(np.float32)
    return tones


TONES = _tones()


class FramesLmSession(ModelSession):
    """
    One session's place in the engine; lives from `FramesLmPlugin.open` to `aclose`.

    Args:
        engine: the loaded model.
        context: what the journal says the model had.
    """

    def __init__(self, engine: Engine, settings: FramesLmSettings, context: Context) -> None:
        self._engine = engine
        self._settings = settings
        self._session_id = context.session_id
        self._window = settings.window_units
        self._vocabulary = engine.vocabulary
        self._stream: EngineStream | None = None
        positions = [decode_position(unit.completed.codes) for unit in context.units]
        last = context.units[-1].completed if positions else None
        self._next_unit = 0 if last is None else last.unit + 1
        self._said = last.token_ids[-1] if last is not None else 0
        self._speaking = bool(positions) and positions[-1].speaking
        self._prompt: tuple[int, ...] = ()
        for position in positions:
            self._prompt = self._prompt if position.prompt is None else position.prompt
        held = self._next_unit - self._begins_at(self._next_unit - 1)
        if held > len(positions):
            raise ModelError(f"{len(positions)} units of a context of {held}")
        self._tokens = deque((position.token for position in positions[-held:]), maxlen=self._window)

    async def prefill(self) -> None:
        """Compute the context, if there is one, so that the first unit does not wait for it."""
        if self._tokens:
            self._stream = self._open()
            await self._stream.prefill()

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Hear a unit, and say one token to it."""
        token = (self._said * LEVELS + loudness(unit.pcm)) % self._vocabulary
        sampling = self._sampling(unit.plan.unit)
        begins = self._move_window(unit)
        self._tokens.append(token)
        stream = self._stream
        if begins or stream is None:
            if stream is not None:
                await stream.aclose()
            self._stream = stream = self._open()
            said = await stream.append((), sampling)
        else:
            # The token that was sampled last stands in the context only as a part of this position.
            said = await stream.append((token,), sampling, in_place_of=stream.sampled)
        self._said, self._next_unit = said[0], unit.plan.unit + 1
        decision = self._decide(unit.plan, said[0], is_interrupted=unit.interrupted)
        codes = _encoder.encode(Position(token, self._speaking, self._prompt if begins else None))
        if decision is Decision.LISTEN:
            return UnitOutput(decision, token_ids=said, codes=codes)
        return UnitOutput(
            decision, token_ids=said, codes=codes, text=f"<{said[0]}>", audio=TONES[said[0] % _TONES]
        )

    async def aclose(self) -> None:
        """Abort the request: the engine holds nothing of the session after this."""
        if self._stream is not None:
            await self._stream.aclose()

    def _sampling(self, unit: int) -> UnitSampling:
        if not self._settings.temperature:
            return _GREEDY
        seed = unit_seed(self._session_id, unit)
        return UnitSampling(max_tokens=1, temperature=self._settings.temperature, seed=seed)

    def _begins_at(self, unit: int) -> int:
        return window_start(max(unit, 0), self._window)

    def _move_window(self, unit: UnitInput) -> bool:
        """
        Drop what this unit's window does not hold, and tell whether it is another window than before.

        The instructions in force then are its prompt: they change with the window.
        """
        number = unit.plan.unit
        begins_at = self._begins_at(number)
        if number and begins_at == self._begins_at(number - 1):
            return False
        while len(self._tokens) > number - begins_at:
            self._tokens.popleft()
        spelled = unit.config.instructions.encode()[:PROMPT_BYTES]
        self._prompt = (BEGIN_TOKEN, *((byte + 3) % self._vocabulary for byte in spelled))
        return True

    def _open(self) -> EngineStream:
        return self._engine.open(self._session_id, (*self._prompt, *self._tokens))

    def _decide(self, plan: UnitPlan, said: int, *, is_interrupted: bool) -> Decision:
        if is_interrupted:
            self._speaking = False
        if not plan.may_speak:
            # Late input is heard in silence; what was being said goes on after it.
            self._speaking = self._speaking and plan.late
            return Decision.LISTEN
        if not self._speaking:
            self._speaking = plan.answers is not None or said % _BEGINS_ONE_IN == 0
            return Decision.SPEAK if self._speaking else Decision.LISTEN
        self._speaking = said % _ENDS_ONE_IN != 1
        return Decision.SPEAK if self._speaking else Decision.TURN_END


class FramesLmPlugin(ModelPlugin):
    """One checkpoint, loaded by `start`."""

    def __init__(self, settings: FramesLmSettings) -> None:
        if settings.window_units < 2:
            raise ModelError(f"a window of {settings.window_tokens} tokens holds no units")
        self._settings = settings
        self.window_units = settings.window_units
        self.profile = ModelProfile(
            model=settings.model,
            input_sample_rate_hz=RATE_HZ,
            output_sample_rate_hz=RATE_HZ,
            unit_samples=UNIT_SAMPLES,
            silence_grace_ms=settings.silence_grace_ms,
        )
        self._engine: Engine | None = None

    @property
    def capacity(self) -> int | None:
        """Sessions that the KV cache has room for; None before the model is loaded."""
        return None if self._engine is None else self._engine.capacity

    async def start(self) -> None:
        """Load the checkpoint."""
        self.use(await Engine.start(self._settings))

    def use(self, engine: Engine) -> None:
        """Serve with an engine that is loaded already; `aclose` stops it."""
        self._engine = engine

    async def failed(self) -> str:
        """Wait until the engine is gone, and tell why."""
        return await self._loaded().failed()

    async def open(self, context: Context) -> ModelSession:
        """Compute the context that the units recorded."""
        session = FramesLmSession(self._loaded(), self._settings, context)
        await session.prefill()
        return session

    async def aclose(self) -> None:
        """Stop the engine."""
        if self._engine is not None:
            await self._engine.aclose()

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise ModelError("the model is not loaded")
        return self._engine


def frames_lm(options: Mapping[str, str]) -> FramesLmPlugin:
    """
    Make the plugin from an operator's options; see `FramesLmSettings`.

    Raises:
        ModelError: the options do not fit.
    """
    return FramesLmPlugin(FramesLmSettings.from_options(options))
