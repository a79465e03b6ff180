"""The text of an answer, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.engine.backend import Tokenizer

_UNREADABLE = "\ufffd"


def said_text(tokenizer: Tokenizer, before: Sequence[int], said: Sequence[int], *, last: bool) -> str:
    """
    Give the text that `said` adds to an answer. The pieces of an answer are together its text.

    A character whose bytes are not all there yet is left for the piece that completes it. Pure, so a worker
    that takes over needs nothing but the tokens.

    Args:
        tokenizer: the checkpoint's.
        before: the answer's tokens so far.
        said: those of this piece.
        last: no piece follows: what is unreadable now stays so.
    """
    already = tokenizer.decode(before).rstrip(_UNREADABLE)
    text = tokenizer.decode([*before, *said])
    return (text if last else text.rstrip(_UNREADABLE))[len(already) :]
