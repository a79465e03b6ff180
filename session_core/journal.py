"""One journal entry: who wrote it, and what. Encoded as one msgpack array with audio as raw bytes."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct

from session_core.commands import AnyCommand
from session_core.errors import UnreadableEntry
from session_core.events import AnyEvent

Position: TypeAlias = tuple[int, int]
"""An entry's place in the journal: milliseconds of the store's clock, and a number within them. The only
order."""

Body: TypeAlias = AnyCommand | AnyEvent


class Role(StrEnum):
    """Who numbers its appends."""

    CLIENT = "c"
    WORKER = "w"


class Stamp(Struct, frozen=True, array_like=True, gc=False):
    """
    A writer's mark: its generation, and the number of this append, from 1 without a gap.

    A writer that does not know whether an append arrived sends it again with the same number; the fold takes
    only the next number of the generation in office, so nothing counts twice and nothing is lost.
    """

    role: Role
    generation: int
    n: int


class JournalEntry(Struct, frozen=True, array_like=True, gc=False):
    """What one entry of the stream holds. `stamp` is None for facts that anybody may state."""

    stamp: Stamp | None
    body: Body


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalEntry)


def encode_entry(body: Body, stamp: Stamp | None = None) -> bytes:
    """Give the bytes that the event store appends."""
    return _encoder.encode(JournalEntry(stamp, body))


def decode_entry(data: bytes) -> JournalEntry:
    """
    Read an entry's bytes.

    Raises:
        UnreadableEntry: the bytes are damaged, or of a version that this code does not know.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableEntry(str(error)) from error
