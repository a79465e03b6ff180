"""After the run: what each client was told and what it said, against its session's journal."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from api.codec.server import Projection
from eventstore import Entry
from eventstore.store import EventStore
from replay_tools.lint import read, violations
from replay_tools.reader import fold_steps, read_journal
from replay_tools.verify import Outcome, verify_entries
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.journal import Role, Stamp
from session_core.state import EndReason, Phase, State
from tests.chaos.line import Line, Receipt, digest_of
from tests.chaos.user import User
from tests.chaos.world import Kill

_DELTA = re.compile(r'"delta":"[^"]*"')


class Account(Struct):
    """What was found, of one session or of all."""

    events: int = 0
    """Numbered events that arrived, all connections together."""
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    altered: int = 0
    """Arrived once and in order, and is not what the journal says."""
    input_bytes: int = 0
    verified: int = 0
    """Sessions with a digest of a gateway's that the journal matches."""
    late: int = 0
    """Entries in the journal of owners whose time was over: refused, all of them."""
    problems: list[str] = msgspec.field(default_factory=list)
    failovers_ms: list[float] = msgspec.field(default_factory=list)
    """From a worker's kill to the first audio of the next owner at the client, for responses in progress."""
    failover_gaps_ms: list[float] = msgspec.field(default_factory=list)
    """The same up to the next owner's first unit in the journal, for all sessions that the worker had."""

    @property
    def sound(self) -> bool:
        """Nothing is wrong."""
        return not (self.lost or self.duplicated or self.out_of_order or self.altered or self.problems)

    def add(self, other: Account) -> None:
        """Count another one in."""
        self.events += other.events
        self.lost += other.lost
        self.duplicated += other.duplicated
        self.out_of_order += other.out_of_order
        self.altered += other.altered
        self.input_bytes += other.input_bytes
        self.late += other.late
        self.verified += other.verified
        self.problems += other.problems
        self.failovers_ms += other.failovers_ms
        self.failover_gaps_ms += other.failover_gaps_ms


class _Told(Struct):
    """A numbered event as the journal gives it."""

    digest: bytes
    discarded: bytes | None
    """The same event, were it audio of a response that was cancelled meanwhile."""
    entry: int
    text: str


class _Journal:
    """A session's journal, folded: everything to compare with."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.told: list[_Told] = []
        self.said: list[bytes | str] = []
        """What the journal took of the client: audio, and event ids of commands."""
        self.problems: list[str] = []
        self.owners: list[tuple[float, str, int]] = []
        """Each assignment: its time, worker, and the number of events told before."""
        self.first_unit: dict[int, tuple[float, int]] = {}
        """By index of the assignment: time of its first unit, and the number of events told before."""
        self.open_from: dict[int, bool] = {}
        self.late = 0
        """Entries of holders whose generation was over."""
        self.state = State()
        self._fold()

    def _fold(self) -> None:
        projection: Projection | None = None
        for step in fold_steps(self.entries):
            before, self.state = step.before.state, step.after.state
            projection = projection or Projection(self.state.pinned.way, self.state.pinned.dialect)
            told = len(self.told)
            for event, attachment_id in step.reduction.outbound:
                if attachment_id is None:
                    self._tell(projection, event, step.number)
            if step.entry is None:
                self.problems.append(f"entry {step.number} cannot be decoded")
                continue
            self._late(before, step.number, step.entry.stamp)
            self._owner(before, step.number, told, step.entry.body)
            self._input(before, step.entry.body)

    def _tell(self, projection: Projection, event: wire.ServerEvent, entry: int) -> None:
        text = projection.encode(event)
        assert text is not None
        discarded, kept = None, text
        if isinstance(event, wire.AudioDelta):
            kept = _DELTA.sub('"delta":""', text)
            if (shown := projection.discarded(event)) is not None:
                discarded = digest_of((projection.encode(shown) or "").encode())
        self.told.append(_Told(digest_of(text.encode()), discarded, entry, kept))

    def _late(self, before: State, number: int, stamp: Stamp | None) -> None:
        """What a holder writes whose generation is over changes nothing."""
        if stamp is None:
            return
        holder = before.worker if stamp.role is Role.WORKER else before.attachment
        if stamp.generation < holder.generation:
            self.late += 1
            if replace(before, position=self.state.position) != self.state:
                self.problems.append(f"entry {number} of an old {stamp.role.name} counted")

    def _owner(self, before: State, number: int, told: int, body: object) -> None:
        after = self.state
        for name, old, new in (
            ("worker", before.worker.generation, after.worker.generation),
            ("attachment", before.attachment.generation, after.attachment.generation),
        ):
            if new not in (old, old + 1):
                self.problems.append(f"{name} generation {new} after {old} at entry {number}")
        if after.worker.generation > before.worker.generation:
            self.owners.append((after.now_ms, after.worker.worker or "", told))
            self.open_from[len(self.owners) - 1] = before.response is not None
        if (
            isinstance(body, ev.ModelUnitCompleted)
            and after.worker.completed_units > before.worker.completed_units
        ):
            self.first_unit.setdefault(len(self.owners) - 1, (after.now_ms, told))

    def _input(self, before: State, body: object) -> None:
        after = self.state
        if isinstance(body, cmd.AppendAudio):
            if after.input.received_bytes > before.input.received_bytes:
                self.said.append(body.audio)
        elif after.attachment.last_n > before.attachment.last_n:
            event_id = getattr(body, "event_id", None)
            if event_id is not None:
                self.said.append(event_id)


async def check(store: EventStore, user: User, kills: Sequence[Kill]) -> Account:
    """Compare one session."""
    journal = _Journal([entry async for entry in read_journal(store, user.session_id)])
    account = Account(late=journal.late, problems=[*user.problems, *journal.problems])
    _check_journal(journal, account)
    skipped: set[int] = set()
    for line in user.lines:
        skipped |= _check_line(line, journal, account)
    _check_end(user, journal, skipped, account)
    _check_said(user, journal, account)
    _measure(user, journal, kills, account)
    return account


async def check_unheard(store: EventStore, session_id: str) -> Account:
    """Check a session whose client broke off before it heard of it: the journal by itself."""
    journal = _Journal([entry async for entry in read_journal(store, session_id)])
    account = Account(late=journal.late, problems=journal.problems)
    _check_journal(journal, account)
    return account


def _check_journal(journal: _Journal, account: Account) -> None:
    """The journal verifies, and what it tells is in the order that clients rely on."""
    wrong = violations(read(told.text) for told in journal.told)
    account.problems += [f"order: {what}" for what in wrong[:3]]
    report = verify_entries(journal.entries)
    account.verified += report.outcome is Outcome.VERIFIED
    # A session whose gateways were all killed has no digest; what its client heard is compared all the same.
    if report.outcome is Outcome.FAILED:
        account.problems.append(f"verify: {report}")


def _check_line(line: Line, journal: _Journal, account: Account) -> set[int]:
    """
    A connection brings what follows the number that it asked from: each event once, in order, and no other.

    Gives the numbers that it skipped.
    """
    expected, seen, skipped = line.asked_seq + 1, set[int](), set[int]()
    for receipt in line.receipts:
        account.events += 1
        if receipt.seq == expected:
            expected += 1
        elif receipt.seq > expected:
            account.lost += receipt.seq - expected
            account.problems.append(
                f"generation {line.generation}: event {receipt.seq} where {expected} was due"
            )
            skipped.update(range(expected, receipt.seq))
            expected = receipt.seq + 1
        elif receipt.seq in seen:
            account.duplicated += 1
            account.problems.append(f"generation {line.generation}: event {receipt.seq} a second time")
        else:
            account.out_of_order += 1
            account.problems.append(f"generation {line.generation}: event {receipt.seq} out of order")
        seen.add(receipt.seq)
        _check_content(receipt, line, journal, account)
    return skipped


def _check_content(receipt: Receipt, line: Line, journal: _Journal, account: Account) -> None:
    told = journal.told[receipt.seq - 1] if receipt.seq <= len(journal.told) else None
    if told is None:
        account.altered += 1
        account.problems.append(f"generation {line.generation}: event {receipt.seq} is not in the journal")
    elif receipt.digest not in (told.digest, told.discarded):
        account.altered += 1
        account.problems.append(
            f"generation {line.generation}: event {receipt.seq} ({receipt.type}) is not as the journal says "
            f"(entry {told.entry}): {told.text[:200]}"
        )


def _check_end(user: User, journal: _Journal, skipped: set[int], account: Account) -> None:
    """The session is over, as its client left it, and a client that heard the end heard everything."""
    state = journal.state
    if state.phase is not Phase.ENDED:
        account.problems.append(f"is not over: {user.over}")
    expected = {"abandoned": EndReason.GRACE}.get(user.over, EndReason.CLOSED)
    if user.over and state.end_reason not in (None, expected):
        account.problems.append(f"{user.over}: ended by {state.end_reason}")
    arrived = {receipt.seq for line in user.lines for receipt in line.receipts}
    last = len(journal.told) if user.over.startswith("session.") else user.seq
    missing = [seq for seq in range(1, last + 1) if seq not in arrived | skipped]
    if missing:
        account.lost += len(missing)
        account.problems.append(f"never arrived: {missing[:10]}")


def _check_said(user: User, journal: _Journal, account: Account) -> None:
    """
    The journal holds a beginning of what was said, at least up to the receipts; all of it after a close.
    """
    said: list[bytes | str] = [each.audio or each.event_id or "" for each in user.said]
    account.input_bytes += sum(len(each) for each in journal.said if isinstance(each, bytes))
    if journal.said != said[: len(journal.said)]:
        at = next(
            (i for i, (ours, theirs) in enumerate(zip(said, journal.said, strict=False)) if ours != theirs),
            len(said),
        )
        account.problems.append(f"input: the journal has something else at {at} of {len(said)} said")
    if user.over.startswith(("session.closed", "closed")) and len(journal.said) != len(said):
        account.problems.append(f"input: {len(journal.said)} of {len(said)} are in the journal")
    received, event_id = user.receipt
    if received > sum(len(each) for each in journal.said if isinstance(each, bytes)):
        account.problems.append(f"input: receipt {received} covers more than the journal has")
    if event_id is not None and event_id not in journal.said:
        account.problems.append(f"input: receipt {event_id} is not in the journal")


def _measure(user: User, journal: _Journal, kills: Sequence[Kill], account: Account) -> None:
    """Failovers: whoever was killed while it had the session."""
    arrived_ms: dict[int, float] = {}
    for line in user.lines:
        for receipt in line.receipts:
            arrived_ms.setdefault(receipt.seq, receipt.at_ms)
    for index, (_, worker, _) in enumerate(journal.owners[:-1]):
        next_ms = journal.owners[index + 1][0]
        kill = next((k for k in kills if k.worker_id == worker and k.at_ms < next_ms), None)
        unit = journal.first_unit.get(index + 1)
        if kill is None or unit is None or kill.at_ms < journal.owners[index][0]:
            continue
        account.failover_gaps_ms.append(unit[0] - kill.at_ms)
        if not journal.open_from[index + 1]:
            continue
        for seq in range(unit[1] + 1, len(journal.told) + 1):
            if '"response.output_audio.delta"' in journal.told[seq - 1].text[:200]:
                if seq in arrived_ms:
                    account.failovers_ms.append(arrived_ms[seq] - kill.at_ms)
                break
