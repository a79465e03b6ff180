"""
Order and cardinality of a session's outbound events, checked on the JSON that clients read.

Knows nothing of the core, so it holds over the wire as well. `violations` gives what is wrong:

    response   created, its items one after the other, done, rate limits; nothing after `response.done`
    message    item added, output item added, part added, speak, deltas, audio done, its transcript or the
               text done, part done, output item done, item done; speak once, before the first audio
    call       item added, output item added (with its name), arguments, output item done (completed), done
    item       added once, done once, commit and transcription between the two; there is the item that
               `previous_item_id` names, and whatever is deleted, cut or shown
    beside     a response outside the conversation has no conversation item
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
    type: str = "message"
    status: str | None = None
    status_details: Details | None = None
    conversation_id: str | UnsetType | None = UNSET
    output: tuple[Body, ...] | str = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class Part(Struct, frozen=True):
    """A content part of a response."""

    type: Literal["audio", "text"]


class Seen(Struct, frozen=True):
    """What the checker reads of one event."""

    type: str
    server_event_seq: int | None = None
    epoch: int | None = None
    response_id: str | None = None
    item_id: str | None = None
    output_index: int = 0
    previous_item_id: str | UnsetType | None = UNSET
    item: Body | None = None
    response: Body | None = None
    part: Part | None = None
    delta: str = ""
    transcript: str = ""
    text: str = ""
    name: str | None = None
    arguments: str = ""
    playback: Playback | None = None


def read(frame: bytes | str) -> Seen:
    """
    Read one frame.

    Raises:
        msgspec.ValidationError: a field has a type, or `reason` a value, that no client expects.
    """
    return _decoder.decode(frame)


_decoder = msgspec.json.Decoder(Seen)

_DELTAS = 2
_RANKS = {
    "response.output_item.added": 0,
    "response.content_part.added": 1,
    "response.output_audio.delta": _DELTAS,
    "response.output_audio_transcript.delta": _DELTAS,
    "response.output_text.delta": _DELTAS,
    "response.function_call_arguments.delta": _DELTAS,
    "response.output_audio.done": 3,
    "response.output_audio_transcript.done": 4,
    "response.output_text.done": 4,
    "response.function_call_arguments.done": 4,
    "response.content_part.done": 5,
    "response.output_item.done": 6,
    "conversation.item.done": 7,
}
"""The order of an output item's events; only deltas repeat."""

_ENDS = ("response.output_item.done", "conversation.item.done")
_OF_KIND = {
    "audio": (
        "response.content_part.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        *_ENDS,
    ),
    "text": (
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        *_ENDS,
    ),
    "function_call": ("response.function_call_arguments.done", *_ENDS),
}
"""What an item that is finished was told of, by what it is made of."""

_SAID = {
    "response.output_audio_transcript.delta": "response.output_audio_transcript.done",
    "response.output_text.delta": "response.output_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
}
_TRANSCRIPTION = "conversation.item.input_audio_transcription."
_UNNUMBERED = ("session.created", "session.resumed", "session.replaced", "session.resync_required")
_LAST = ("session.closed", "session.expired")
_ITEM_STATUSES = ("in_progress", "completed", "incomplete")


class _Output(Struct):
    """One output item so far."""

    index: int
    kind: str
    """audio, text or function_call."""
    name: str | None = None
    rank: int = 0
    types: set[str] = msgspec.field(default_factory=set)
    said: str = ""
    """The deltas, joined."""
    status: str | None = None


class _Response(Struct):
    """One response so far."""

    inside: bool = True
    """It belongs to the conversation."""
    types: set[str] = msgspec.field(default_factory=set)
    items: dict[str, _Output] = msgspec.field(default_factory=dict)


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
        for check in _CHECKS.get(event.type, ()):
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

    # --- responses and their items --------------------------------------------------------------------------

    def _response(self, event: Seen) -> None:
        response_id = self._response_id(event)
        if response_id is None:
            return
        known = self.responses.setdefault(response_id, _Response())
        if "response.created" not in known.types and event.type != "response.created":
            self.wrong.append(f"of {response_id}, which was not created")
        if "response.done" in known.types:
            self.wrong.append(f"of {response_id} comes too late, or twice")
        if event.type in _RANKS:
            self._output(event, known)
        elif event.type in known.types:
            self.wrong.append(f"of {response_id} comes too late, or twice")
        known.types.add(event.type)

    def _response_id(self, event: Seen) -> str | None:
        """The response that an event is a step of. An item belongs to one from `output_item.added` on."""
        if event.type == "conversation.item.done" and event.item is not None:
            return self.response_of_item.get(event.item.id)
        if event.response is not None:
            return event.response.id
        return event.response_id if event.type.startswith("response.") else None

    def _output(self, event: Seen, known: _Response) -> None:
        """A step of an output item: in order, of the item that is open, fit for what the item is made of."""
        item_id = event.item.id if event.item is not None else event.item_id or ""
        if event.type == "response.output_item.added":
            self._opened(event, known, item_id)
            return
        item = known.items.get(item_id)
        if item is None:
            self.wrong.append(
                f"without response.output_item.added: {item_id} was not opened by this response"
            )
            return
        rank = _RANKS[event.type]
        if rank < item.rank or (rank == item.rank and rank != _DELTAS):
            self.wrong.append(f"of {item_id} comes too late, or twice")
        if event.type.startswith("response.") and event.output_index != item.index:
            self.wrong.append(f"output_index {event.output_index} of {item_id}, which has {item.index}")
        if event.part is not None and event.type == "response.content_part.added":
            item.kind = event.part.type
        if rank != _DELTAS and event.type not in _OF_KIND[item.kind]:
            self.wrong.append(f"{item_id} is made of {item.kind}")
        item.rank = rank
        item.types.add(event.type)
        if rank == _DELTAS:
            self._delta(event, known, item)

    def _opened(self, event: Seen, known: _Response, item_id: str) -> None:
        """The items of a response come one after the other; those of the conversation are at its end."""
        assert event.item is not None
        if item_id in known.items:
            self.wrong.append(f"of {item_id} comes too late, or twice")
        if event.output_index != len(known.items):
            self.wrong.append(f"output_index {event.output_index}, not {len(known.items)}")
        ends = _ENDS if known.inside else _ENDS[:1]
        if any(end not in item.types for item in known.items.values() for end in ends):
            self.wrong.append("while the item before is open")
        if known.inside and (not self.order or self.order[-1] != item_id):
            self.wrong.append("its item is not the conversation's last")
        is_call = event.item.type == "function_call"
        if is_call and (not event.item.call_id or not event.item.name or event.item.arguments):
            self.wrong.append("a call has its id and name from the beginning, and its arguments later")
        self.response_of_item[item_id] = event.response_id or ""
        kind = "function_call" if is_call else "audio"
        known.items[item_id] = _Output(event.output_index, kind, event.item.name)

    def _delta(self, event: Seen, known: _Response, item: _Output) -> None:
        kind = event.type.removeprefix("response.").partition(".")[0]
        expected = {"output_text": "text", "function_call_arguments": "function_call"}.get(kind, "audio")
        if item.kind != expected:
            self.wrong.append(f"{event.item_id} is made of {item.kind}")
        if item.kind != "function_call" and "response.content_part.added" not in item.types:
            self.wrong.append("without response.content_part.added")
        if expected == "audio" and self.tier_3 and "response.speak" not in known.types:
            self.wrong.append("without response.speak")
        if event.type in _SAID:
            item.said += event.delta

    def said_done(self, event: Seen) -> None:
        """The whole is its deltas, joined."""
        item = self.responses[event.response_id or ""].items.get(event.item_id or "")
        whole = event.transcript or event.text or event.arguments
        if item is not None and whole != item.said:
            self.wrong.append(f"{whole!r} is not the deltas joined: {item.said!r}")
        if item is not None and event.name != item.name:
            self.wrong.append(f"name {event.name}, not {item.name}")

    def output_item_done(self, event: Seen) -> None:
        """A call is completed and has its arguments."""
        assert event.item is not None
        item = self.responses[event.response_id or ""].items.get(event.item.id)
        if item is None:
            return
        item.status = event.item.status
        if item.kind == "function_call" and (event.item.status, event.item.arguments) != (
            "completed",
            item.said,
        ):
            self.wrong.append(f"call {event.item.status}, {event.item.arguments!r}")

    def response_created(self, event: Seen) -> None:
        """Without a conversation, it is beside it."""
        assert event.response is not None
        self.responses[event.response.id].inside = event.response.conversation_id is not None

    def response_done(self, event: Seen) -> None:
        """What was opened is closed, and the items' statuses fit the response's."""
        assert event.response is not None
        known = self.responses[event.response.id]
        for item_id, item in known.items.items():
            needed = _OF_KIND[item.kind] if known.inside else _OF_KIND[item.kind][:-1]
            missing = [name for name in needed if name not in item.types]
            if missing:
                self.wrong.append(f"without {', '.join(missing)} of {item_id}")
        statuses = [item.status for item in known.items.values()]
        earlier, last = statuses[:-1], statuses[-1:]
        if any(status != "completed" for status in earlier) or (
            event.response.status == "completed" and last not in ([], ["completed"])
        ):
            self.wrong.append(f"is {event.response.status}, its items {statuses}")
        if isinstance(event.response.output, str) or [*known.items] != [
            item.id for item in event.response.output
        ]:
            self.wrong.append(f"its output is not {[*known.items]}")

    # --- items ----------------------------------------------------------------------------------------------

    def _once(self, step: str, item_id: str) -> None:
        if (step, item_id) in self.steps:
            self.wrong.append(f"{item_id} a second time")
        self.steps.add((step, item_id))

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
        """An item is done once, after it was added and, where it is transcribed, after that."""
        assert event.item is not None
        item_id = event.item.id
        if ("conversation.item.added", item_id) not in self.steps:
            self.wrong.append(f"{item_id} was not added")
        ends = [(_TRANSCRIPTION + end, item_id) in self.steps for end in ("completed", "failed")]
        if (_TRANSCRIPTION + "delta", item_id) in self.steps and not any(ends):
            self.wrong.append(f"{item_id} is being transcribed")
        self._once(event.type, item_id)

    def item_deleted(self, event: Seen) -> None:
        """Its id is free again."""
        self.item_known(event)
        item_id = event.item_id or ""
        self.order = [other for other in self.order if other != item_id]
        if item_id not in self.response_of_item:
            self.steps = {step for step in self.steps if step[1] != item_id}

    def item_known(self, event: Seen) -> None:
        """The item is in the conversation."""
        item_id = event.item.id if event.item is not None else event.item_id
        if item_id not in self.order:
            self.wrong.append(f"{item_id} is not there")

    def transcribed(self, event: Seen) -> None:
        """Between an item's commit and its end; a failure comes alone, a transcript after its deltas."""
        item_id, step = event.item_id or "", event.type.removeprefix(_TRANSCRIPTION)
        if ("input_audio_buffer.committed", item_id) not in self.steps:
            self.wrong.append(f"{item_id} was not committed")
        done = ("conversation.item.done", _TRANSCRIPTION + "completed", _TRANSCRIPTION + "failed")
        if any((name, item_id) in self.steps for name in done):
            self.wrong.append(f"{item_id} is done with it")
        if (step == "completed") != ((_TRANSCRIPTION + "delta", item_id) in self.steps) and step != "delta":
            self.wrong.append(f"{item_id} has deltas if it is transcribed, and none if that failed")
        self.steps.add((event.type, item_id))

    def committed_input(self, event: Seen) -> None:
        """A commit names an item that was added at the end and is not done."""
        item_id = event.item_id or ""
        self._once(event.type, item_id)
        if not self.order or self.order[-1] != item_id or ("conversation.item.done", item_id) in self.steps:
            self.wrong.append(f"{item_id} is not the newest item, still open")
        expected = self.order[-2] if len(self.order) > 1 else None
        if event.previous_item_id != expected:
            self.wrong.append(f"previous_item_id {event.previous_item_id}, not {expected}")

    def item_to_come(self, event: Seen) -> None:
        """The item of this speech or silence is not there yet."""
        if event.item_id in self.order:
            self.wrong.append(f"{event.item_id} is there already")

    def statuses(self, event: Seen) -> None:
        """Items have the three statuses that strict clients parse."""
        assert event.item is not None
        if event.item.status not in _ITEM_STATUSES:
            self.wrong.append(f"item status {event.item.status}")

    # --- speech and playback --------------------------------------------------------------------------------

    def speech_started(self, event: Seen) -> None:  # noqa: ARG002 - all checks have one signature
        """Speech does not begin twice."""
        if self.speaking:
            self.wrong.append("while the user speaks")
        self.speaking = True

    def speech_stopped(self, event: Seen) -> None:
        """Speech ends if it began, before it is committed."""
        if not self.speaking:
            self.wrong.append("while the user is silent")
        if not event.item_id or ("input_audio_buffer.committed", event.item_id) in self.steps:
            self.wrong.append(f"{event.item_id!r} is committed already, or no id")
        self.speaking = False

    def cleared(self, event: Seen) -> None:  # noqa: ARG002 - as above
        """A clear takes the speech with it."""
        self.speaking = False

    def output_cleared(self, event: Seen) -> None:
        """What is dropped was of a response that is over."""
        known = self.responses.get(event.response_id or "")
        if known is None or "response.done" not in known.types:
            self.wrong.append(f"{event.response_id} is not over")

    def acknowledged(self, event: Seen) -> None:
        """The ledger is in order."""
        ledger = event.playback
        if ledger is None or not (
            ledger.generated_ms >= ledger.sent_ms >= ledger.played_ms >= ledger.committed_ms >= 0
        ):
            self.wrong.append(f"ledger {ledger}")


_Check: TypeAlias = Callable[[_Checker, Seen], None]

_CHECKS: dict[str, tuple[_Check, ...]] = {
    "response.created": (_Checker.response_created,),
    "response.done": (_Checker.response_done,),
    "response.output_item.added": (_Checker.statuses,),
    "response.output_item.done": (_Checker.output_item_done, _Checker.statuses),
    **dict.fromkeys(_SAID.values(), (_Checker.said_done,)),
    "conversation.item.added": (_Checker.item_added, _Checker.statuses),
    "conversation.item.created": (_Checker.item_added, _Checker.statuses),
    "conversation.item.done": (_Checker.item_done, _Checker.statuses),
    "conversation.item.retrieved": (_Checker.item_known, _Checker.statuses),
    "conversation.item.deleted": (_Checker.item_deleted,),
    "conversation.item.truncated": (_Checker.item_known,),
    **{_TRANSCRIPTION + step: (_Checker.transcribed,) for step in ("delta", "completed", "failed")},
    "input_audio_buffer.committed": (_Checker.committed_input,),
    "input_audio_buffer.speech_started": (_Checker.speech_started, _Checker.item_to_come),
    "input_audio_buffer.speech_stopped": (_Checker.speech_stopped,),
    "input_audio_buffer.timeout_triggered": (_Checker.item_to_come,),
    "input_audio_buffer.cleared": (_Checker.cleared,),
    "output_audio_buffer.cleared": (_Checker.output_cleared,),
    "playback.acknowledged": (_Checker.acknowledged,),
}


def violations(events: Iterable[Seen], *, tier_3: bool = True, after: int = 0) -> list[str]:
    """
    Give what is wrong with a session's events, in order; nothing if all is right.

    Args:
        events: what one client read, from `session.created` on or from a resume on.
        tier_3: the client receives every event. Otherwise numbers may be left out, and `response.speak` is.
        after: the number before the first.
    """
    checker = _Checker(tier_3=tier_3, after=after)
    for event in events:
        checker.see(event)
    return checker.wrong
