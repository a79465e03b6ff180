"""
What can go wrong when a journal is inspected.

    ReplayError
    ├── BadCursor        the caller: a cursor that means nothing
    └── JournalCut       the journal's beginning was trimmed, and no snapshot stands in for it
"""

from __future__ import annotations

from eventstore import EntryId


class ReplayError(Exception):
    """The root of this package's errors."""


class BadCursor(ReplayError):
    """A text that is no cursor."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'{self.text!r} is no cursor: give "ms-seq", "+1234ms", "seq:57" or "end"'


class JournalCut(ReplayError):
    """The journal cannot be folded: it begins at `first`, and no usable snapshot lies at or after the cut."""

    def __init__(self, session_id: str, first: EntryId) -> None:
        super().__init__(session_id, first)
        self.session_id = session_id
        self.first = first

    def __str__(self) -> str:
        return (
            f"{self.session_id}: entries before {self.first} are trimmed and no snapshot stands in for them"
        )
