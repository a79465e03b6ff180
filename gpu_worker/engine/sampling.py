"""How a unit's tokens are chosen, and the seed that makes the choice the same on every machine."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct


class UnitSampling(Struct, frozen=True, kw_only=True):
    """
    One unit's way of choosing tokens; may differ from unit to unit of one stream.

    A stop token ends the unit and is part of what the unit gives. Nothing else stops it before `max_tokens`:
    the model's own end of sequence counts only if it is among `stop_token_ids`.
    """

    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    """0: the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    seed: int = 0
    """Decides together with the context what is drawn; unused at temperature 0."""
    drawn: int = 0
    """Tokens of the unit that were drawn before; not 0 only where a unit is worked on in pieces."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these are chosen from; None: all."""


def unit_seed(session_id: str, unit: int) -> int:
    """Give the seed of a unit: whoever works on it draws the same. 63 bits."""
    digest = blake2b(f"{session_id}:{unit}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
