"""
Drives LiveKit's `RealtimeModel` in an `AgentSession`, with a microphone and a loudspeaker instead of a room.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities, TextOutput
from livekit.plugins.openai.realtime import RealtimeModel
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

from tests.clients.drivers.talk import TOOL_REQUEST, Arguments, Conversation, arguments


class Microphone(AudioInput):
    """The user's voice."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(label="microphone")
        self._pieces = conversation.microphone()

    async def __anext__(self) -> rtc.AudioFrame:
        piece = await anext(self._pieces)
        return rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2)


class Loudspeaker(AudioOutput):
    """Plays at the pace of time, as a room's track does, and tells the conversation what it plays."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=False))
        self._conversation = conversation
        self._statuses: list[str] = []
        self._played = False
        self._began = 0.0
        self._taken_s = 0.0
        self._end: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        """Take a frame to play."""
        await super().capture_frame(frame)
        if not self._taken_s:
            self._began = time.time()
            open_answer(self._conversation)
            self.on_playback_started(created_at=self._began)
        self._taken_s += frame.duration
        self._conversation.heard(bytes(frame.data))

    def flush(self) -> None:
        """The answer is whole; it is over when it has been played."""
        super().flush()
        if self._taken_s and self._end is None:
            rest = max(0.0, self._began + self._taken_s - time.time())
            self._end = asyncio.get_running_loop().call_later(rest, self._finish, False)

    def clear_buffer(self) -> None:
        """Be quiet at once."""
        if self._taken_s:
            self._finish(True)

    def done(self, status: str) -> None:
        """The service has ended an answer; for the conversation it is over when it has been played too."""
        self._statuses.append(status)
        self._settle()

    def _finish(self, interrupted: bool) -> None:
        if self._end is not None:
            self._end.cancel()
        played_s = min(self._taken_s, time.time() - self._began)
        self._end, self._taken_s, self._played = None, 0.0, True
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)
        self._settle()

    def _settle(self) -> None:
        if self._played and self._statuses:
            self._played = False
            self._conversation.ended(self._statuses.pop(0))


class Reader(TextOutput):
    """Reads the transcript along."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(label="reader", next_in_chain=None)
        self._conversation = conversation

    async def capture_text(self, text: str) -> None:
        """Take a piece of text."""
        open_answer(self._conversation)
        self._conversation.read(text)

    def flush(self) -> None:
        """Nothing is held back here."""


def open_answer(conversation: Conversation) -> None:
    """Text or audio comes: the first of either begins an answer."""
    if not conversation.answers or conversation.answers[-1].status:
        conversation.began()


def model(options: Arguments) -> RealtimeModel:
    """The model at its address, and in the explicit run with settings."""
    url = f"{options.url}/v1"
    if not options.explicit:
        return RealtimeModel(base_url=url, api_key="k")
    detection = ServerVad(
        type="server_vad", silence_duration_ms=500, create_response=True, interrupt_response=True
    )
    return RealtimeModel(
        base_url=url,
        api_key="k",
        model="loopback",
        turn_detection=detection,
        input_audio_transcription=None,
        modalities=["audio"],
    )


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def take(conversation: Conversation, loudspeaker: Loudspeaker, event: Any) -> None:
    """Tell of an event of the service, as LiveKit shows it to applications."""
    if isinstance(event, dict):
        conversation.saw(event["type"])
        if event["type"] == "response.done" and spoken(event["response"]):
            loudspeaker.done(event["response"]["status"])


def spoken(response: dict[str, Any]) -> bool:
    """Tell whether a response is an answer, not only function calls."""
    return any(item["type"] == "message" for item in response["output"])


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation = Conversation(options)
    llm = model(options)
    # In its first seconds of speech a session takes no interruption; the explicit run changes that.
    session: AgentSession = (
        AgentSession(llm=llm, aec_warmup_duration=None) if options.explicit else AgentSession(llm=llm)
    )
    session.input.audio = Microphone(conversation)
    session.output.audio = loudspeaker = Loudspeaker(conversation)
    session.output.transcription = Reader(conversation)
    session.on("error", lambda event: conversation.failed(event.error))
    session.on("close", lambda event: conversation.failed(event.error) if event.error else None)
    agent = Agent(instructions="Say it again.", tools=[add])
    await session.start(agent, record=False)
    agent.realtime_llm_session.on(
        "openai_server_event_received", lambda event: take(conversation, loudspeaker, event)
    )
    if options.tool:
        session.generate_reply(user_input=TOOL_REQUEST)
    await conversation.hold()
    await session.aclose()
    await llm.aclose()
    conversation.report(version("livekit-plugins-openai"))


if __name__ == "__main__":
    asyncio.run(main())
