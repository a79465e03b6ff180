"""
The conversation that every client holds, and the report of what it saw; needs nothing but Python.

The user says a sentence and hears it back; says another, and talks over the answer as soon as some of it has
been heard; and hears back what was said last. A driver carries the microphone's audio into its client, and
tells the conversation what its client gives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 60.0
"""For the whole conversation, which takes some fifteen seconds of speech."""
PIECE_S = 0.04
ENOUGH_S = 0.5
"""Of an answer, before it is talked over."""
REST_S = 0.3
"""Between an answer's end and the user's next word."""
TOOL_REQUEST = 'call add {"a": 2, "b": 3}'
"""What makes the service's own model call a function named `add`, if the client offers one."""
TOOL_RESULT = "[echo of add: 5]"
"""How that model tells the function's output back."""


class Arguments(NamedTuple):
    """
    What a test tells its driver.

    Attributes:
        url: of the gateway, scheme included, without a path.
        folder: holds said-0.pcm to said-2.pcm; the answers go there as heard-0.pcm and so on.
        rate_hz: of both.
        explicit: set everything that can be set; else leave the client as it comes.
        tool: ask in writing for a function call instead of talking.
    """

    url: str
    folder: Path
    rate_hz: int
    explicit: bool
    tool: bool


def arguments() -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate-hz", type=int, default=24_000)
    parser.add_argument("--explicit", action="store_true")
    parser.add_argument("--tool", action="store_true")
    found = parser.parse_args()
    return Arguments(found.url, found.folder, found.rate_hz, found.explicit, found.tool)


@dataclass
class Answer:
    """
    One answer, as the client gave it.

    Attributes:
        status: empty while it goes on.
    """

    audio: bytearray = field(default_factory=bytearray)
    transcript: str = ""
    status: str = ""


class Conversation:
    """
    One run of the conversation. Made inside the event loop that runs it.

    Attributes:
        answers: so far.
        seen: how often the client gave what, by name.
        errors: all that went wrong, in the client's words.
    """

    def __init__(self, options: Arguments) -> None:
        self.answers: list[Answer] = []
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self._options = options
        self._clips = [(options.folder / f"said-{number}.pcm").read_bytes() for number in range(3)]
        self._to_say = b""
        self._changed = asyncio.Event()

    # --- the user -------------------------------------------------------------------------------------------

    async def microphone(self) -> AsyncIterator[bytes]:
        """Give pieces of PCM16 at the pace of time, silence while nobody speaks; without an end."""
        size = 2 * int(self._options.rate_hz * PIECE_S)
        due = time.monotonic()
        while True:
            piece, self._to_say = self._to_say[:size], self._to_say[size:]
            yield piece.ljust(size, b"\0")
            due += PIECE_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def feed(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Carry the microphone's audio into a client until cancelled."""
        async for piece in self.microphone():
            await send(piece)

    async def hold(self) -> None:
        """
        Hold the conversation to its end; a problem ends it early and stands in the report.

        With a tool there is nothing to say: the driver has asked in writing.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                await (self._until(self._told) if self._options.tool else self._talk())
        except TimeoutError:
            self.errors.append("the conversation stood still")
        except RuntimeError as error:
            self.errors.append(str(error))

    # --- what the client gives ------------------------------------------------------------------------------

    def saw(self, name: str) -> None:
        """Count an event."""
        self.seen[name] += 1

    def began(self) -> None:
        """An answer begins."""
        self.answers.append(Answer())

    def heard(self, pcm: bytes) -> None:
        """Audio of the newest answer."""
        self.answers[-1].audio += pcm
        self._changed.set()

    def read(self, text: str) -> None:
        """Transcript of the newest answer."""
        self.answers[-1].transcript += text
        self._changed.set()

    def ended(self, status: str) -> None:
        """The newest answer is over; what is over stays as it ended."""
        if self.answers and not self.answers[-1].status:
            self.answers[-1].status = status
            self._changed.set()

    def failed(self, error: object) -> None:
        """Something went wrong."""
        self.errors.append(str(error))
        self._changed.set()

    # --- the end --------------------------------------------------------------------------------------------

    def report(self, version: str) -> None:
        """
        Write the answers' audio into the folder, and all else as one line of JSON to the standard output.
        """
        for number, answer in enumerate(self.answers):
            (self._options.folder / f"heard-{number}.pcm").write_bytes(bytes(answer.audio))
        answers = [{"transcript": answer.transcript, "status": answer.status} for answer in self.answers]
        print(
            json.dumps(
                {"version": version, "answers": answers, "seen": dict(self.seen), "errors": self.errors}
            ),
            flush=True,
        )

    # --- private --------------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        self._say(0)
        await self._until(lambda: self._over(0))
        await asyncio.sleep(REST_S)
        self._say(1)
        await self._until(lambda: self._heard(1))
        self._say(2)
        await self._until(lambda: self._over(1) and self._over(2))

    def _told(self) -> bool:
        return any(answer.status and TOOL_RESULT in answer.transcript for answer in self.answers)

    def _say(self, clip: int) -> None:
        self._to_say += self._clips[clip]

    def _heard(self, number: int) -> bool:
        enough = int(2 * self._options.rate_hz * ENOUGH_S)
        return len(self.answers) > number and len(self.answers[number].audio) >= enough

    def _over(self, number: int) -> bool:
        return len(self.answers) > number and self.answers[number].status != ""

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            if self.errors:
                raise RuntimeError("the conversation was given up")
            self._changed.clear()
            await self._changed.wait()
