"""
Drives the `openai` package's older interface, `AsyncOpenAI().beta.realtime`, which speaks the beta dialect.
"""

from __future__ import annotations

import asyncio
import base64

import openai
from openai import AsyncOpenAI
from openai.resources.beta.realtime.realtime import AsyncRealtimeConnection
from openai.types.beta.realtime import RealtimeServerEvent

from tests.clients.drivers.talk import Conversation, arguments


def take(conversation: Conversation, event: RealtimeServerEvent) -> None:
    """Tell the conversation of one event."""
    conversation.saw(event.type)
    match event.type:
        case "response.created":
            conversation.began()
        case "response.audio.delta":
            conversation.heard(base64.b64decode(event.delta))
        case "response.audio_transcript.delta":
            conversation.read(event.delta)
        case "response.done":
            conversation.ended(event.response.status or "")
        case "error":
            conversation.failed(event.error.message)


async def listen(conversation: Conversation, connection: AsyncRealtimeConnection) -> None:
    """Read events until the connection ends."""
    async for event in connection:
        take(conversation, event)


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation = Conversation(options)

    async def send(piece: bytes) -> None:
        await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())

    # Without an address of its own for WebSockets, this interface insists on TLS.
    client = AsyncOpenAI(api_key="k", websocket_base_url=f"{options.url}/v1")
    async with client, client.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection:
        if options.explicit:
            await connection.session.update(
                session={
                    "modalities": ["audio", "text"],
                    "instructions": "Say it again.",
                    "voice": "alloy",
                    "input_audio_format": "pcm16",
                    "output_audio_format": "pcm16",
                    "turn_detection": {
                        "type": "server_vad",
                        "silence_duration_ms": 500,
                        "create_response": True,
                        "interrupt_response": True,
                    },
                    "temperature": 0.8,
                }
            )
        tasks = [
            asyncio.create_task(listen(conversation, connection)),
            asyncio.create_task(conversation.feed(send)),
        ]
        await conversation.hold()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    conversation.report(openai.__version__)


if __name__ == "__main__":
    asyncio.run(main())
