"""The suite covers the whole contract; runs after all other tests."""

from __future__ import annotations

import pytest

from tests.conformance.coverage import PAGE, Coverage, covered_by, declared, functions, page, place
from tests.conformance.recorder import Server
from tests.conformance.vocabulary import CLIENT_EVENTS, EXCUSED, SERVER_EVENTS


def test_the_vocabulary_is_the_contracts() -> None:
    """The contract has 21 client events and 45 server events."""
    assert (21, 45) == (len(CLIENT_EVENTS), len(SERVER_EVENTS))


def test_every_event_has_a_test() -> None:
    """Each event of the contract is declared by a test or excused with a reason, and never both."""
    known = {*CLIENT_EVENTS, *SERVER_EVENTS}
    assert known - set(declared()) == set(EXCUSED)
    assert set(declared()) <= known


def test_every_claim_is_true(coverage: Coverage, server: Server) -> None:
    """Every test of this run sent or saw the events that it is said to cover."""
    if not server.ours:
        pytest.skip("what a foreign model can be brought to do is open")
    assert {} == coverage.missed()


def test_every_event_was_sent_or_seen(coverage: Coverage) -> None:
    """A whole run of the suite sent every client event and received every server event."""
    if not {place(test) for test in functions() if covered_by(test)} <= set(coverage.seen):
        pytest.skip("only part of the suite ran")
    assert set() == {*CLIENT_EVENTS, *SERVER_EVENTS} - set(EXCUSED) - coverage.all_seen


def test_the_page_is_current() -> None:
    """`docs/events.md` says what the suite covers now."""
    assert page() == PAGE.read_text(), "run: python -m tests.conformance.coverage"
