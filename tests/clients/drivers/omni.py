"""Drives vLLM-Omni's `DuplexClient`, out of its wheel's folder of clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from vllm_omni.clients.duplex import AudioFormat, DuplexClient, DuplexConnectionError, SessionConfig

from tests.clients.drivers.talk import Arguments, Conversation, arguments

VERSION = "0.30.0"
"""The wheel's; its folder of clients does not say."""


def config(options: Arguments) -> SessionConfig:
    """Turn detection, so that the user can talk over the answer; and in the explicit run the formats too."""
    detection = {"type": "server_vad"}
    if not options.explicit:
        return SessionConfig(turn_detection=detection, overlap_policy="barge_in_on_speech")
    audio = AudioFormat("pcm16", options.rate_hz)
    return SessionConfig(
        turn_detection=detection,
        overlap_policy="barge_in_on_speech",
        input_audio=audio,
        output_audio=audio,
        instructions="Say it again.",
        playback_commit_policy="ack_only",
    )


async def listen(conversation: Conversation, client: DuplexClient) -> None:
    """Hear every response, and acknowledge what was heard."""
    try:
        async for response in client.responses():
            if response.decision == "listen":
                continue
            conversation.began()
            async for chunk in response.audio():
                conversation.heard(chunk)
                with suppress(DuplexConnectionError):
                    await client.ack_playback(response.played_ms, response_id=response.response_id)
            conversation.read(response.transcript)
            conversation.ended(status(response))
    except Exception as error:  # noqa: BLE001 - the task's outer edge; it stands in the report
        conversation.failed(repr(error))


def status(response: Any) -> str:
    """How a response ended."""
    raw = response.done_event.raw if response.done_event is not None else {}
    return str(raw.get("response", {}).get("status", ""))


async def count(conversation: Conversation, client: DuplexClient) -> None:
    """Count all events beside that."""
    async for event in client.events():
        conversation.saw(event.type)


async def main() -> None:
    """Hold the conversation."""
    options = arguments()
    conversation = Conversation(options)

    async def send(piece: bytes) -> None:
        # While the client reconnects, what the user says is lost; so its own documentation has it.
        with suppress(DuplexConnectionError):
            await client.append_audio(piece)

    async with DuplexClient(options.url, model="loopback", config=config(options)) as client:
        tasks = [
            asyncio.create_task(listen(conversation, client)),
            asyncio.create_task(count(conversation, client)),
            asyncio.create_task(conversation.feed(send)),
        ]
        await conversation.hold()
        tasks[-1].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[-1]
        await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    conversation.report(VERSION)


if __name__ == "__main__":
    asyncio.run(main())
