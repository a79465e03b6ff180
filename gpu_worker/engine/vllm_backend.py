"""
The one module that imports vLLM and knows its versions: 0.25 (GPU wheels) to 0.32 (CPU build).

What differs between them, and is settled here:

- `StreamingInput.prompt` is given as the engine's own input form, which all take without a tokenizer.
- Before 0.32 a request that is fed in chunks keeps the `max_tokens` of its first chunk. There every token is
  a chunk of its own, which comes to the same and costs more.
- Before 0.32 the block hashes of a sampled token that was dropped stay: a context with another token in its
  place could later be taken for it. There is no prefix caching there.
- In the first model runner such a request keeps the random generator of its first chunk, so that the seed of
  a later chunk counts for nothing; the second runner draws by seed and position. With the first,
  `SeededDraw` draws.
- `stop_reason` of an earlier chunk is reported again by later ones, so nothing here looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cached_property
from typing import Any

import vllm
from msgspec.structs import replace
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from gpu_worker.engine.backend import Chunk, KvBudget, Sampled
from gpu_worker.engine.errors import EngineDied, EngineError, EngineRefused
from gpu_worker.engine.hf_tokenizer import HfTokenizer
from gpu_worker.engine.sampling import UnitSampling
from gpu_worker.engine.settings import EngineSettings

_SPARE_REQUESTS = 4
"""
Room in a batch beyond the advertised sessions: a context is rebuilt before everybody knows that the old one
is gone.
"""
_DEATH_POLL_S = 0.25
_GREEDY_KEPT = 256
_CHUNKS_COUNT_SINCE = (0, 32)
"""The first version seen in which a chunk's `max_tokens` counts, and what is dropped leaves no hash."""
_SEEDED_DRAW = "gpu_worker.engine.seeded:SeededDraw"


class _Llm(AsyncLLM):  # type: ignore[misc]  # no vLLM where types are checked
    """Stopped by `VllmBackend.shutdown` alone."""

    def __del__(self) -> None:
        """Nothing: vLLM's finalizer would stop it again, and fails while the interpreter ends."""


class VllmBackend:
    """One `AsyncLLM` with its engine process; lives from `start` to `shutdown`."""

    def __init__(self, llm: AsyncLLM, settings: EngineSettings, *, draws_itself: bool) -> None:
        self._llm = llm
        self._settings = settings
        self._draws_itself = draws_itself
        self._chunks_count = _chunks_count()
        self._greedy: dict[UnitSampling, SamplingParams] = {}
        """Checked once for all units that choose alike; vLLM copies what it is given."""

    @classmethod
    async def start(cls, settings: EngineSettings) -> VllmBackend:
        """
        Load the model; the event loop goes on meanwhile.

        Raises:
            EngineError: vLLM does not take this model here.
        """
        try:
            return await asyncio.to_thread(cls._load, settings)
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"vLLM does not start with {settings.checkpoint}: {error}") from error

    @classmethod
    def _load(cls, settings: EngineSettings) -> VllmBackend:
        config = _engine_args(settings).create_engine_config()
        draws_itself = not _has_stateless_seeds(config)
        if draws_itself:
            config.model_config.logits_processors = [_SEEDED_DRAW]
        return cls(_Llm.from_vllm_config(config), settings, draws_itself=draws_itself)

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        """The checkpoint's tokenizer."""
        return HfTokenizer(self._settings.checkpoint)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What ends an answer, by the tokenizer and by the generation configuration."""
        model = self._llm.model_config
        named: int | list[int] | None = model.try_get_generation_config().get("eos_token_id")
        stops = set(named) if isinstance(named, list) else {named}
        stops |= {self.tokenizer.ending_id}
        return tuple(sorted(stop for stop in stops if stop is not None))

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        size: int = self._llm.model_config.get_vocab_size()
        return size

    async def generate(
        self, chunks: AsyncGenerator[Chunk, None], request_id: str, salt: str | None
    ) -> AsyncGenerator[Sampled, None]:
        """Run one request that is fed chunk by chunk; see `Backend.generate`."""
        run = self._run if self._chunks_count else self._run_token_by_token
        async with aclosing(run(chunks, request_id, salt)) as outputs:
            async for sampled in outputs:
                yield sampled

    async def _run_token_by_token(
        self, chunks: AsyncGenerator[Chunk, None], request_id: str, salt: str | None
    ) -> AsyncGenerator[Sampled, None]:
        pieces: asyncio.Queue[Chunk] = asyncio.Queue()
        async with aclosing(self._run(_taken(pieces), request_id, salt)) as outputs:
            async for token_ids, sampling in chunks:
                piece = token_ids
                for drawn in range(sampling.max_tokens):
                    one = (
                        sampling if sampling.max_tokens == 1 else replace(sampling, max_tokens=1, drawn=drawn)
                    )
                    pieces.put_nowait(Chunk(piece, one))
                    token = (await anext(outputs)).token_ids[0]
                    ends = drawn + 1 == sampling.max_tokens or token in sampling.stop_token_ids
                    yield Sampled((token,), ends)
                    if ends:
                        break
                    piece = [token]

    async def _run(
        self, chunks: AsyncGenerator[Chunk, None], request_id: str, salt: str | None
    ) -> AsyncGenerator[Sampled, None]:
        first = self._params(UnitSampling(max_tokens=1))  # every chunk brings its own
        try:
            async with aclosing(self._llm.generate(self._inputs(chunks, salt), first, request_id)) as outputs:
                async for output in outputs:
                    completion = output.outputs[0]
                    if completion.finish_reason in ("abort", "error"):
                        raise EngineRefused(f"request {request_id}: {completion.finish_reason}")
                    yield Sampled(completion.token_ids, completion.finish_reason is not None)
        except EngineDeadError as error:
            raise EngineDied("the engine's process is gone") from error
        except (EngineGenerateError, ValueError) as error:
            if self._llm.errored:
                raise EngineDied("the engine's process is gone") from error
            raise EngineRefused(f"request {request_id}: {error.__cause__ or error}") from error

    def kv_budget(self) -> KvBudget:
        """What the KV cache holds."""
        cache = self._llm.vllm_config.cache_config
        return KvBudget(cache.num_gpu_blocks or 0, cache.block_size)

    def requests(self) -> int:
        """Requests that vLLM knows, waiting ones included."""
        known: int = self._llm.output_processor.get_num_unfinished_requests()
        return known

    async def is_empty(self) -> bool:
        """Whether no request holds any KV: only then the prefix cache can be reset."""
        try:
            reset: bool = await self._llm.reset_prefix_cache()
        except EngineDeadError as error:
            raise EngineDied("the engine's process is gone") from error
        return reset

    async def failed(self) -> str:
        """Wait until the engine's process is gone. Without a request open nobody is told, so it is asked."""
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM has no event to wait for
            await asyncio.sleep(_DEATH_POLL_S)
        return "the engine's process is gone"

    def shutdown(self) -> None:
        """Stop the engine's process."""
        self._llm.shutdown()

    async def _inputs(
        self, chunks: AsyncGenerator[Chunk, None], salt: str | None
    ) -> AsyncGenerator[StreamingInput, None]:
        async for chunk in chunks:
            prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": chunk.token_ids}
            if salt is not None:
                prompt["cache_salt"] = salt
            yield StreamingInput(prompt, self._params(chunk.sampling))

    def _params(self, sampling: UnitSampling) -> SamplingParams:
        if sampling.temperature > 0:
            return self._new_params(sampling)
        params = self._greedy.get(sampling)
        if params is None:
            if len(self._greedy) >= _GREEDY_KEPT:
                self._greedy.clear()
            params = self._greedy[sampling] = self._new_params(sampling)
            # vLLM copies what it is given for each chunk: deeply, unless it is told that once is enough.
            params.skip_clone = True
        return params

    def _new_params(self, sampling: UnitSampling) -> SamplingParams:
        drawn = sampling.temperature > 0
        common: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }
        if sampling.allowed_token_ids is not None:
            common["allowed_token_ids"] = list(sampling.allowed_token_ids)
        if not drawn or self._draws_itself:
            draw = [sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k, sampling.drawn]
            return SamplingParams(
                temperature=0.0, extra_args={"duplex_draw": draw} if drawn else None, **common
            )
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            **common,
        )


def _engine_args(settings: EngineSettings) -> AsyncEngineArgs:
    optional: dict[str, Any] = {}
    if settings.random_weights:
        optional["load_format"] = "dummy"
    if settings.max_batched_tokens is not None:
        optional["max_num_batched_tokens"] = settings.max_batched_tokens
    if settings.kv_cache_bytes is not None:
        optional["kv_cache_memory_bytes"] = settings.kv_cache_bytes
    return AsyncEngineArgs(
        model=settings.checkpoint,
        skip_tokenizer_init=True,
        max_model_len=settings.window_tokens,
        max_num_seqs=settings.max_sessions + _SPARE_REQUESTS,
        dtype=settings.dtype,
        gpu_memory_utilization=settings.memory_fraction,
        enable_prefix_caching=settings.prefix_caching and _chunks_count(),
        enforce_eager=settings.eager,
        disable_log_stats=True,
        **optional,
    )


async def _taken(pieces: asyncio.Queue[Chunk]) -> AsyncGenerator[Chunk, None]:
    while True:
        yield await pieces.get()


def _chunks_count() -> bool:
    """Tell whether this vLLM keeps nothing of a chunk's parameters and dropped token for later chunks."""
    version = [int(part) for part in vllm.__version__.split(".")[:2]]
    return tuple(version) >= _CHUNKS_COUNT_SINCE


def _has_stateless_seeds(config: VllmConfig) -> bool:
    """Tell whether a chunk's seed counts: the second model runner draws by seed and position."""
    return bool(getattr(config, "use_v2_model_runner", False))
