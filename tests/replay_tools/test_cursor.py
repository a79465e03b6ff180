from __future__ import annotations

import pytest

from eventstore import EntryId
from replay_tools.cursor import AtElapsed, AtEnd, AtEntry, AtSeq, Cursor, covers, parse_cursor, reaches
from replay_tools.errors import BadCursor
from replay_tools.reader import fold_steps
from tests.replay_tools.journals import START_MS, conversation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000-3", AtEntry(EntryId(1_700_000_000_000, 3))),
        ("+1234ms", AtElapsed(1234)),
        ("seq:57", AtSeq(57)),
        ("end", AtEnd()),
    ],
)
def test_a_cursor_is_read(text: str, expected: Cursor) -> None:
    """Each of the four forms names its kind of place."""
    assert expected == parse_cursor(text)


@pytest.mark.parametrize(
    "text", ["", "start", "12", "1-", "+5", "+5s", "-5ms", "seq:", "seq:x", "End", " end", "1-2-3"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Anything else is an error that carries the text."""
    with pytest.raises(BadCursor) as caught:
        parse_cursor(text)

    assert text == caught.value.text


@pytest.mark.parametrize(
    ("cursor", "last"),
    [
        (AtEntry(EntryId(START_MS + 80, 0)), 3),
        (AtEntry(EntryId(START_MS + 100, 0)), 3),
        (AtElapsed(119), 3),
        (AtElapsed(120), 4),
        (AtSeq(0), 0),
        (AtSeq(1), 18),
        (AtSeq(7), 18),
        (AtSeq(8), 20),
        (AtEnd(), 36),
    ],
)
def test_a_cursor_covers_the_entries_up_to_it(cursor: Cursor, last: int) -> None:
    """Everything before the place and the entry at the place are covered, nothing after it."""
    covered = [step.number for step in fold_steps(conversation().entries) if covers(cursor, step, START_MS)]

    assert list(range(1, last + 1)) == covered


@pytest.mark.parametrize(
    "cursor", [AtEntry(EntryId(START_MS + 80, 0)), AtElapsed(120), AtSeq(1), AtSeq(8), AtSeq(20)]
)
def test_a_range_holds_both_its_ends(cursor: Cursor) -> None:
    """From a cursor to the same cursor there is at least the cursor's own entry."""
    steps = list(fold_steps(conversation().entries))

    both = [s.number for s in steps if reaches(cursor, s, START_MS) and covers(cursor, s, START_MS)]
    assert both
