"""What the engine asks of vLLM, and nothing more: the seam behind which the versions differ."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpu_worker.engine.sampling import UnitSampling


class Chunk(NamedTuple):
    """Tokens to compute, and how to go on from them. The list is the backend's to keep and to change."""

    token_ids: list[int]
    sampling: UnitSampling


class Sampled(NamedTuple):
    """Tokens that came out of a chunk; `ends_chunk`: they are its last."""

    token_ids: Sequence[int]
    ends_chunk: bool


class KvBudget(NamedTuple):
    """What the KV cache holds."""

    blocks: int
    block_tokens: int

    def sessions(self, window_tokens: int) -> int:
        """
        Give how many sessions fit: each is promised its whole window, in whole blocks, whenever it needs it.

        One block is the engine's own.
        """
        blocks_each = -(-window_tokens // self.block_tokens)
        return max(0, self.blocks - 1) // blocks_each


class Tokenizer(Protocol):
    """What is asked of a checkpoint's tokenizer."""

    special_tokens: Sequence[str]
    """What no user may write."""
    beginning: str
    """What a text begins with, for this model; may be empty."""
    ending: str
    """What an answer ends with; may be empty."""

    def encode(self, text: str) -> list[int]:
        """Give the tokens of a text; special tokens in it are recognised, and none are added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Give the text of tokens, without special ones. Bytes that are no character give U+FFFD."""
        ...

    def render(self, conversation: Sequence[Mapping[str, str]]) -> str | None:
        """
        Give a conversation by the checkpoint's template, up to where the assistant speaks.

        Args:
            conversation: `role` and `content` of each message.

        Returns:
            None if there is no template, or it refuses this conversation.
        """
        ...


class Backend(Protocol):
    """One loaded engine."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What ends an answer, by the checkpoint's own account."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        ...

    def generate(
        self, chunks: AsyncGenerator[Chunk, None], request_id: str, salt: str | None
    ) -> AsyncGenerator[Sampled, None]:
        """
        Run one request that is fed chunk by chunk; its KV stays between them.

        Closing the generator aborts the request. The engine drops the last token of a chunk when the next
        chunk comes: it was sampled, but never computed.

        Raises:
            EngineDied: the engine's process is gone.
            EngineRefused: the engine gave the request up.
        """
        ...

    def kv_budget(self) -> KvBudget:
        """Give what the KV cache holds."""
        ...

    def requests(self) -> int:
        """Give how many requests the engine knows, waiting ones included."""
        ...

    async def is_empty(self) -> bool:
        """
        Tell whether no request holds any KV. What prefix caching kept is given up by asking.

        Raises:
            EngineDied: the engine's process is gone.
        """
        ...

    async def failed(self) -> str:
        """Wait until the engine's process is gone, and tell why."""
        ...

    def shutdown(self) -> None:
        """Stop the engine's process."""
        ...
