"""
Verify: fold a journal again and compare with what gateways recorded while it was live.

Three claims are checked. What clients were told: the hash chain over outbound events at each recorded digest.
What was folded then: the checksum over raw entries, so that damage to entries which no outbound event repeats
(the user's audio) is found too. And that a snapshot is no second truth: a fold that goes through one in the
middle ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from eventstore import Entry, EntryId, EventStore
from session_core.events import OutboundDigest
from session_core.fold import Fold, decode_snapshot, encode_snapshot

from .reader import Beginning, Step, beginning, fold_entry, read_journal


class Outcome(IntEnum):
    """How a verification ended; the value is the command's exit code."""

    VERIFIED = 0
    FAILED = 1
    NOTHING_TO_COMPARE = 2


class Report(NamedTuple):
    """What a verification found."""

    outcome: Outcome
    entries: int
    outbound: int
    digests: int
    """Digests that matched."""
    uncovered: int
    """
    Entries after the last point that a digest vouches for; damage there can only be found if it cannot be
    decoded.
    """
    problem: str = ""

    def __str__(self) -> str:
        match self.outcome:
            case Outcome.VERIFIED:
                line = (
                    f"verified, replay equals the live run: {self.entries} entries, "
                    f"{self.outbound} outbound events, "
                    f"{self.digests} {'digest matches' if self.digests == 1 else 'digests match'}"
                )
                return f"{line}; the last {self.uncovered} entries are after it" if self.uncovered else line
            case Outcome.FAILED:
                return f"FAILED: {self.problem}"
            case Outcome.NOTHING_TO_COMPARE:
                return f"nothing to compare: {self.entries} entries, no digest among them"


class _Failure(Exception):
    """The first thing that is wrong; ends a verification."""


class _Point(NamedTuple):
    """A position of the fold that a digest may name, with what it has to say there."""

    number: int
    seq: int
    digest: bytes
    crc32: int


class Verifier:
    """
    One verification; fed the journal's entries in order, then asked once for its report.

    Holds one small tuple per entry, never the journal: a gateway that stood still may append its digest when
    newer ones are there already.
    """

    def __init__(self, start: Beginning | None = None, *, round_trip_at: int = 0) -> None:
        """
        Begin.

        Args:
            start: where the fold begins; None: with the journal.
            round_trip_at: after so many entries a second fold starts from a snapshot; 0 for none.
        """
        self.fold, self._start = start or Beginning()
        self._round_trip_at = round_trip_at
        self._shadow: Fold | None = None
        self._points = {self._start: self._point(0)}
        self._entries = 0
        self._matched: list[_Point] = []
        self._named = 0
        """Number of the newest entry that a matching digest vouches for."""
        self._problem = ""

    def feed(self, entry: Entry) -> bool:
        """Take the next entry; False once something is wrong, and the rest need not be fed."""
        if self._problem:
            return False
        self._entries += 1
        try:
            step = fold_entry(self.fold, entry, self._entries)
            self._check(step)
            self._check_snapshot(entry, step)
        except _Failure as failure:
            self._problem = str(failure)
            return False
        self.fold = step.after
        self._points[entry.id] = self._point(self._entries)
        return True

    def report(self) -> Report:
        """What was found."""
        if self._problem:
            outcome = Outcome.FAILED
        elif not self._matched:
            outcome = Outcome.NOTHING_TO_COMPARE
        else:
            outcome = Outcome.VERIFIED
        # The last digest's own entry needs no voucher: it was compared, all of it.
        uncovered = max(0, self._entries - self._named)
        matched = len(self._matched)
        return Report(outcome, self._entries, self.fold.state.seq, matched, uncovered, self._problem)

    def _point(self, number: int) -> _Point:
        return _Point(number, self.fold.state.seq, self.fold.digest, self.fold.crc32)

    def _check(self, step: Step) -> None:
        if step.entry is None:
            raise _Failure(f"entry {step.number} at {step.id} cannot be decoded")
        if not isinstance(step.entry.body, OutboundDigest):
            return
        recorded, where = step.entry.body, f"the digest at {step.id} (entry {step.number})"
        upto = EntryId(*recorded.upto)
        if upto < self._start:
            return  # The snapshot stands for what a gateway says late of the entries before it.
        point = self._points.get(upto)
        if point is None:
            raise _Failure(f"{where} vouches for the entries up to {upto}, where there is none")
        self._compare(recorded, point, where)
        self._matched.append(point)
        # The digest's own entry is compared field by field, so it is vouched for once nothing lies between.
        named = step.number if point.number == step.number - 1 else point.number
        self._named = max(self._named, named)

    def _compare(self, recorded: OutboundDigest, point: _Point, where: str) -> None:
        last_seq = self._matched[-1].seq if self._matched else 0
        between = f"between outbound events {last_seq} and {recorded.seq}"
        if recorded.crc32 != point.crc32:
            first = self._named + 1
            raise _Failure(
                f"{where} finds other entries in {first} to {point.number}, {between}: damaged since"
            )
        if recorded.seq != point.seq:
            raise _Failure(
                f"{where} says event {recorded.seq}, where the fold is at {point.seq}: no event boundary"
            )
        if recorded.sha256 != point.digest:
            raise _Failure(f"{where} finds other outbound events, {between}: the fold gives others by now")

    def _check_snapshot(self, entry: Entry, step: Step) -> None:
        if self._shadow is not None:
            self._shadow, _ = self._shadow.step(entry.id, entry.data)
            if self._shadow != step.after:
                raise _Failure(f"the fold from a snapshot differs at {step.id} (entry {step.number})")
        elif step.number == self._round_trip_at:
            self._shadow = decode_snapshot(encode_snapshot(step.after))
            if self._shadow != step.after:
                raise _Failure(f"the snapshot at {step.id} (entry {step.number}) does not hold the state")


def verify_entries(entries: Iterable[Entry], start: Beginning | None = None) -> Report:
    """Verify a journal at hand, with a snapshot round trip in its middle."""
    entries = list(entries)
    verifier = Verifier(start, round_trip_at=max(1, len(entries) // 2))
    for entry in entries:
        if not verifier.feed(entry):
            break
    return verifier.report()


async def verify(store: EventStore, session_id: str) -> Report:
    """
    Verify a session's journal up to its present end. Reads it twice: the first time only counts its entries.

    Raises:
        UnknownSession: there is no such journal.
        JournalCut: its beginning is gone and no snapshot stands in for it.
    """
    start = await beginning(store, session_id)
    count = 0
    async for _ in read_journal(store, session_id, start.cursor):
        count += 1
    verifier = Verifier(start, round_trip_at=max(1, count // 2))
    async for entry in read_journal(store, session_id, start.cursor):
        if not verifier.feed(entry):
            break
    return verifier.report()
