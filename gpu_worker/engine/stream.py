"""One session's request in the engine: fed unit by unit, with its KV kept in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from gpu_worker.engine.backend import Backend, Chunk, Sampled
from gpu_worker.engine.errors import StreamClosed, TooLong
from gpu_worker.engine.sampling import UnitSampling

_PREFILL = UnitSampling(max_tokens=1)


class EngineStream:
    """
    A context that grows by what is appended and what is said; lives from `Engine.open` to `aclose`.

    The engine computes every token of a chunk, but not the last one that it samples: it is dropped when the
    next chunk comes, and has to be put at that chunk's head. This class keeps account of it, so that a caller
    sees one growing sequence: `length` tokens, of which the first `computed` are in the KV cache and cannot
    be changed any more.

    One unit is worked on at a time; whoever comes in between waits. A unit that is cancelled takes the stream
    with it.

    Args:
        backend: the loaded engine.
        request_id: unique in the engine, for good.
        token_ids: the context to begin with, not empty.
        limit: tokens that the context may hold.
        salt: sessions with another salt share no cached prefix with this one.
        on_close: called once, when the stream is over.
    """

    def __init__(
        self,
        backend: Backend,
        request_id: str,
        token_ids: Sequence[int],
        *,
        limit: int,
        salt: str | None,
        on_close: Callable[[EngineStream], None],
    ) -> None:
        if not token_ids:
            raise ValueError("a context begins with at least one token")
        self.request_id = request_id
        self._limit = limit
        self._on_close = on_close
        self._waiting = list(token_ids)
        """What the next chunk begins with: not computed yet."""
        self._computed = 0
        self._sampled = 0
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue(maxsize=1)
        self._turn = asyncio.Lock()
        self._closed = False
        self._outputs: AsyncGenerator[Sampled, None] = backend.generate(self._feed(), request_id, salt)

    @property
    def computed(self) -> int:
        """Tokens of the context that are in the KV cache."""
        return self._computed

    @property
    def length(self) -> int:
        """Tokens of the context, with those that wait for the next chunk."""
        return self._computed + len(self._waiting)

    @property
    def sampled(self) -> int:
        """1 if the context ends in a sampled token that is not computed: the next unit may replace it."""
        return self._sampled

    @property
    def is_closed(self) -> bool:
        """Whether the stream is over."""
        return self._closed

    async def prefill(self) -> None:
        """
        Compute the context but for its last token, so that the first unit does not wait for it.

        Raises:
            EngineError: as `append`.
        """
        async with self._turn:
            if len(self._waiting) > 1:
                last = self._waiting.pop()
                await self._run(_PREFILL)
                # What was sampled only made the engine compute: it was not asked for.
                self._waiting, self._sampled = [last], 0

    async def append(
        self, token_ids: Sequence[int], sampling: UnitSampling, *, in_place_of: int = 0
    ) -> tuple[int, ...]:
        """
        Work on one unit: let the context grow by these tokens, then by what the model says to it.

        Args:
            token_ids: may be empty: the model goes on where it was.
            sampling: this unit's.
            in_place_of: so many tokens at the context's end are replaced by `token_ids`; not more than wait.

        Returns:
            What was sampled, a stop token included. All of it is in the context.

        Raises:
            EngineDied: the engine is gone.
            EngineRefused: the engine gave the request up.
            StreamClosed: the stream is over.
            TooLong: the unit may need more tokens than the context may hold. Nothing has changed.
        """
        async with self._turn:
            kept = len(self._waiting) - in_place_of
            if kept < 0 or kept + len(token_ids) == 0:
                raise ValueError(f"{in_place_of} tokens cannot be replaced by {len(token_ids)}")
            needed = self._computed + kept + len(token_ids) + sampling.max_tokens
            if needed > self._limit:
                raise TooLong(needed, self._limit)
            self._waiting[kept:] = token_ids
            return await self._run(sampling)

    async def aclose(self) -> None:
        """
        Abort: after this the engine holds nothing of the stream. Closing twice changes nothing.

        A unit that is being worked on is waited for; cancel whoever waits for it to have it aborted at once.
        """
        self._end()
        async with self._turn:
            await self._outputs.aclose()

    async def _run(self, sampling: UnitSampling) -> tuple[int, ...]:
        if self._closed:
            raise StreamClosed(f"request {self.request_id} is over")
        chunk = list(self._waiting)
        # The engine keeps the list it is given and lets it grow.
        self._chunks.put_nowait(Chunk(list(chunk), sampling))
        sampled: list[int] = []
        try:
            async for piece in self._outputs:
                sampled += piece.token_ids
                if piece.ends_chunk:
                    break
            else:
                raise StreamClosed(f"request {self.request_id} was ended by the engine")
        except BaseException:
            self._end()
            raise
        self._computed += len(chunk) + len(sampled) - 1
        self._waiting, self._sampled = sampled[-1:], len(sampled[-1:])
        return tuple(sampled)

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close(self)

    async def _feed(self) -> AsyncGenerator[Chunk, None]:
        while True:
            yield await self._chunks.get()
