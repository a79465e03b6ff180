"""What processes tell each other."""

from __future__ import annotations

import pytest

from session_core.errors import UnreadableEntry
from session_core.fleet import (
    Advertisement,
    ProcessRole,
    decode_advertisement,
    encode_advertisement,
    parse_slot_member,
    slot_member,
)
from tests.session_core.scenario import PROFILE


@pytest.mark.parametrize(
    "advertisement",
    [Advertisement(ProcessRole.GATEWAY, 1), Advertisement(ProcessRole.WORKER, 1, PROFILE, 8, draining=True)],
)
def test_an_advertisement_comes_back_as_it_was(advertisement: Advertisement) -> None:
    """Heartbeats carry it."""
    assert advertisement == decode_advertisement(encode_advertisement(advertisement))


def test_an_advertisement_of_another_version_is_none() -> None:
    """A process that nobody here understands is not chosen."""
    assert decode_advertisement(b"\xc1") is None


def test_a_slot_member_names_session_and_generation() -> None:
    """Session ids may hold colons."""
    assert ("{s17}:ab", 3) == parse_slot_member(slot_member("{s17}:ab", 3))


@pytest.mark.parametrize("member", ["", ":1", "ab", "ab:", "ab:x", "ab:-1"])
def test_other_members_are_refused(member: str) -> None:
    """They were not made here."""
    with pytest.raises(UnreadableEntry):
        parse_slot_member(member)
