"""The fold of a journal with its running digest, and snapshots of both."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from session_core import wire
from session_core.journal import Position
from session_core.reducer import REDUCER_VERSION, Reduction, reduce_bytes
from session_core.state import State

SNAPSHOT_SCHEMA = 1
"""Raised whenever the state's shape changes; snapshots of another schema are thrown away."""

GENESIS = bytes(32)
"""The digest before the first outbound event."""


def chain(digest: bytes, event: wire.ServerEvent) -> bytes:
    """Hash one more canonical outbound event onto the chain: sha256(previous digest + the event as msgpack)."""
    return hashlib.sha256(digest + _canonical.encode(event)).digest()


_canonical = msgspec.msgpack.Encoder()


class Fold(NamedTuple):
    """A state, and the digest of every numbered outbound event that led to it. Immutable, so cheap to keep."""

    state: State = State()
    digest: bytes = GENESIS

    def step(self, position: Position, data: bytes) -> tuple[Fold, Reduction]:
        """Fold one more entry; never raises for what the entry holds."""
        reduction = reduce_bytes(self.state, position, data)
        digest = self.digest
        for event, attachment_id in reduction.outbound:
            if attachment_id is None:
                digest = chain(digest, event)
        return Fold(reduction.state, digest), reduction


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    reducer_version: int
    digest: bytes
    state: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_outer = msgspec.msgpack.Decoder(_Snapshot)
_inner = msgspec.msgpack.Decoder(State)


def encode_snapshot(fold: Fold) -> bytes:
    """Give the bytes of a snapshot; it lies beside the journal and can always be made again."""
    state = msgspec.Raw(_encoder.encode(fold.state))
    return _encoder.encode(_Snapshot(SNAPSHOT_SCHEMA, REDUCER_VERSION, fold.digest, state))


def decode_snapshot(data: bytes) -> Fold | None:
    """Read a snapshot; None if it is damaged or of another version, so that the caller folds from the start."""
    try:
        outer = _outer.decode(data)
        if (outer.schema, outer.reducer_version) != (SNAPSHOT_SCHEMA, REDUCER_VERSION):
            return None
        return Fold(_inner.decode(outer.state), outer.digest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
