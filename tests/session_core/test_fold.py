"""The fold's digests, and snapshots."""

from __future__ import annotations

import msgspec
import pytest

from session_core import commands as cmd
from session_core import fold as fold_module
from session_core.fold import GENESIS, Fold, chain, decode_snapshot, encode_snapshot
from tests.session_core.scenario import Scenario, folded


def test_the_digest_chains_session_events_only() -> None:
    """Addressed events are never replayed, so they are not in it."""
    session = Scenario.live()
    assert GENESIS == session.fold.digest

    (event,) = session.client(cmd.Heartbeat())
    assert chain(GENESIS, event) == session.fold.digest


def test_the_checksum_sees_what_no_client_hears() -> None:
    """Other audio in the journal leaves the digest alone, and the checksum not."""
    one, other = Scenario.live(), Scenario.live()
    one.client(cmd.AppendAudio(b"\x00\x00"))
    other.client(cmd.AppendAudio(b"\x00\x01"))

    assert one.fold.digest == other.fold.digest
    assert one.fold.crc32 != other.fold.crc32


def test_the_fold_states_itself() -> None:
    """The entry for `verify` names where the fold stands and what it saw."""
    session = Scenario.live()
    session.client(cmd.Heartbeat())
    digest = session.fold.outbound_digest()

    assert (1, session.fold.digest, session.state.position, session.fold.crc32) == (
        digest.seq,
        digest.sha256,
        digest.upto,
        digest.crc32,
    )


def test_a_snapshot_is_the_fold() -> None:
    """And the fold goes on from it."""
    session = Scenario.live()
    session.asks()
    restored = decode_snapshot(encode_snapshot(session.fold))

    assert session.fold == restored
    session.speaks("a")
    assert session.fold == folded(session.entries[-1:], restored)[0]


def test_a_fold_begins_empty() -> None:
    """Before the first entry there is nothing."""
    assert (Fold(), []) == folded([])


@pytest.mark.parametrize("name", ["SNAPSHOT_SCHEMA", "REDUCER_VERSION"])
def test_a_snapshot_of_another_version_is_thrown_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants it folds from the start."""
    data = encode_snapshot(Scenario.live().fold)
    monkeypatch.setattr(fold_module, name, 99)

    assert decode_snapshot(data) is None


def test_a_damaged_snapshot_is_thrown_away() -> None:
    """Cut anywhere, outside or inside of the state."""
    data = encode_snapshot(Scenario.live().fold)
    outer = msgspec.msgpack.decode(data)
    outer[-1] = {"seq": "x"}

    assert {None} == {decode_snapshot(data[:end]) for end in range(len(data))}
    assert decode_snapshot(msgspec.msgpack.encode(outer)) is None
