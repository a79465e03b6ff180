"""Drives openai-agents: a `RealtimeAgent` in a `RealtimeRunner`."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession

from tests.clients.drivers.talk import TOOL_REQUEST, Arguments, Conversation, arguments


def model_config(options: Arguments) -> dict[str, Any]:
    """The address, and in the explicit run the settings that the application would choose."""
    config: dict[str, Any] = {"url": f"{options.url}/v1/realtime", "api_key": "k"}
    if options.explicit:
        config["url"] += "?model=loopback"
        config["initial_model_settings"] = {
            "model_name": "loopback",
            "output_modalities": ["audio"],
            "input_audio_format": "pcm16",
            "output_audio_format": "pcm16",
            "turn_detection": {"type": "server_vad", "interrupt_response": True},
            "input_audio_transcription": None,
        }
    return config


def take(conversation: Conversation, event: Any) -> None:
    """Tell the conversation of one event of the session."""
    match event.type:
        case "raw_model_event":
            take_raw(conversation, event.data)
        case "audio":
            conversation.heard(event.audio.data)
        case "error":
            conversation.failed(event.error)
        case _:
            conversation.saw(event.type)


def take_raw(conversation: Conversation, event: Any) -> None:
    """Tell it of what the session passes on from its model."""
    match event.type:
        case "raw_server_event":
            conversation.saw(event.data["type"])
            if event.data["type"] == "response.done":
                conversation.ended(event.data["response"]["status"])
        case "turn_started":
            conversation.began()
        case "transcript_delta":
            conversation.read(event.delta)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def listen(conversation: Conversation, session: RealtimeSession) -> None:
    """Read events until the session ends."""
    async for event in session:
        take(conversation, event)


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation = Conversation(options)
    agent = RealtimeAgent(name="echo", instructions="Say it again.", tools=[add])
    async with await RealtimeRunner(agent).run(model_config=model_config(options)) as session:
        tasks = [
            asyncio.create_task(listen(conversation, session)),
            asyncio.create_task(conversation.feed(session.send_audio)),
        ]
        if options.tool:
            await session.send_message(TOOL_REQUEST)
        await conversation.hold()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    conversation.report(version("openai-agents"))


if __name__ == "__main__":
    asyncio.run(main())
