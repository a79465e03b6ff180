"""What the processes of a deployment tell each other in their heartbeats."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from session_core.config import ModelProfile
from session_core.errors import UnreadableEntry


class ProcessRole(StrEnum):
    """What a process does."""

    GATEWAY = "gateway"
    WORKER = "worker"


class Advertisement(Struct, frozen=True, omit_defaults=True):
    """
    The payload of a heartbeat.

    Gateways learn from it which models there are and where a slot may be free.
    """

    role: ProcessRole
    reducer_version: int
    profile: ModelProfile | None = None
    """The model that a worker serves; None for gateways."""
    capacity: int = 0
    """Sessions that a worker takes at once."""
    draining: bool = False
    """The process is about to leave and takes nothing new."""


def slot_member(session_id: str, generation: int) -> str:
    """Name a worker's or gateway's hold on a session: the member of its set in the event store."""
    return f"{session_id}:{generation}"


def parse_slot_member(member: str) -> tuple[str, int]:
    """
    Give back session id and generation.

    Raises:
        UnreadableEntry: `member` was not made by `slot_member`.
    """
    session_id, _, generation = member.rpartition(":")
    if not session_id or not generation.isdecimal():
        raise UnreadableEntry(f"no slot member: {member!r}")
    return session_id, int(generation)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Advertisement)


def encode_advertisement(advertisement: Advertisement) -> bytes:
    """Give a heartbeat's payload."""
    return _encoder.encode(advertisement)


def decode_advertisement(data: bytes) -> Advertisement | None:
    """Read a heartbeat's payload; None if it is of a version that this process does not know."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
