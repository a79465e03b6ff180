"""Cursors as people write them: a place in a journal by entry, by time, or by outbound event."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from eventstore import EntryId

from .errors import BadCursor
from .reader import Step


@dataclass(frozen=True, slots=True)
class AtEntry:
    """Just after the entry `position` ("1700000000000-0")."""

    position: EntryId


@dataclass(frozen=True, slots=True)
class AtElapsed:
    """Just after the last entry within `elapsed_ms` of the journal's first ("+1234ms")."""

    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class AtSeq:
    """Just after the entry that gave outbound event `seq` ("seq:57")."""

    seq: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """After everything ("end")."""


Cursor: TypeAlias = AtEntry | AtElapsed | AtSeq | AtEnd

_ENTRY = re.compile(r"(\d+)-(\d+)")
_ELAPSED = re.compile(r"\+(\d+)ms")
_SEQ = re.compile(r"seq:(\d+)")


def parse_cursor(text: str) -> Cursor:
    """
    Read a cursor.

    Raises:
        BadCursor: the text has none of the four forms.
    """
    if text == "end":
        return AtEnd()
    if match := _ENTRY.fullmatch(text):
        return AtEntry(EntryId(int(match[1]), int(match[2])))
    if match := _ELAPSED.fullmatch(text):
        return AtElapsed(int(match[1]))
    if match := _SEQ.fullmatch(text):
        return AtSeq(int(match[1]))
    raise BadCursor(text)


def covers(cursor: Cursor, step: Step, start_ms: int) -> bool:
    """
    Whether the entry lies at or before the cursor.

    Args:
        cursor: a place in the journal.
        step: the entry's step of the fold.
        start_ms: time of the journal's first entry.
    """
    match cursor:
        case AtEntry(position):
            return step.id <= position
        case AtElapsed(elapsed_ms):
            return step.id.ms - start_ms <= elapsed_ms
        case AtSeq(seq):
            return step.before.state.seq < seq
        case AtEnd():
            return True


def reaches(cursor: Cursor, step: Step, start_ms: int) -> bool:
    """
    Whether the entry lies at or after the cursor: its own entry does, so a range includes both its ends.
    """
    match cursor:
        case AtEntry(position):
            return step.id >= position
        case AtElapsed(elapsed_ms):
            return step.id.ms - start_ms >= elapsed_ms
        case AtSeq(seq):
            return step.after.state.seq >= seq
        case AtEnd():
            return False
