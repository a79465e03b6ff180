"""A journal under construction: what the tests of the core are told in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.changes import Change
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.fold import Fold
from session_core.items import Item, Part
from session_core.items import Role as UserRole
from session_core.journal import Body, Position, Role, Stamp, encode_entry
from session_core.reducer import REDUCER_VERSION, Outbound
from session_core.state import State

E = TypeVar("E", bound=wire.ServerEvent)

OPENED_MS = 1_000_000
PROFILE = ModelProfile("loopback")
"""24 kHz both ways, units of 80 ms (1,920 samples, 3,840 bytes of pcm16)."""
CONFIG = SessionConfig("loopback")
UNIT_BYTES = 3_840
UNIT_SAMPLES = 1_920


def token_hash(token: str) -> bytes:
    """What the journal holds of a resume token."""
    return hashlib.sha256(token.encode()).digest()


def type_of(event: wire.ServerEvent) -> str:
    """The event's `type` on the wire."""
    tag = type(event).__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def types(events: Iterable[wire.ServerEvent]) -> list[str]:
    """The `type` of each event."""
    return [type_of(event) for event in events]


def one(events: list[wire.ServerEvent], kind: type[E]) -> E:
    """The only event of this type."""
    (event,) = [event for event in events if isinstance(event, kind)]
    return event


def error(events: list[wire.ServerEvent]) -> wire.ErrorDetail:
    """The only event, an error, without its message."""
    (event,) = events
    assert isinstance(event, wire.ErrorEvent)
    return replace(event.error, message="")


def refusal(code: str, param: str | None = None, event_id: str | None = None) -> wire.ErrorDetail:
    """The error that a client is told."""
    return wire.ErrorDetail(code=code, message="", param=param, event_id=event_id)


class Scenario:
    """
    One session's journal, folded as it grows. Each entry stands 1 ms after the one before.

    Attributes:
        entries: position and bytes of every entry so far.
        outbound: every outbound event so far, addressed ones included.
        changes: what the last appended entry led to.
        now_ms: the store's clock; the next entry stands 1 ms later.
    """

    def __init__(self) -> None:
        self.fold = Fold()
        self.entries: list[tuple[Position, bytes]] = []
        self.outbound: list[Outbound] = []
        self.changes: tuple[Change, ...] = ()
        self.now_ms = OPENED_MS - 1

    # --- ways to begin --------------------------------------------------------------------------------------

    @classmethod
    def opened(
        cls,
        way: Way = Way.DUPLEX,
        *,
        config: SessionConfig = CONFIG,
        profile: ModelProfile = PROFILE,
        limits: Limits | None = None,
    ) -> Scenario:
        """A session that nobody holds yet."""
        scenario = cls()
        opening = ev.SessionOpened(
            "s1", profile, config, limits or Limits(), way, Dialect.GA, REDUCER_VERSION
        )
        scenario.fact(opening)
        return scenario

    @classmethod
    def live(
        cls,
        way: Way = Way.DUPLEX,
        *,
        config: SessionConfig = CONFIG,
        profile: ModelProfile = PROFILE,
        limits: Limits | None = None,
    ) -> Scenario:
        """A session with its first client "a1" (token "t1") and its first worker "w1"."""
        scenario = cls.opened(way, config=config, profile=profile, limits=limits)
        scenario.attach("a1", offers="t1")
        scenario.fact(ev.WorkerAssigned("w1", 1))
        return scenario

    # --- appends --------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The fold so far."""
        return self.fold.state

    @property
    def events(self) -> list[wire.ServerEvent]:
        """The session events so far: those with a number."""
        return [event for event, attachment_id in self.outbound if attachment_id is None]

    def wait(self, ms: int) -> Scenario:
        """Let the store's clock run."""
        self.now_ms += ms
        return self

    def put(self, data: bytes) -> list[wire.ServerEvent]:
        """Append raw bytes; give what clients hear of it, addressed or not."""
        self.now_ms += 1
        position = (self.now_ms, 0)
        self.entries.append((position, data))
        self.fold, reduction = self.fold.step(position, data)
        self.outbound.extend(reduction.outbound)
        self.changes = reduction.changes
        return [event for event, _ in reduction.outbound]

    def append(self, body: Body, stamp: Stamp | None) -> list[wire.ServerEvent]:
        """Append an entry with this very stamp."""
        return self.put(encode_entry(body, stamp))

    def fact(self, body: Body) -> list[wire.ServerEvent]:
        """Append something that anybody may state."""
        return self.append(body, None)

    def client(self, body: Body) -> list[wire.ServerEvent]:
        """Append as the attachment in office, with its next number."""
        return self.append(body, self.client_stamp())

    def worker(self, body: Body) -> list[wire.ServerEvent]:
        """Append as the worker in office, with its next number."""
        return self.append(body, self.worker_stamp())

    def client_stamp(self, ahead: int = 1) -> Stamp:
        """The stamp `ahead` appends after the last one taken from the attachment in office."""
        held = self.state.attachment
        return Stamp(Role.CLIENT, held.generation, held.last_n + ahead)

    def worker_stamp(self, ahead: int = 1) -> Stamp:
        """The stamp `ahead` appends after the last one taken from the worker in office."""
        held = self.state.worker
        return Stamp(Role.WORKER, held.generation, held.last_n + ahead)

    # --- what most scenarios need ---------------------------------------------------------------------------

    def attach(
        self,
        attachment_id: str,
        *,
        offers: str,
        shows: str | None = None,
        generation: int | None = None,
        received_seq: int | None = None,
    ) -> list[wire.ServerEvent]:
        """A client comes: the first one, or with the token that it `shows`."""
        body = ev.ClientAttached(
            attachment_id,
            "g1",
            self.state.attachment.generation + 1 if generation is None else generation,
            None if shows is None else token_hash(shows),
            token_hash(offers),
            0 if received_seq is None and shows is not None else received_seq,
        )
        return self.fact(body)

    def audio(self, size_bytes: int = UNIT_BYTES, event_id: str | None = None) -> list[wire.ServerEvent]:
        """The client sends audio: silence, as its samples do not matter here."""
        return self.client(cmd.AppendAudio(bytes(size_bytes), event_id))

    def unit_body(self, decision: ev.Decision = ev.Decision.LISTEN) -> ev.ModelUnitCompleted:
        """The unit that is due: what has come of its input, and silence for the rest."""
        clock, profile = self.state.clock, self.state.pinned.profile
        received = self.state.input.received_samples(profile.input_sample_rate_hz)
        waiting = min(received - clock.consumed_samples, profile.unit_samples)
        return ev.ModelUnitCompleted(
            clock.next_unit,
            self.state.epoch,
            clock.consumed_samples,
            waiting,
            profile.unit_samples - waiting,
            decision,
        )

    def listens(self, *, answers: str | None = None) -> list[wire.ServerEvent]:
        """The model works on the unit that is due, and listens."""
        return self.worker(replace(self.unit_body(), answers=answers))

    def speaks(
        self,
        text: str = "",
        audio: bytes | None = bytes(UNIT_BYTES),
        *,
        calls: tuple[ev.ToolCall, ...] = (),
        last: bool = False,
    ) -> list[wire.ServerEvent]:
        """The model works on the unit that is due, and speaks. `audio` None: it is rendered later."""
        decision = ev.Decision.TURN_END if last else ev.Decision.SPEAK
        return self.worker(
            replace(self.unit_body(decision), text=text, audio=audio, calls=calls, token_ids=(1, 2))
        )

    def calls(self, *names: str, last: bool = False) -> list[wire.ServerEvent]:
        """The model works on the unit that is due, and calls functions without saying a word."""
        calls = tuple(ev.ToolCall(f"call_{name}", name, f'{{"of": "{name}"}}') for name in names)
        return self.speaks("", b"", calls=calls, last=last)

    def asks(self, **options: Any) -> str:
        """The client asks for a response; give its id."""
        self.client(cmd.CreateResponse(cmd.ResponseOptions(**options)))
        asked = self.state.side[-1] if options.get("outside") else self.state.response
        assert asked is not None
        return asked.response_id

    def writes(self, text: str, item_id: str = "") -> list[wire.ServerEvent]:
        """The client puts a user's text into the history."""
        item = Item(item_id, role=UserRole.USER, parts=(Part("input_text", text=text),))
        return self.client(cmd.CreateItem(item))

    def commits(self, ms: int = 200) -> str:
        """The client sends audio and commits it, asking for no response; give the item's id."""
        self.audio(48 * ms)
        self.client(cmd.CommitInput(respond=False))
        return self.state.history[-1].item_id


def folded(
    entries: Iterable[tuple[Position, bytes]], start: Fold | None = None
) -> tuple[Fold, list[Outbound]]:
    """Fold entries again, from the beginning or from `start`."""
    fold = start or Fold()
    outbound: list[Outbound] = []
    for position, data in entries:
        fold, reduction = fold.step(position, data)
        outbound.extend(reduction.outbound)
    return fold, outbound
