"""Drives Pipecat's `OpenAIRealtimeLLMService` in a pipeline as its examples build it, but for the call."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSStartedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from tests.clients.drivers.talk import TOOL_REQUEST, Arguments, Conversation, arguments

RATE_HZ = 24_000
"""The only one that the service speaks."""


class Loudspeaker(BaseOutputTransport):
    """
    Pipecat's own output transport, which plays at the pace of time and tells the conversation what it plays.
    """

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE_HZ))
        self._conversation = conversation

    async def start(self, frame: StartFrame) -> None:
        """Be ready to play."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play a piece; silence outside of answers is none of the conversation's."""
        answers = self._conversation.answers
        if answers and not answers[-1].status:
            self._conversation.heard(frame.audio)
        await asyncio.sleep(len(frame.audio) / (2 * RATE_HZ))
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """See what comes, before it is dealt with."""
        if not isinstance(frame, InputAudioRawFrame):
            self._conversation.saw(type(frame).__name__)
        match frame:
            case TTSStartedFrame():
                self._conversation.began()
            case TTSTextFrame():
                self._conversation.read(frame.text)
            case InterruptionFrame():
                self._conversation.ended("cancelled")
        await super().process_frame(frame, direction)

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """See what goes on: an answer is over when it has been played."""
        if isinstance(frame, BotStoppedSpeakingFrame):
            self._conversation.ended("completed")
        await super().push_frame(frame, direction)


def service(options: Arguments) -> OpenAIRealtimeLLMService:
    """The service at its address, and in the explicit run with settings."""
    address = {"api_key": "k", "base_url": f"{options.url}/v1/realtime"}
    if not options.explicit:
        return OpenAIRealtimeLLMService(**address)
    properties = events.SessionProperties(
        instructions="Say it again.",
        audio=events.AudioConfiguration(
            input=events.AudioInput(
                format=events.PCMAudioFormat(rate=RATE_HZ),
                turn_detection=events.TurnDetection(type="server_vad", silence_duration_ms=500),
            ),
            output=events.AudioOutput(format=events.PCMAudioFormat(rate=RATE_HZ)),
        ),
    )
    settings = OpenAIRealtimeLLMService.Settings(model="loopback", session_properties=properties)
    return OpenAIRealtimeLLMService(**address, settings=settings)


async def add(params: FunctionCallParams, a: int, b: int) -> None:
    """
    Add two numbers.

    Args:
        params: how to answer.
        a: one.
        b: the other.
    """
    await params.result_callback(a + b)


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation = Conversation(options)
    messages = [{"role": "user", "content": TOOL_REQUEST}] if options.tool else []
    context = LLMContextAggregatorPair(LLMContext(messages, tools=[add]))
    worker = PipelineWorker(
        Pipeline([context.user(), service(options), Loudspeaker(conversation), context.assistant()]),
        params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        enable_rtvi=False,
    )

    @worker.event_handler("on_pipeline_error")
    async def on_error(_: PipelineWorker, frame: ErrorFrame) -> None:
        conversation.failed(frame.error)

    async def send(piece: bytes) -> None:
        await worker.queue_frame(InputAudioRawFrame(audio=piece, sample_rate=RATE_HZ, num_channels=1))

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    feeding = asyncio.create_task(conversation.feed(send))
    if options.tool:
        await worker.queue_frame(LLMRunFrame())
    await conversation.hold()
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    await worker.queue_frame(EndFrame())
    await running
    conversation.report(version("pipecat-ai"))


if __name__ == "__main__":
    asyncio.run(main())
