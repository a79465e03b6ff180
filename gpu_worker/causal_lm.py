"""
`causal_lm`: any causal language model, as a session of texts that answers when it is asked.

The session's request stays open in the engine for the whole conversation, so that only what is new is
computed at each turn. Each piece of an answer is a unit of its own with the exact tokens of it; a worker that
takes over in the middle of an answer goes on with the next token. What was cancelled or not heard is taken
out of the context when the next answer begins: the context is built anew up to there, and with prefix caching
most of it is still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from gpu_worker.engine.chat_prompt import ChatPrompt
from gpu_worker.engine.context_tokens import (
    WHOLE_EVERY,
    ContextTokens,
    Fed,
    context_tokens,
    encode_fed,
    shared_tokens,
)
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling, unit_seed
from gpu_worker.engine.settings import EngineSettings
from gpu_worker.engine.stream import EngineStream
from gpu_worker.engine.text import said_text
from gpu_worker.errors import ModelError
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, Pcm, UnitInput, UnitOutput
from session_core.commands import ResponseOptions
from session_core.config import Clock, ModelProfile
from session_core.events import Decision
from session_core.items import Item

_NO_AUDIO: Pcm = np.zeros(0, np.float32)


class CausalLmSettings(EngineSettings, frozen=True, kw_only=True):
    """The engine's settings, and how the model answers where the client does not say."""

    model: str = "causal_lm"
    """The name that clients ask for."""
    unit_tokens: int = 8
    """Tokens of one unit: what a client is given at once, and what a failover repeats at most."""
    answer_tokens: int = 1_024
    """Room that a prompt leaves for the answer, as far as that is less than half of the window."""
    temperature: float = 0.7
    top_p: float = 0.95


class _Wishes(NamedTuple):
    """What is asked of one answer: the response's own wishes, then the session's, then the operator's."""

    instructions: str
    history: tuple[Item, ...]
    temperature: float
    max_tokens: int | None


class CausalLmSession(ModelSession):
    """
    One conversation's place in the engine; lives from `CausalLmPlugin.open` to `aclose`.

    Args:
        engine: the loaded model.
        prompts: makes its prompts.
        session_id: names the request and seeds the draws.
        held: the context that the journal says the model had.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: ChatPrompt,
        settings: CausalLmSettings,
        *,
        session_id: str,
        held: ContextTokens,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._settings = settings
        self._session_id = session_id
        self._held = held
        self._stream: EngineStream | None = None

    async def prefill(self) -> None:
        """Compute the context, if there is one, so that the first unit does not wait for it."""
        if self._held.token_ids:
            self._stream = self._open(self._held)
            await self._stream.prefill()

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Say the next few tokens of the answer."""
        response_id = unit.plan.answers
        if response_id is None or unit.response is None:
            raise ModelError("this model speaks only when it is asked")
        wishes = self._wishes(unit, unit.response.options)
        fed = self._feed(response_id, wishes)
        ready = self._held.after(fed, response_id, ())
        before = ready.answer(response_id)
        room = self._engine.window_tokens - len(ready.token_ids)
        if wishes.max_tokens is not None:
            room = min(room, wishes.max_tokens - len(before))
        said = await self._say(ready, self._sampling(unit, wishes, room)) if room > 0 else ()
        self._held = self._held.after(fed, response_id, said)
        ends = len(said) >= room or said[-1] in self._engine.stop_token_ids
        return UnitOutput(
            Decision.TURN_END if ends else Decision.SPEAK,
            token_ids=said,
            codes=encode_fed(fed),
            text=said_text(self._engine.tokenizer, before, said, last=ends),
            audio=_NO_AUDIO,
        )

    async def aclose(self) -> None:
        """Abort the request: the engine holds nothing of the session after this."""
        if self._stream is not None:
            await self._stream.aclose()

    def _wishes(self, unit: UnitInput, options: ResponseOptions) -> _Wishes:
        config, settings = unit.config, self._settings
        temperature = options.temperature if options.temperature is not UNSET else config.temperature
        max_tokens = options.max_output_tokens
        return _Wishes(
            instructions=config.instructions if options.instructions is UNSET else options.instructions,
            history=unit.history if options.input is None else options.input,
            temperature=settings.temperature if temperature is None else temperature,
            max_tokens=config.max_output_tokens if max_tokens is UNSET else max_tokens,
        )

    def _feed(self, response_id: str, wishes: _Wishes) -> Fed | None:
        """
        Tell what the context needs before the model speaks.

        An answer that begins needs its prompt, one that goes on nothing; but from time to time the context is
        recorded whole.
        """
        held, is_whole_due = self._held, self._held.since_whole >= WHOLE_EVERY
        if held.answering == response_id:
            return held.whole() if is_whole_due else None
        window = self._engine.window_tokens
        answer_tokens = min(self._settings.answer_tokens, wishes.max_tokens or window, window // 2)
        prompt = self._prompts.build(wishes.instructions, wishes.history, held, limit=window - answer_tokens)
        keep = 0 if is_whole_due else shared_tokens(held.token_ids, prompt.token_ids)
        return Fed(keep, prompt.token_ids[keep:], prompt.answers, prompt.first_item)

    def _sampling(self, unit: UnitInput, wishes: _Wishes, room: int) -> UnitSampling:
        return UnitSampling(
            max_tokens=min(self._settings.unit_tokens, room),
            stop_token_ids=self._engine.stop_token_ids,
            temperature=wishes.temperature,
            top_p=self._settings.top_p,
            seed=unit_seed(self._session_id, unit.plan.unit),
        )

    async def _say(self, ready: ContextTokens, sampling: UnitSampling) -> tuple[int, ...]:
        """Bring the engine's context from what it holds to `ready`, and let the model speak."""
        held, wanted, stream = self._held.token_ids, ready.token_ids, self._stream
        shared = len(held) if held is wanted else shared_tokens(held, wanted)
        if stream is not None and (shared > stream.computed or stream.computed == shared < len(wanted)):
            return await stream.append(wanted[shared:], sampling, in_place_of=len(held) - shared)
        # Something that was computed is not wanted: begin again. The cache may still hold what is shared.
        if stream is not None:
            await stream.aclose()
        self._stream = stream = self._open(ready)
        return await stream.append((), sampling)

    def _open(self, tokens: ContextTokens) -> EngineStream:
        # No salt: tokens are all of this model's input, and sessions with one instruction compute it once.
        return self._engine.open(self._session_id, tokens.token_ids)


class CausalLmPlugin(ModelPlugin):
    """One checkpoint, loaded by `start`."""

    window_units = WHOLE_EVERY

    def __init__(self, settings: CausalLmSettings) -> None:
        self._settings = settings
        self.profile = ModelProfile(model=settings.model, clock=Clock.COMMIT, supports_text=True)
        self._engine: Engine | None = None
        self._prompts: ChatPrompt | None = None

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
        self._prompts = ChatPrompt(engine.tokenizer, engine.stop_token_ids)

    async def failed(self) -> str:
        """Wait until the engine is gone, and tell why."""
        return await self._loaded().failed()

    async def open(self, context: Context) -> ModelSession:
        """Compute the context that the units recorded."""
        engine, held = self._loaded(), context_tokens(context.units)
        assert self._prompts is not None
        session = CausalLmSession(
            engine, self._prompts, self._settings, session_id=context.session_id, held=held
        )
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


def causal_lm(options: Mapping[str, str]) -> CausalLmPlugin:
    """
    Make the plugin from an operator's options; see `CausalLmSettings`.

    Raises:
        ModelError: the options do not fit.
    """
    return CausalLmPlugin(CausalLmSettings.from_options(options))
