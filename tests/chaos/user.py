"""
A client that never gives up: whatever breaks, it comes back and sends again what the receipts do not cover.

It says everything in one order, audio and commands alike, so what it said and what the journal took can be
compared entry by entry.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tests.chaos.line import Heard, Line, LineLost
from tests.chaos.world import World
from tests.integration.caller import RATE_HZ

RETRY_S = 0.2
TOKENS_KEPT = 4
ANSWER_S = 4.0
"""How long a gateway may take to answer a resume before another one is asked."""
TWINS = 0.1
"""Share of resumes that two clients with one token try at once."""
VAD = 0.3
"""Share of sessions with turn detection."""
PLAYED_MS = 60
"""Playback that is acknowledged for a delta: a little behind what was sent."""


class Said(NamedTuple):
    """One thing that a client said; `event_id` is None for audio, which receipts count in bytes."""

    frame: str
    audio: bytes = b""
    event_id: str | None = None


class LockedOut(Exception):
    """No token that this client ever had is good any more, or its session is gone."""


class _Refused(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


_Answer: TypeAlias = Heard | _Refused | None
Script: TypeAlias = Callable[["User"], Coroutine[None, None, None]]


def frame_of(type_: str, **fields: Any) -> str:
    """A client event as it is sent."""
    return msgspec.json.encode({"type": type_, **fields}).decode()


class User:
    """
    One session, from its opening to its end, over as many connections as it takes.

    Attributes:
        session_id: "" until the session is open.
        said: everything, in order.
        lines: every connection that became an attachment.
        seq: newest event received.
        receipt: of the input, in bytes, and the newest acknowledged event id.
        over: how it ended; "" while it goes on.
        problems: what went wrong beside the account of the events.
        doing: for the report of a client that is stuck.
        completed: responses that were completed, as far as it heard.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self.session_id = ""
        self.said: list[Said] = []
        self.lines: list[Line] = []
        self.seq = 0
        self.receipt: tuple[int, str | None] = (0, None)
        self.over = ""
        self.problems: list[str] = []
        self.doing = "opening"
        self.world = world
        self.rng = rng
        self._line: Line | None = None
        self._tokens: list[tuple[int, str]] = []
        self._unsent = 0
        self._sending = asyncio.Lock()
        self._changing = asyncio.Lock()
        """Held while the connection is being replaced, by whichever task does it."""
        self._commands = 0
        self._response_id: str | None = None
        self._deltas = 0
        self.completed = 0
        self._vad = rng.random() < VAD
        self._heard_out: set[asyncio.Task[None]] = set()

    async def run(self, script: Script) -> None:
        """
        Open, talk, end. Returns when the session is over, or at once if it could not be opened.

        Args:
            script: what to do meanwhile; the session's end cancels it.
        """
        if not await self._open():
            return
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(script(self)), tasks.create_task(self._beat())]
            try:
                await self._hold()
            except LockedOut as error:
                self.over = "locked out"
                self.problems.append(f"locked out: {error}")
            for task in [*others, *self._heard_out]:
                task.cancel()

    # --- connections ----------------------------------------------------------------------------------------

    async def _open(self) -> bool:
        audio = {"format": {"type": "audio/pcm", "rate": RATE_HZ}}
        detection: dict[str, Any] = {"turn_detection": {"type": "server_vad"}} if self._vad else {}
        options = {
            "type": "realtime",
            "model": "loopback",
            "audio": {"input": audio | detection, "output": audio},
            "extra_body": {"auto_response": True},
        }
        while not self.world.closing.is_set():
            line = Line(self._any_gateway(), 0)
            try:
                await line.connect(self.world.urls[line.gateway])
                self.world.reached("handshake", line.gateway)
                await line.send(frame_of("session.update", session=options))
                created = await line.hear()
            except LineLost:
                await asyncio.sleep(RETRY_S)
                continue
            if created.type != "session.created":
                self._told(created)
                line.drop()
                await asyncio.sleep(RETRY_S)
                continue
            assert created.session is not None
            self.session_id = created.session.id
            await self._accept(line, created)
            return True
        return False

    async def _hold(self) -> None:
        """Read, on one connection after the other, until the session is over."""
        while True:
            line = self._line
            assert line is not None
            await self._read(line)
            if self.over:
                return
            async with self._changing:
                if self._line is line:
                    await self._resume(line)

    async def _read(self, line: Line) -> None:
        with suppress(LineLost):
            while not self.over:
                self._hear(line, await line.hear())

    async def _resume(self, lost: Line) -> None:
        """
        Come back through whichever gateway answers.

        Raises:
            LockedOut: it cannot be done.
        """
        killed_s = self.world.killed_s(lost.gateway)
        self.doing = "resuming"
        refused = 0
        while True:
            token = self._tokens[-1 - refused % len(self._tokens)][1]
            twins = 2 if self.rng.random() < TWINS else 1
            answers = await asyncio.gather(*(self._ask(token, self.seq) for _ in range(twins)))
            self.world.faults["two_clients_one_token"] += twins - 1
            accepted = [(line, answer) for line, answer in answers if isinstance(answer, Heard)]
            if accepted:
                accepted.sort(key=lambda pair: pair[1].attachment_generation)
                if killed_s is not None:
                    self.world.resumes_ms.append((time.monotonic() - killed_s) * 1000)
                for line, _ in accepted[:-1]:
                    self._hear_out(line)
                for line, answer in accepted:
                    await self._accept(line, answer)
                return
            codes = {answer.code for _, answer in answers if isinstance(answer, _Refused)}
            if "session_resume_expired" in codes:
                self._gone()
                return
            if "invalid_resume_token" in codes:
                refused += 1
                if refused > 2 * len(self._tokens):
                    raise LockedOut("no token is good")
            if "resync_required" in codes:
                raise LockedOut("resync required")
            await asyncio.sleep(RETRY_S)

    async def _ask(self, token: str, seq: int, *, abandon: bool = False) -> tuple[Line, _Answer]:
        """Ask for the session on a new connection; gives the answer, or None if none came."""
        line = Line(self._any_gateway(), seq)
        self.world.reached("resume", line.gateway)
        try:
            await line.connect(self.world.urls[line.gateway])
            await line.send(
                frame_of(
                    "session.resume",
                    session_id=self.session_id,
                    resume_token=token,
                    last_received_server_event_seq=seq,
                )
            )
            if abandon:
                await asyncio.sleep(self.rng.uniform(0, 0.05))
                line.drop()
                return line, None
            answer = await line.hear(ANSWER_S)
        except LineLost:
            return line, None
        if answer.type == "session.resumed":
            return line, answer
        self._told(answer)
        line.drop()
        code = answer.error.code if answer.error is not None else None
        return line, _Refused(code or answer.type.removeprefix("session."))

    def _gone(self) -> None:
        """The session has ended while nobody was listening: fine if this client asked for its end."""
        if self.said and self.said[-1].event_id is not None and "session.close" in self.said[-1].frame:
            self.over = "closed unheard"
            return
        raise LockedOut("the session is gone")

    async def _accept(self, line: Line, answer: Heard) -> None:
        """
        Go on with an attachment: what the journal does not have is said again on it, before anything new.
        """
        line.generation = answer.attachment_generation
        self.lines.append(line)
        assert answer.resume_token is not None
        self._tokens.append((answer.attachment_generation, answer.resume_token))
        del self._tokens[:-TOKENS_KEPT]
        async with self._sending:
            self._line = line
            self._unsent = self._covered(answer.input_audio_received_bytes or 0, answer.last_client_event_id)
        self._hear(line, answer)
        await self._pump()

    def _hear_out(self, line: Line) -> None:
        task = asyncio.create_task(line.hear_out())
        self._heard_out.add(task)
        task.add_done_callback(self._heard_out.discard)

    def _covered(self, received: int, event_id: str | None) -> int:
        """How much of what was said the receipts cover: always a beginning of it."""
        ids = [said.event_id for said in self.said]
        last = ids.index(event_id) if event_id is not None and event_id in ids else -1
        end = 0
        for index, said in enumerate(self.said):
            if said.audio:
                end += len(said.audio)
                if end > received:
                    if end - len(said.audio) != received or last > index:
                        self.problems.append(f"receipt {received}, {event_id} at no border of what was said")
                    return index
            elif index > last:
                if received > end:
                    self.problems.append(f"receipt {received} covers audio after a missing command {index}")
                return index
        return len(self.said)

    def _any_gateway(self) -> int:
        return self.rng.randrange(len(self.world.urls))

    # --- reading --------------------------------------------------------------------------------------------

    def _hear(self, line: Line, event: Heard) -> None:
        if event.server_event_seq is not None:
            self.seq = max(self.seq, event.server_event_seq)
        if event.input_audio_received_bytes is not None:
            self.receipt = max(self.receipt, (event.input_audio_received_bytes, event.last_client_event_id))
        match event.type:
            case "response.created" if event.response is not None:
                self._response_id, self._deltas = event.response.id, 0
            case "response.output_audio.delta":
                self._deltas += 1
                self.world.reached("response", line.gateway)
            case "response.done" if event.response is not None:
                self._response_id = None
                self.completed += event.response.status == "completed"
            case "session.closed" | "session.expired":
                self.over = f"{event.type} {event.reason}"
            case "session.resync_required":
                self.problems.append(f"resync required: {event.reason}")
            case "error":
                self._told(event)

    def _told(self, event: Heard) -> None:
        self.world.errors[(event.error.code if event.error is not None else None) or event.type] += 1

    # --- saying ---------------------------------------------------------------------------------------------

    async def say(self, said: Said) -> None:
        """Say the next thing, now or when there is a connection again."""
        self.said.append(said)
        await self._pump()

    async def _pump(self) -> None:
        async with self._sending:
            while self._unsent < len(self.said) and self._line is not None:
                self._unsent += 1
                if not await self._line.send(self.said[self._unsent - 1].frame):
                    return

    async def command(self, type_: str) -> None:
        """Say a command that has nothing but its type."""
        self._commands += 1
        event_id = f"c{self._commands}"
        await self.say(Said(frame_of(type_, event_id=event_id), event_id=event_id))

    async def _beat(self) -> None:
        """Heartbeats and playback acks: cumulative, so never sent again."""
        while True:
            await asyncio.sleep(1)
            line = self._line
            if line is None:
                continue
            await line.send(frame_of("session.heartbeat"))
            if self._response_id is not None and self._deltas:
                played_ms = self._deltas * PLAYED_MS
                await line.send(frame_of("playback.ack", response_id=self._response_id, played_ms=played_ms))

    # --- changing places ------------------------------------------------------------------------------------

    @property
    def line(self) -> Line:
        """The newest connection, which may be broken."""
        assert self._line is not None
        return self._line

    @property
    def is_answered(self) -> bool:
        """The model is saying something, as far as it heard."""
        return self._response_id is not None and self._deltas > 0

    def reached(self, phase: str) -> None:
        """Something is about to happen on the newest connection."""
        self.world.reached(phase, self.line.gateway)

    def leave(self) -> None:
        """Go without a word, and do not come back."""
        self.over = "abandoned"
        self.line.drop()

    def drop(self) -> None:
        """Lose the connection."""
        self.world.faults["client_drop"] += 1
        self.line.drop()

    async def take_over(self) -> None:
        """
        Another device of the same user takes the session, and may ask for what the first one had already.
        """
        async with self._changing:
            self.reached("takeover")
            seq = self.rng.choice((self.seq, self.rng.randrange(self.seq + 1)))
            line, answer = await self._ask(self._tokens[-1][1], seq)
            self.world.faults["takeover"] += 1
            if isinstance(answer, Heard):
                await self._accept(line, answer)

    async def abandon_takeover(self) -> None:
        """Another device asks for the session, and is gone before it hears the answer."""
        async with self._changing:
            self.reached("takeover")
            await self._ask(self._tokens[-1][1], self.seq, abandon=True)
            self.world.faults["takeover_abandoned"] += 1
