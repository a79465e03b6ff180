"""The engine of one worker process: one loaded model, and the streams that run in it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from typing import NamedTuple

from gpu_worker.engine.backend import Backend, KvBudget, Tokenizer
from gpu_worker.engine.errors import EngineError, TooLong
from gpu_worker.engine.settings import EngineSettings
from gpu_worker.engine.stream import EngineStream

_VLLM_BACKEND = "gpu_worker.engine.vllm_backend"
"""Imported by name when an engine starts: vLLM is an extra, and takes seconds to import."""


class EngineStats(NamedTuple):
    """What the engine is doing."""

    streams: int
    """Open streams."""
    requests: int
    """Requests that vLLM knows; more than streams only for the moment of an abort."""
    computed_tokens: int
    """Tokens of open streams in the KV cache."""


class Engine:
    """
    One loaded model; lives from `start` to `aclose`, or until its process dies.

    After that whoever waits for it, and whoever asks anything of it, gets `EngineDied`.

    Args:
        backend: the loaded model.
        settings: what it was started with.
    """

    def __init__(self, backend: Backend, settings: EngineSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._streams: set[EngineStream] = set()
        self._numbers = count(1)

    @classmethod
    async def start(cls, settings: EngineSettings) -> Engine:
        """
        Load the model. Takes from half a minute to several.

        Raises:
            EngineError: vLLM is not installed, or does not take this model here.
        """
        async with asyncio.timeout(settings.boot_timeout_s):
            try:
                vllm_backend = await asyncio.to_thread(import_module, _VLLM_BACKEND)
            except ImportError as error:
                raise EngineError(f"vLLM cannot be imported: {error}") from error
            backend: Backend = await vllm_backend.VllmBackend.start(settings)
        # vLLM's modules and tables stay for good; a full collection that walks them is 0.3 s of standstill.
        gc.collect()
        gc.freeze()
        engine = cls(backend, settings)
        if not engine.capacity:
            engine.shutdown()
            raise EngineError(
                f"the KV cache holds {engine.kv_budget} and no window of {settings.window_tokens} tokens"
            )
        return engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        return self._backend.tokenizer

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer, by the checkpoint's own account."""
        return self._backend.stop_token_ids

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        return self._backend.vocabulary

    @property
    def window_tokens(self) -> int:
        """What one context may hold."""
        return self._settings.window_tokens

    @property
    def kv_budget(self) -> KvBudget:
        """What the KV cache holds."""
        return self._backend.kv_budget()

    @property
    def capacity(self) -> int:
        """Sessions that can be promised their whole window at once: what the worker may advertise."""
        return min(self._settings.max_sessions, self.kv_budget.sessions(self.window_tokens))

    @property
    def stats(self) -> EngineStats:
        """What the engine is doing now."""
        computed = sum(stream.computed for stream in self._streams)
        return EngineStats(len(self._streams), self._backend.requests(), computed)

    def open(self, request_key: str, token_ids: Sequence[int], *, salt: str | None = None) -> EngineStream:
        """
        Begin a stream with a context. Nothing is computed before `prefill` or the first unit.

        Args:
            request_key: names the stream in logs; it may be used again.
            token_ids: the context, not empty.
            salt: streams with another salt share no cached prefix with this one. Needed where the model's
                input is more than token ids, which is all that the cache looks at.

        Raises:
            TooLong: the context leaves no room for a single token.
        """
        if len(token_ids) >= self.window_tokens:
            raise TooLong(len(token_ids) + 1, self.window_tokens)
        stream = EngineStream(
            self._backend,
            f"{request_key}#{next(self._numbers)}",
            token_ids,
            limit=self.window_tokens,
            salt=salt,
            on_close=self._streams.discard,
        )
        self._streams.add(stream)
        return stream

    async def is_empty(self) -> bool:
        """Tell whether nothing is left of any stream. What prefix caching kept is given up by asking."""
        return not self._backend.requests() and await self._backend.is_empty()

    async def failed(self) -> str:
        """
        Wait until the engine's process is gone, and tell why.

        A worker leaves then: it can open nothing any more.
        """
        return await self._backend.failed()

    async def aclose(self) -> None:
        """Close every stream, then stop the engine."""
        try:
            for stream in list(self._streams):
                await stream.aclose()
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Stop the engine's process at once."""
        self._backend.shutdown()
