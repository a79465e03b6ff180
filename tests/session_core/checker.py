"""Order and cardinality of a session's outbound events, checked on the JSON that clients read.

Knows nothing of the core, so it holds over the wire as well. `violations` gives what is wrong:

    response   created, item added, output item added, part added, speak, deltas, audio done, transcript done,
               part done, output item done, item done, response done, rate limits; each at most once, and
               nothing after `response.done`
    item       added once, done once; a commit between the two; `previous_item_id` names one that was added
    speech     started, stopped, committed
    session    numbers without a gap, epochs that never go back, nothing after the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType


class Playback(Struct, frozen=True):
    """The playback ledger of an event."""

    generated_ms: int
    sent_ms: int
    played_ms: int
    committed_ms: int


class Details(Struct, frozen=True):
    """Why a response ended."""

    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"] | None = None


class Body(Struct, frozen=True):
    """An item or a response inside an event."""

    id: str
    status: str | None = None
    status_details: Details | None = None


class Seen(Struct, frozen=True):
    """What the checker reads of one event."""

    type: str
    server_event_seq: int | None = None
    epoch: int | None = None
    response_id: str | None = None
    item_id: str | None = None
    previous_item_id: str | UnsetType | None = UNSET
    item: Body | None = None
    response: Body | None = None
    delta: str = ""
    transcript: str = ""
    playback: Playback | None = None


def read(frame: bytes | str) -> Seen:
    """Read one frame.

    Raises:
        msgspec.ValidationError: a field has a type, or `reason` a value, that no client expects.
    """
    return _decoder.decode(frame)


_decoder = msgspec.json.Decoder(Seen)

_DELTAS = 6
_RANKS = {
    "response.created": 0,
    "conversation.item.added": 1,
    "conversation.item.created": 2,
    "response.output_item.added": 3,
    "response.content_part.added": 4,
    "response.speak": 5,
    "response.output_audio.delta": _DELTAS,
    "response.output_audio_transcript.delta": _DELTAS,
    "response.listen": 7,
    "response.output_audio.done": 8,
    "response.output_audio_transcript.done": 9,
    "response.content_part.done": 10,
    "response.output_item.done": 11,
    "conversation.item.done": 12,
    "response.done": 13,
}
"""The order of a response's events; only deltas repeat."""

_BEFORE_DELTAS = ("response.output_item.added", "response.content_part.added")
_CLOSING = (
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
)
_UNNUMBERED = ("session.created", "session.resumed", "session.replaced", "session.resync_required")
_LAST = ("session.closed", "session.expired")
_ITEM_STATUSES = ("in_progress", "completed", "incomplete")


class _Response(Struct):
    """One response so far."""

    rank: int = -1
    types: set[str] = msgspec.field(default_factory=set)
    transcript: str = ""
    output_status: str | None = None


class _Checker:
    """What was seen so far, and what was wrong with it. Lives for one sequence."""

    def __init__(self, *, tier_3: bool, after: int) -> None:
        self.tier_3 = tier_3
        self.seq = after
        self.epoch = 0
        self.wrong: list[str] = []
        self.responses: dict[str, _Response] = {}
        self.response_of_item: dict[str, str] = {}
        self.order: list[str] = []
        self.steps: set[tuple[str, str]] = set()
        """What was said of each item: type and item id."""
        self.speaking = False
        self.last: Seen | None = None
        self.ended = False

    def see(self, event: Seen) -> None:
        """Check one more event."""
        before = len(self.wrong)
        self._session(event)
        self._response(event)
        check = _CHECKS.get(event.type)
        if check is not None:
            check(self, event)
        self.wrong[before:] = [
            f"{event.type} (number {event.server_event_seq}): {what}" for what in self.wrong[before:]
        ]
        self.last = event

    def _session(self, event: Seen) -> None:
        if self.ended:
            self.wrong.append("after the session's end")
        self.ended = event.type in _LAST
        if (self.last is not None and self.last.type == "response.done") != (
            event.type == "rate_limits.updated"
        ):
            self.wrong.append("rate_limits.updated follows each response.done, and nothing else")
        if event.type in _UNNUMBERED:
            if event.server_event_seq is not None:
                self.wrong.append("has a number")
        elif event.server_event_seq is not None:
            if event.server_event_seq <= self.seq or (self.tier_3 and event.server_event_seq > self.seq + 1):
                self.wrong.append(f"number after {self.seq}")
            self.seq = event.server_event_seq
        elif event.type != "error":
            self.wrong.append("has no number")
        if event.epoch is not None:
            if event.epoch < self.epoch:
                self.wrong.append(f"epoch {event.epoch} after epoch {self.epoch}")
            self.epoch = event.epoch

    def _response(self, event: Seen) -> None:
        response_id = self._response_id(event)
        if response_id is None:
            return
        known = self.responses.setdefault(response_id, _Response())
        rank = _RANKS.get(event.type)
        if rank is None:
            return
        if "response.created" not in known.types and event.type != "response.created":
            self.wrong.append(f"of {response_id}, which was not created")
        if rank < known.rank or (rank == known.rank and rank != _DELTAS):
            self.wrong.append(f"of {response_id} comes too late, or twice")
        known.rank = rank
        known.types.add(event.type)
        if rank == _DELTAS:
            self._delta(event, known)

    def _response_id(self, event: Seen) -> str | None:
        """The response that an event is a step of. An item belongs to one from `output_item.added` on."""
        if event.type.startswith("conversation.item.") and event.item is not None:
            return self.response_of_item.get(event.item.id)
        if event.response is not None:
            return event.response.id
        return event.response_id if event.type.startswith("response.") else None

    def _delta(self, event: Seen, known: _Response) -> None:
        needed = (*_BEFORE_DELTAS, "response.speak") if self.tier_3 else _BEFORE_DELTAS
        missing = [name for name in needed if name not in known.types]
        if missing:
            self.wrong.append(f"without {', '.join(missing)}")
        if event.type == "response.output_audio_transcript.delta":
            known.transcript += event.delta

    def _once(self, step: str, item_id: str) -> None:
        if (step, item_id) in self.steps:
            self.wrong.append(f"{item_id} a second time")
        self.steps.add((step, item_id))

    # --- checks of single types -----------------------------------------------------------------------------

    def transcript_done(self, event: Seen) -> None:
        """The transcript is its deltas, joined."""
        known = self.responses[event.response_id or ""]
        if event.transcript != known.transcript:
            self.wrong.append(f"{event.transcript!r} is not the deltas joined: {known.transcript!r}")

    def output_item_added(self, event: Seen) -> None:
        """The item was added to the conversation, and is at its end."""
        assert event.item is not None
        self.response_of_item[event.item.id] = event.response_id or ""
        if not self.order or self.order[-1] != event.item.id:
            self.wrong.append("its item is not the conversation's last")

    def output_item_done(self, event: Seen) -> None:
        """The item was opened by the same response."""
        assert event.item is not None
        if self.response_of_item.get(event.item.id) != event.response_id:
            self.wrong.append("its item was not opened by this response")
        self.responses[event.response_id or ""].output_status = event.item.status

    def response_done(self, event: Seen) -> None:
        """What was opened is closed, and the item's status fits the response's."""
        assert event.response is not None
        known = self.responses[event.response.id]
        if "response.output_item.added" in known.types:
            missing = [name for name in _CLOSING if name not in known.types]
            if missing:
                self.wrong.append(f"without {', '.join(missing)}")
            if (event.response.status == "completed") != (known.output_status == "completed"):
                self.wrong.append(f"is {event.response.status}, its item {known.output_status}")

    def item_added(self, event: Seen) -> None:
        """An item comes in once, after one that is there."""
        assert event.item is not None
        item_id, previous = event.item.id, event.previous_item_id
        self._once(event.type, item_id)
        if item_id in self.order:
            return
        if previous is None or previous is UNSET:
            self.order.insert(0, item_id)
        elif previous in self.order:
            self.order.insert(self.order.index(previous) + 1, item_id)
        else:
            self.wrong.append(f"previous_item_id {previous} was never added")

    def item_done(self, event: Seen) -> None:
        """An item is done once, after it was added."""
        assert event.item is not None
        if event.item.id not in self.order:
            self.wrong.append(f"{event.item.id} was not added")
        self._once(event.type, event.item.id)

    def committed_input(self, event: Seen) -> None:
        """A commit names an item that was added at the end and is not done."""
        item_id = event.item_id or ""
        self._once(event.type, item_id)
        if not self.order or self.order[-1] != item_id or ("conversation.item.done", item_id) in self.steps:
            self.wrong.append(f"{item_id} is not the newest item, still open")
        expected = self.order[-2] if len(self.order) > 1 else None
        if event.previous_item_id != expected:
            self.wrong.append(f"previous_item_id {event.previous_item_id}, not {expected}")

    def speech_started(self, event: Seen) -> None:
        """Speech does not begin twice, and its item is not there yet."""
        if self.speaking:
            self.wrong.append("while the user speaks")
        if event.item_id in self.order:
            self.wrong.append(f"{event.item_id} is there already")
        self.speaking = True

    def speech_stopped(self, event: Seen) -> None:
        """Speech ends if it began, before it is committed."""
        if not self.speaking:
            self.wrong.append("while the user is silent")
        if not event.item_id or ("input_audio_buffer.committed", event.item_id) in self.steps:
            self.wrong.append(f"{event.item_id!r} is committed already, or no id")
        self.speaking = False

    def cleared(self, event: Seen) -> None:
        """A clear takes the speech with it."""
        self.speaking = False

    def statuses(self, event: Seen) -> None:
        """Items have the three statuses that strict clients parse."""
        assert event.item is not None
        if event.item.status not in _ITEM_STATUSES:
            self.wrong.append(f"item status {event.item.status}")

    def acknowledged(self, event: Seen) -> None:
        """The ledger is in order."""
        ledger = event.playback
        if ledger is None or not (
            ledger.generated_ms >= ledger.sent_ms >= ledger.played_ms >= ledger.committed_ms >= 0
        ):
            self.wrong.append(f"ledger {ledger}")


_Check: TypeAlias = Callable[[_Checker, Seen], None]


def _both(first: _Check, second: _Check) -> _Check:
    def check(checker: _Checker, event: Seen) -> None:
        first(checker, event)
        second(checker, event)

    return check


_CHECKS: dict[str, _Check] = {
    "response.output_audio_transcript.done": _Checker.transcript_done,
    "response.output_item.added": _both(_Checker.output_item_added, _Checker.statuses),
    "response.output_item.done": _both(_Checker.output_item_done, _Checker.statuses),
    "response.done": _Checker.response_done,
    "conversation.item.added": _both(_Checker.item_added, _Checker.statuses),
    "conversation.item.created": _both(_Checker.item_added, _Checker.statuses),
    "conversation.item.done": _both(_Checker.item_done, _Checker.statuses),
    "input_audio_buffer.committed": _Checker.committed_input,
    "input_audio_buffer.speech_started": _Checker.speech_started,
    "input_audio_buffer.speech_stopped": _Checker.speech_stopped,
    "input_audio_buffer.cleared": _Checker.cleared,
    "playback.acknowledged": _Checker.acknowledged,
}


def violations(events: Iterable[Seen], *, tier_3: bool = True, after: int = 0) -> list[str]:
    """Give what is wrong with a session's events, in order; nothing if all is right.

    Args:
        events: what one client read, from `session.created` on or from a resume on.
        tier_3: the client receives every event. Otherwise numbers may be left out, and `response.speak` is.
        after: the number before the first.
    """
    checker = _Checker(tier_3=tier_3, after=after)
    for event in events:
        checker.see(event)
    return checker.wrong
