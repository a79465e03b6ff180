"""
A conversation of one turn: a sound goes in, in real time; what the model answers comes out, with a timeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from . import messages as msg
from .client import Opening, SessionClient
from .wav import SAMPLE_BYTES, speech_end_ms

FRAME_MS = 80
ACK_INTERVAL_MS = 240
COMMIT_AFTER_MS = 400
"""OpenAI's way: how much silence follows the sound before the turn is committed."""


class Moment(Struct, frozen=True):
    """Something that happened, in milliseconds since the first frame was sent."""

    at_ms: int
    what: str


class TalkResult(Struct, frozen=True, kw_only=True):
    """How a conversation went. Times in milliseconds, on the client's clock."""

    session_id: str
    input_ms: int
    """Length of the sound."""
    speech_end_ms: int
    """Where its last speech ends."""
    first_audio_latency_ms: int | None
    """From the end of speech to the first audio that came; None if none came."""
    reply_ms: int
    played_ms: int
    transcript: str
    resumes: int
    missed_events: int
    timeline: tuple[Moment, ...]


class Reply(Struct, frozen=True):
    """The result, and the reply's sound: mono PCM16 at the opening's rate."""

    result: TalkResult
    audio: bytes


class Talk:
    """
    One conversation; make it, `run` it once.

    Args:
        opening: where and how to talk.
        sound: mono PCM16 at the opening's rate.
        patience_s: how long after the sound the reply may take to begin.
        progress: called once a frame with a line to show.
    """

    def __init__(
        self,
        opening: Opening,
        sound: bytes,
        *,
        patience_s: float = 10.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._opening = opening
        self._sound = sound
        self._patience_s = patience_s
        self._progress = progress
        self._client = SessionClient(opening)
        self._started_s = 0.0
        self._reply = bytearray()
        self._transcript: list[str] = []
        self._timeline: list[Moment] = []
        self._mode = "-"
        self._first_audio_ms: int | None = None
        self._response_id: str | None = None
        self._replied = asyncio.Event()
        """The reply is whole. One that was over before the sound was is not the reply to all of it."""
        self._sound_sent = False
        self._responding = False
        """A response is in progress."""
        self._played_ms = 0
        self._acknowledged_ms = 0

    async def run(self) -> Reply:
        """
        Talk to the end.

        Raises:
            SessionRefused, ConnectionLost, OutboxFull: as the client.
        """
        async with self._client:
            self._started_s = self._now_s()
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(self._listen(), name="listen")
                helpers = [tasks.create_task(self._speak(), name="speak")]
                if self._opening.way == "duplex":
                    helpers.append(tasks.create_task(self._client.keep_alive(), name="keep_alive"))
                await self._until_done(listening)
                for helper in helpers:
                    helper.cancel()
                await self._client.close()
                # The session's last event ends it; a server that never sends one must not keep us.
                await asyncio.wait([listening], timeout=5.0)
                listening.cancel()
        return Reply(self._result(), bytes(self._reply))

    async def _until_done(self, listening: asyncio.Task[None]) -> None:
        """Return when the reply was played, or none began in time, or the session is over."""
        limit_s = self._ms(len(self._sound)) / 1000 + self._patience_s
        while not listening.done():
            if self._replied.is_set() and self._played_ms >= self._ms(len(self._reply)):
                await self._acknowledge(self._played_ms)
                return
            idle = not self._responding and not self._replied.is_set()
            if idle and self._elapsed_ms() > limit_s * 1000:
                self._note("waited long enough")
                return
            await asyncio.sleep(FRAME_MS / 1000)

    # --- out ------------------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        """Send a frame each 80 ms: the sound, then silence for as long as the conversation lasts."""
        frame_bytes = self._opening.rate_hz * FRAME_MS // 1000 * SAMPLE_BYTES
        frames = -(-len(self._sound) // frame_bytes)
        commit_at = frames + COMMIT_AFTER_MS // FRAME_MS if self._opening.way == "openai" else -1
        self._note("speech in begins")
        frame = 0
        while True:
            piece = self._sound[frame * frame_bytes : (frame + 1) * frame_bytes]
            await self._client.append(piece.ljust(frame_bytes, b"\0"))
            frame += 1
            if frame == frames:
                self._sound_sent = True
                self._note("sound sent, silence follows")
            if frame == commit_at:
                self._note("committed, response asked for")
                await self._client.send(msg.CommitInput())
                await self._client.send(msg.CreateResponse())
            await self._play()
            self._show()
            await asyncio.sleep(max(0.0, self._started_s + frame * FRAME_MS / 1000 - self._now_s()))

    async def _play(self) -> None:
        """Move the virtual loudspeaker on, and tell the server now and then."""
        if self._first_audio_ms is None:
            return
        self._played_ms = min(self._played_ms + FRAME_MS, self._ms(len(self._reply)))
        if self._played_ms >= self._acknowledged_ms + ACK_INTERVAL_MS:
            await self._acknowledge(self._played_ms)

    async def _acknowledge(self, played_ms: int) -> None:
        self._acknowledged_ms = played_ms
        if self._response_id is not None and self._opening.way == "duplex":
            await self._client.send(msg.PlaybackAck(self._response_id, played_ms))

    # --- in -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async for event in self._client.events():
            self._take(event)

    def _take(self, event: msg.ServerEvent) -> None:
        match event.type:
            case "response.output_audio.delta":
                self._take_audio(event)
            case "response.output_audio_transcript.delta":
                self._transcript.append(event.text())
            case "response.created" if event.response is not None:
                self._response_id = event.response.id
                self._responding = True
                self._replied.clear()
                self._note("response begins")
            case "response.done" if event.response is not None:
                self._responding = False
                self._note(f"response {event.response.status}")
                if self._reply and self._sound_sent:
                    self._replied.set()
            case _:
                self._remark(event)

    def _remark(self, event: msg.ServerEvent) -> None:
        """Note what only the timeline wants to know."""
        match event.type:
            case "response.listen" | "response.speak":
                self._decide(event.type.removeprefix("response."))
            case "error" if event.error is not None:
                self._note(f"error {event.error.code}: {event.error.message}")
            case "input_audio_buffer.speech_started":
                self._note(f"heard: speech starts at {event.audio_start_ms} ms of input")
            case "input_audio_buffer.speech_stopped":
                self._note(f"heard: speech stops at {event.audio_end_ms} ms of input")
            case "session.created" | "session.resumed" | "session.closed" | "session.expired":
                self._note(event.type)

    def _take_audio(self, event: msg.ServerEvent) -> None:
        audio = event.audio()
        if audio and self._first_audio_ms is None:
            self._first_audio_ms = self._elapsed_ms()
            self._note("first audio")
        self._reply += audio

    def _decide(self, mode: str) -> None:
        if mode != self._mode:
            self._mode = mode
            self._note(f"model decides: {mode}")

    # --- keeping time ---------------------------------------------------------------------------------------

    def _result(self) -> TalkResult:
        end_ms = speech_end_ms(self._sound, self._opening.rate_hz)
        return TalkResult(
            session_id=self._client.session_id,
            input_ms=self._ms(len(self._sound)),
            speech_end_ms=end_ms,
            first_audio_latency_ms=None if self._first_audio_ms is None else self._first_audio_ms - end_ms,
            reply_ms=self._ms(len(self._reply)),
            played_ms=self._played_ms,
            transcript="".join(self._transcript),
            resumes=self._client.resumes,
            missed_events=self._client.missed,
            timeline=tuple(self._timeline),
        )

    def _note(self, what: str) -> None:
        self._timeline.append(Moment(self._elapsed_ms(), what))

    def _show(self) -> None:
        if self._progress is not None:
            sent_ms, reply_ms = self._elapsed_ms(), self._ms(len(self._reply))
            self._progress(f"{sent_ms / 1000:6.1f} s in  {self._mode:<6}  {reply_ms / 1000:5.1f} s back")

    def _ms(self, size_bytes: int) -> int:
        return size_bytes // SAMPLE_BYTES * 1000 // self._opening.rate_hz

    def _elapsed_ms(self) -> int:
        return round((self._now_s() - self._started_s) * 1000)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def report(result: TalkResult) -> list[str]:
    """The result as lines for people."""
    lines = [f"session {result.session_id}"]
    lines += [f"{moment.at_ms / 1000:8.3f} s  {moment.what}" for moment in result.timeline]
    lines.append(f"speech in      {result.speech_end_ms / 1000:.2f} s of {result.input_ms / 1000:.2f} s")
    if result.first_audio_latency_ms is None:
        return [*lines, "no reply"]
    lines.append(f"first audio    {result.first_audio_latency_ms} ms after the end of speech")
    lines.append(f"reply          {result.reply_ms / 1000:.2f} s, played {result.played_ms / 1000:.2f} s")
    if result.transcript:
        lines.append(f"transcript     {result.transcript}")
    if result.resumes:
        lines.append(f"connection     resumed {result.resumes} times, {result.missed_events} events missed")
    return lines
