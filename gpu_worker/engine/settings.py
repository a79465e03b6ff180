"""How the engine is started; fixed for the life of the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Struct

from gpu_worker.errors import ModelError


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator decides about the engine. Everything else is the model's, or vLLM's default."""

    checkpoint: str
    """A folder, or a name that Hugging Face's hub knows: configuration, tokenizer, weights."""
    window_tokens: int = 4_096
    """What one session's context holds at most, its answer included."""
    max_sessions: int = 64
    """Sessions at once, if the KV cache holds as many windows."""
    dtype: str = "auto"
    memory_fraction: float = 0.85
    """Of the accelerator's memory, for weights and KV cache together."""
    kv_cache_bytes: int | None = None
    """
    Size of the KV cache; None: what `memory_fraction` leaves. To be set on machines without an accelerator.
    """
    prefix_caching: bool = True
    """A rebuilt context takes over what the cache still has of the old one. Off before vLLM 0.32."""
    eager: bool = False
    """No compilation and no graph capture: for tests, and where starting fast matters more than speed."""
    random_weights: bool = False
    """Needs no weights and says nonsense: for measuring."""
    max_batched_tokens: int | None = None
    """
    Tokens that one engine step computes at most, so how long a rebuilt context may delay the others' units.
    """
    boot_timeout_s: float = 900.0

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """
        Read an operator's `key=value` options.

        Raises:
            ModelError: an option is unknown, misses or has no valid value.
        """
        try:
            return msgspec.convert(dict(options), cls, strict=False)
        except msgspec.ValidationError as error:
            raise ModelError(f"the engine's options: {error}") from error
