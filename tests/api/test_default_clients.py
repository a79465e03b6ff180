"""What the usual clients send without being told to: taken as a whole, and echoed as it is in force."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.api.conftest import World

_STRICT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

AGENTS: list[dict[str, Any]] = [
    {
        "type": "realtime",
        "model": "gpt-realtime-2.1",
        "output_modalities": ["audio"],
        "instructions": "Be kind.",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "ash"},
        },
        "tools": [
            {
                "type": "function",
                "name": "look_up",
                "description": "Look it up.",
                "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
            }
        ],
    },
    {"type": "realtime", "model": "gpt-realtime-2.1", "tracing": "auto"},
]
"""openai-agents: its settings, then tracing alone."""

LIVEKIT: list[dict[str, Any]] = [
    {
        "type": "realtime",
        "model": "gpt-realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "noise_reduction": None,
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {
                    "type": "semantic_vad",
                    "create_response": True,
                    "eagerness": "medium",
                    "interrupt_response": True,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "speed": 1.0, "voice": "marin"},
        },
        "max_output_tokens": "inf",
        "tool_choice": "auto",
        "tracing": None,
    },
    {"type": "realtime", "instructions": "Be brief."},
    {
        "type": "realtime",
        "model": "gpt-realtime",
        "tools": [{"type": "function", "name": "f", "description": "", "parameters": {}}],
    },
    {"type": "realtime", "audio": {"output": {"voice": "marin"}}},
]
"""LiveKit: its settings, then single leaves."""

PIPECAT: list[dict[str, Any]] = [
    {
        "type": "realtime",
        "model": "loopback",
        "output_modalities": ["audio"],
        "instructions": "Be kind.",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": "gpt-4o-transcribe"},
                "turn_detection": {"type": "semantic_vad"},
                "noise_reduction": {"type": "near_field"},
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}},
        },
        "tools": [],
    }
]


@pytest.mark.parametrize("updates", [AGENTS, LIVEKIT, PIPECAT], ids=["agents", "livekit", "pipecat"])
async def test_stock_client_s_updates(world: World, updates: list[dict[str, Any]]) -> None:
    """Every default update is answered by the whole session in force, in OpenAI's strict types."""
    await world.worker()
    client = await (await world.site()).client("/v1/realtime?model=gpt-realtime")
    await client.next()
    session: dict[str, Any] = {}
    for update in updates:
        await client.send("session.update", session=update)
        event = await client.next()
        assert "session.updated" == event["type"], event
        _STRICT.validate_python(event, strict=True)
        session = event["session"]
    assert ("loopback", ["audio"]) == (session["model"], session["output_modalities"])
    into = updates[0]["audio"]["input"]
    assert into["transcription"]["model"] == session["audio"]["input"]["transcription"]["model"]
    detection = session["audio"]["input"]["turn_detection"]
    assert ("semantic_vad", True, True) == (
        detection["type"],
        detection["create_response"],
        detection["interrupt_response"],
    )
    said = updates[0]["audio"]["output"].get("voice", "default")
    assert (said, 1.0) == (session["audio"]["output"]["voice"], session["audio"]["output"]["speed"])
    assert into.get("noise_reduction") == session["audio"]["input"]["noise_reduction"]
    tools = [update["tools"] for update in updates if "tools" in update][-1]
    assert tools == session["tools"]
    assert ("auto", "inf") == (session["tool_choice"], session["max_output_tokens"])
    assert [update["tracing"] for update in updates if "tracing" in update][-1:] in ([], [session["tracing"]])


DUPLEX_CLIENT: dict[str, Any] = {
    "model": "loopback",
    "modalities": ["text", "audio"],
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "sample_rate_hz": 16000,
    "audio": {"input": {"sample_rate_hz": 16000}, "output": {"sample_rate_hz": 24000}},
    "turn_detection": None,
    "instructions": "Be kind.",
    "temperature": 0.7,
    "overlap_policy": "listen_only",
    "playback_commit_policy": "commit_all_on_done",
    "idle_timeout_s": 120.0,
    "extra_body": {"auto_response": True, "force_listen_count": 3},
}
"""vLLM-Omni's DuplexClient 0.30, with every optional key it has."""


async def test_duplex_client_s_opening(world: World) -> None:
    """DuplexClient's first message opens a session with its settings, echoed beside OpenAI's."""
    await world.worker()
    client = await (await world.site()).duplex()
    await client.send("session.update", session=DUPLEX_CLIENT)
    created, updated = await client.next(), await client.next()
    assert ["session.created", "session.updated"] == [created["type"], updated["type"]]
    session = updated["session"]
    assert (16_000, 24_000) == (
        session["audio"]["input"]["sample_rate_hz"],
        session["audio"]["output"]["sample_rate_hz"],
    )
    assert ("listen_only", "commit_all_on_done", 120, {"auto_response": True}) == (
        session["overlap_policy"],
        session["playback_commit_policy"],
        session["idle_timeout_s"],
        session["extra_body"],
    )
    assert session["audio"]["input"]["turn_detection"] is None
