from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore import Entry
from replay_tools.verify import Outcome, verify, verify_entries
from session_core import commands as cmd
from session_core.events import OutboundDigest
from session_core.journal import encode_entry
from tests.replay_tools.journals import Script, conversation, opened, serving

CONVERSATION = conversation()
AUDIO_IN = 3
"""Index of an entry that holds nothing but the user's audio."""


def test_a_sound_journal_is_verified() -> None:
    """Every digest is compared, and the report counts what it covers."""
    report = verify_entries(CONVERSATION.entries)

    assert Outcome.VERIFIED == report.outcome
    assert "verified, replay equals the live run: 36 entries, 20 outbound events, 3 digests match" == str(
        report
    )


async def test_a_session_is_verified_in_its_store() -> None:
    """Reading from a store gives the same report."""
    async with serving(CONVERSATION) as store:
        report = await verify(store, CONVERSATION.session_id)

    assert verify_entries(CONVERSATION.entries) == report


def test_a_journal_without_a_digest_has_nothing_to_compare() -> None:
    """An unchecked journal is not called verified."""
    script = opened()
    script.hear(2)

    report = verify_entries(script.entries)

    assert Outcome.NOTHING_TO_COMPARE == report.outcome
    assert "nothing to compare: 7 entries, no digest among them" == str(report)


def test_a_digest_may_come_after_a_newer_one() -> None:
    """A gateway that stood still appends its digest late; it is compared with the fold of then."""
    script = opened()
    script.hear(2)
    late = script.fold.outbound_digest()
    script.hear(2)
    script.digest()
    script.fact(late)

    report = verify_entries(script.entries)

    assert Outcome.VERIFIED == report.outcome
    assert 2 == report.digests


def test_entries_after_the_last_digest_are_counted_as_uncovered() -> None:
    """The report says how much nobody vouches for."""
    script = conversation()
    script.client(cmd.Heartbeat())
    script.client(cmd.Heartbeat())

    report = verify_entries(script.entries)

    assert 2 == report.uncovered
    assert Outcome.VERIFIED == report.outcome


@given(st.data())
def test_any_flipped_byte_is_found(data: st.DataObject) -> None:
    """No byte of any entry can change without a failure, whether audio of the user's or a digest itself."""
    index = data.draw(st.integers(0, len(CONVERSATION.entries) - 1))
    at = data.draw(st.integers(0, len(CONVERSATION.entries[index].data) - 1))
    flip = data.draw(st.integers(1, 255))

    report = verify_entries(_damaged(CONVERSATION, index, at, flip))

    assert Outcome.FAILED == report.outcome


def test_a_flipped_bit_of_the_users_audio_is_named() -> None:
    """
    Though no outbound event depends on it, the digest after it says which entries are not what they were.
    """
    report = verify_entries(_damaged(CONVERSATION, AUDIO_IN, 100, 1))

    assert "finds other entries in 1 to 15, between outbound events 0 and 0" in str(report)


def test_a_lost_entry_is_found() -> None:
    """A hole is damage too."""
    entries = [*CONVERSATION.entries[:AUDIO_IN], *CONVERSATION.entries[AUDIO_IN + 1 :]]

    assert Outcome.FAILED == verify_entries(entries).outcome


def test_a_moved_entry_is_found() -> None:
    """An entry's position is its time; it counts as part of the entry."""
    entries = list(CONVERSATION.entries)
    entries[AUDIO_IN] = Entry(entries[AUDIO_IN].id.next(), entries[AUDIO_IN].data)

    assert Outcome.FAILED == verify_entries(entries).outcome


@pytest.mark.parametrize(
    ("forge", "expected"),
    [
        (lambda digest: replace(digest, seq=digest.seq - 1), "no event boundary"),
        (lambda digest: replace(digest, sha256=bytes(32)), "the fold gives others by now"),
        (lambda digest: replace(digest, crc32=digest.crc32 ^ 1), "damaged since"),
        (lambda digest: replace(digest, upto=(digest.upto[0], 7)), "where there is none"),
    ],
)
def test_a_digest_that_does_not_fit_says_why(
    forge: Callable[[OutboundDigest], OutboundDigest], expected: str
) -> None:
    """Each way to differ has its own words, for each has another cause."""
    script = opened()
    script.hear(2)
    script.speak(2)
    script.fact(forge(script.fold.outbound_digest()))

    report = verify_entries(script.entries)

    assert Outcome.FAILED == report.outcome
    assert expected in str(report)


def test_a_digest_may_lag_behind() -> None:
    """Entries that came between a gateway's fold and its digest are none of the digest's business."""
    script = opened()
    script.hear(2)
    digest = script.fold.outbound_digest()
    script.speak(2)
    script.fact(digest)

    report = verify_entries(script.entries)

    assert Outcome.VERIFIED == report.outcome
    assert 5 == report.uncovered


def test_what_cannot_be_decoded_is_a_failure_by_itself() -> None:
    """No digest is needed to see that an entry is broken."""
    script = opened()
    broken = Entry(script.entries[-1].id.next(), encode_entry(cmd.Heartbeat())[:-1])

    report = verify_entries([*script.entries, broken])

    assert "FAILED: entry 4 at 1700000000080-1 cannot be decoded" == str(report)


def _damaged(script: Script, index: int, at: int, flip: int) -> list[Entry]:
    entries = list(script.entries)
    data = bytearray(entries[index].data)
    data[at] ^= flip
    entries[index] = Entry(entries[index].id, bytes(data))
    return entries
