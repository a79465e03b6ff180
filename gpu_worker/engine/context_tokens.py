"""
The exact tokens that a session's context consists of, as its units recorded them.

A context is never put together again from texts: another version of a template or of a tokenizer would give
other tokens. Each unit records, as its codes, what it did to the context before the model spoke; together
with the tokens that the model said, the units are an edit script, and the context at any unit is its fold.
Most units did nothing: the model went on. The fold needs no unit from before the last *whole* one, which
names all tokens of its context; so that a bounded window of units is always enough, a unit is recorded whole
at least every `WHOLE_EVERY` units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpu_worker.errors import ModelError
from gpu_worker.plugin import UnitRecord
from session_core.events import ModelUnitCompleted

WHOLE_EVERY = 128
"""Units between two whole ones at most; a window of as many units always holds one."""


class Answer(Struct, frozen=True, array_like=True):
    """Where the model's own words of one response stand in the context: tokens [start, end)."""

    response_id: str
    start: int
    end: int


class Fed(Struct, frozen=True, array_like=True):
    """
    What a unit did to the context before the model spoke. Recorded as the unit's codes.

    Attributes:
        keep: so many tokens of the context before stayed; 0: `token_ids` are the whole context.
        token_ids: what came after them.
        answers: every response whose exact tokens stand in the context then, oldest first.
        first_item: the conversation was taken from this item on; None: from its beginning.
    """

    keep: int
    token_ids: tuple[int, ...]
    answers: tuple[Answer, ...] = ()
    first_item: str | None = None


class ContextTokens(Struct, frozen=True):
    """
    A context: what the engine has to hold, exactly.

    Attributes:
        token_ids: all of it. The last one may have been sampled and not been computed yet.
        answers: as in `Fed`.
        first_item: as in `Fed`.
        since_whole: units since the last whole one, which is counted.
    """

    token_ids: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()
    first_item: str | None = None
    since_whole: int = 0

    @property
    def answering(self) -> str | None:
        """The response whose answer stands at the end."""
        return self.answers[-1].response_id if self.answers else None

    def answer(self, response_id: str) -> tuple[int, ...]:
        """Give the tokens that the model said for a response; none if none stand in the context."""
        for answer in reversed(self.answers):
            if answer.response_id == response_id:
                return self.token_ids[answer.start : answer.end]
        return ()

    def whole(self) -> Fed:
        """Give the record of a unit before which nothing was fed, but that names the whole context."""
        return Fed(0, self.token_ids, self.answers, self.first_item)

    def after(self, fed: Fed | None, response_id: str | None, said: Sequence[int]) -> ContextTokens:
        """Give the context after a unit that fed this (None: nothing) and said these tokens."""
        tokens, answers, first_item, since_whole = (
            self.token_ids,
            self.answers,
            self.first_item,
            self.since_whole,
        )
        if fed is not None:
            tokens, answers, first_item = tokens[: fed.keep] + fed.token_ids, fed.answers, fed.first_item
            since_whole = since_whole if fed.keep else 0
        if response_id is not None:
            answers = _extended(answers, response_id, len(tokens), len(said))
        return ContextTokens(tokens + tuple(said), answers, first_item, since_whole + 1)


def _extended(answers: tuple[Answer, ...], response_id: str, at: int, tokens: int) -> tuple[Answer, ...]:
    """Let the answer that is being given grow, or begin."""
    if answers and answers[-1].response_id == response_id and answers[-1].end == at:
        return (*answers[:-1], replace(answers[-1], end=at + tokens))
    return (*answers, Answer(response_id, at, at + tokens))


def encode_fed(fed: Fed | None) -> bytes:
    """Give a unit's codes."""
    return b"" if fed is None else _encoder.encode(fed)


def decode_fed(codes: bytes) -> Fed | None:
    """
    Read a unit's codes.

    Raises:
        ModelError: they are not this model's.
    """
    if not codes:
        return None
    try:
        return _decoder.decode(codes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"a unit's codes are not this model's: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Fed)


def context_tokens(units: Iterable[UnitRecord]) -> ContextTokens:
    """
    Give the context after the last of these units; empty if there are none.

    Muted units count: nobody heard of them, but the model had said them when it went on.

    Args:
        units: the last units, oldest first; if they are not all there were, at least `WHOLE_EVERY`.

    Raises:
        ModelError: the units do not say what the context is.
    """
    tokens: ContextTokens | None = None
    unit: ModelUnitCompleted | None = None
    for unit, _ in units:
        fed = decode_fed(unit.codes)
        if fed is not None and fed.keep == 0:
            tokens = tokens or ContextTokens()
        if tokens is not None:
            tokens = _after_unit(tokens, fed, unit)
    if tokens is None and unit is not None:
        raise ModelError(f"no unit up to {unit.unit} says what its whole context was")
    return tokens or ContextTokens()


def _after_unit(tokens: ContextTokens, fed: Fed | None, unit: ModelUnitCompleted) -> ContextTokens:
    if fed is not None and fed.keep > len(tokens.token_ids):
        raise ModelError(f"unit {unit.unit} keeps {fed.keep} tokens of {len(tokens.token_ids)}")
    return tokens.after(fed, unit.answers, unit.token_ids)


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Give how many tokens two contexts begin with in common."""
    shortest = min(len(one), len(other))
    return next((at for at in range(shortest) if one[at] != other[at]), shortest)
