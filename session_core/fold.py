"""
The fold of a journal with its running digests, and snapshots of all.

Two digests, because they prove different things. The hash chain over outbound events says that clients were
told exactly this: it fails when code or data changed. The checksum over raw entries says that the journal is
the one that was folded then: it fails when data changed, the user's audio included, which no outbound event
repeats. A CRC is enough for that (it finds every damaged run of up to 32 bits for certain) and costs a third
of a hash.
"""

from __future__ import annotations

import binascii
import hashlib
import struct

import msgspec

from session_core import wire
from session_core.events import OutboundDigest
from session_core.journal import Position
from session_core.reducer import REDUCER_VERSION, Reduction, reduce_bytes
from session_core.state import State

SNAPSHOT_SCHEMA = 2
"""Raised whenever the state's shape changes; snapshots of another schema are thrown away."""

GENESIS = bytes(32)
"""The digest before the first outbound event."""


def chain(digest: bytes, event: wire.ServerEvent) -> bytes:
    """Hash one more canonical outbound event onto the chain: sha256(previous digest + event as msgpack)."""
    return hashlib.sha256(digest + _canonical.encode(event)).digest()


_canonical = msgspec.msgpack.Encoder()


def checksum(crc32: int, position: Position, data: bytes) -> int:
    """Carry the running checksum over one more entry: its position, then its bytes."""
    return binascii.crc32(data, binascii.crc32(_place.pack(*position), crc32))


_place = struct.Struct(">QQ")


class Fold(msgspec.Struct, frozen=True):
    """A state, and the digests of what led to it. Immutable, so cheap to keep."""

    state: State = State()
    digest: bytes = GENESIS
    """Hash chain over every numbered outbound event."""
    crc32: int = 0
    """Running checksum over every entry."""

    def step(self, position: Position, data: bytes) -> tuple[Fold, Reduction]:
        """Fold one more entry; never raises for what the entry holds."""
        reduction = reduce_bytes(self.state, position, data)
        digest = self.digest
        for event, attachment_id in reduction.outbound:
            if attachment_id is None:
                digest = chain(digest, event)
        return Fold(reduction.state, digest, checksum(self.crc32, position, data)), reduction

    def outbound_digest(self) -> OutboundDigest:
        """Give the entry that lets `verify` compare a later fold with this one."""
        return OutboundDigest(self.state.seq, self.digest, self.state.position, self.crc32)


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    reducer_version: int
    digest: bytes
    crc32: int
    state: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_outer = msgspec.msgpack.Decoder(_Snapshot)
_inner = msgspec.msgpack.Decoder(State)


def encode_snapshot(fold: Fold) -> bytes:
    """Give the bytes of a snapshot; it lies beside the journal and can always be made again."""
    state = msgspec.Raw(_encoder.encode(fold.state))
    return _encoder.encode(_Snapshot(SNAPSHOT_SCHEMA, REDUCER_VERSION, fold.digest, fold.crc32, state))


def decode_snapshot(data: bytes) -> Fold | None:
    """Read a snapshot; None if it is damaged or of another version: the caller folds from the start."""
    try:
        outer = _outer.decode(data)
        if (outer.schema, outer.reducer_version) != (SNAPSHOT_SCHEMA, REDUCER_VERSION):
            return None
        return Fold(_inner.decode(outer.state), outer.digest, outer.crc32)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
