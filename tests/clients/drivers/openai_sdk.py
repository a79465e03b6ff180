"""Drives the `openai` package: `AsyncOpenAI().realtime`."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Any

import openai
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from websockets.exceptions import ConnectionClosed

from tests.clients.drivers.talk import Conversation, arguments


class Place:
    """Where the session is and how far it was read: what a new connection says to go on with it."""

    def __init__(self) -> None:
        self._query: dict[str, str] = {}

    def note(self, event: RealtimeServerEvent) -> None:
        """Keep what an event says of it, beside what the SDK has names for."""
        fields: dict[str, Any] = event.to_dict(mode="json")
        if event.type == "session.created":
            self._query["session_id"] = fields["session"]["id"]
            self._query["resume_token"] = fields["resume_token"]
        if "server_event_seq" in fields:
            self._query["last_received_server_event_seq"] = str(fields["server_event_seq"])

    def overrides(self, event: ReconnectingEvent) -> ReconnectingOverrides:
        """Answer the SDK's question before it connects again."""
        return {"extra_query": {**event.extra_query, **self._query}}


def take(conversation: Conversation, event: RealtimeServerEvent) -> None:
    """Tell the conversation of one event."""
    conversation.saw(event.type)
    match event.type:
        case "response.created":
            conversation.began()
        case "response.output_audio.delta":
            conversation.heard(base64.b64decode(event.delta))
        case "response.output_audio_transcript.delta":
            conversation.read(event.delta)
        case "response.done":
            conversation.ended(event.response.status or "")
        case "error":
            conversation.failed(event.error.message)


async def listen(conversation: Conversation, connection: AsyncRealtimeConnection, place: Place) -> None:
    """Read events until the connection ends."""
    async for event in connection:
        place.note(event)
        take(conversation, event)


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation, place = Conversation(options), Place()
    model = "loopback" if options.explicit else "gpt-realtime"

    async def send(piece: bytes) -> None:
        # Between two connections what the user says is lost.
        with suppress(ConnectionClosed):
            await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())

    async with (
        AsyncOpenAI(api_key="k", base_url=f"{options.url}/v1") as client,
        client.realtime.connect(model=model, on_reconnecting=place.overrides) as connection,
    ):
        if options.explicit:
            await connection.session.update(
                session={
                    "type": "realtime",
                    "output_modalities": ["audio"],
                    "instructions": "Say it again.",
                    "audio": {
                        "input": {
                            "format": {"type": "audio/pcm", "rate": 24000},
                            "turn_detection": {
                                "type": "server_vad",
                                "threshold": 0.5,
                                "prefix_padding_ms": 300,
                                "silence_duration_ms": 500,
                                "create_response": True,
                                "interrupt_response": True,
                            },
                        },
                        "output": {"format": {"type": "audio/pcm", "rate": 24000}},
                    },
                }
            )
        tasks = [
            asyncio.create_task(listen(conversation, connection, place)),
            asyncio.create_task(conversation.feed(send)),
        ]
        await conversation.hold()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    conversation.report(openai.__version__)


if __name__ == "__main__":
    asyncio.run(main())
