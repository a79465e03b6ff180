"""The session object, as clients of both ways read it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from session_core import commands as cmd
from session_core import events as ev
from session_core import views
from session_core.audio import AudioFormat, Encoding
from session_core.config import Modality, SessionConfig, SessionPatch, Tool, Transcription, TurnDetection, Way
from session_core.items import Item, ItemType, Part, Role
from session_core.state import Input
from tests.session_core.scenario import CONFIG, OPENED_MS, Scenario

GA: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)


def as_read(view: msgspec.Struct) -> Any:
    """A view as a client decodes it."""
    return msgspec.json.decode(msgspec.json.encode(view))


def test_the_session_object_of_openai_clients() -> None:
    """Effective values, nothing that stock clients do not know but the rate."""
    session = Scenario.live(Way.OPENAI, config=replace(CONFIG, turn_detection=TurnDetection()))

    assert {
        "type": "realtime",
        "object": "realtime.session",
        "id": "s1",
        "model": "loopback",
        "output_modalities": ["audio"],
        "instructions": "",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "sample_rate_hz": 24_000,
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 500,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
                "transcription": None,
                "noise_reduction": None,
            },
            "output": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "sample_rate_hz": 24_000,
                "voice": "default",
                "speed": 1.0,
            },
        },
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "truncation": "auto",
        "tracing": None,
        "expires_at": (OPENED_MS + 3_600_000) // 1000,
    } == as_read(views.session(session.state))


@pytest.mark.parametrize(
    ("audio_format", "expected"),
    [
        (AudioFormat(), {"type": "audio/pcm", "rate": 24_000}),
        (AudioFormat(sample_rate_hz=16_000), {"type": "audio/pcm"}),
        (AudioFormat(Encoding.G711_ULAW, 8_000), {"type": "audio/pcmu"}),
        (AudioFormat(Encoding.G711_ALAW, 8_000), {"type": "audio/pcma"}),
        (AudioFormat(Encoding.PCM_F32LE, 24_000), None),
    ],
)
def test_formats_that_strict_clients_parse(
    audio_format: AudioFormat, expected: dict[str, object] | None
) -> None:
    """`rate` only where they allow it, no format where they know none; the rate beside it always."""
    session = Scenario.live(Way.OPENAI)
    (updated,) = session.client(
        cmd.UpdateSession(
            SessionPatch(input_format=audio_format, output_format=audio_format, max_output_tokens=9)
        )
    )
    GA.validate_json(msgspec.json.encode(updated), strict=True)
    audio = as_read(views.session(session.state))["audio"]

    for direction in ("input", "output"):
        assert expected == audio[direction].get("format")
        assert audio_format.sample_rate_hz == audio[direction]["sample_rate_hz"]


@pytest.mark.parametrize(("idle_timeout_s", "expected_s"), [(None, 600), (9, 9)])
def test_the_session_object_of_duplex_clients(idle_timeout_s: int | None, expected_s: int) -> None:
    """State, policies and capabilities besides."""
    config = SessionConfig("loopback", auto_response=True, idle_timeout_s=idle_timeout_s)
    session = Scenario.live(config=config)
    session.audio(9_600)
    session.client(cmd.CommitInput())
    view = as_read(views.session(session.state))
    assert session.state.response is not None

    expected = {
        "session_id": "s1",
        "state": "open",
        "turn_state": "thinking",
        "epoch": 0,
        "turn_id": 1,
        "active_response_id": session.state.response.response_id,
        "overlap_policy": "barge_in_on_speech",
        "overlap_barge_in_ms": 0,
        "playback_commit_policy": "commit_all_on_done",
        "playback": {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0},
        "idle_timeout_s": expected_s,
        "extra_body": {"auto_response": True},
        "capabilities": {
            "chunk_period_ms": 80,
            "clock": "unit",
            "supports_barge_in": True,
            "supports_text": False,
            "supports_tools": False,
        },
    }
    assert expected == {name: view.get(name) for name in expected}


def test_the_turn_state_follows_the_turn() -> None:
    """The user speaks, the model is asked and thinks, speaks from its first unit on, and listens again."""
    session = Scenario.live(config=replace(CONFIG, turn_detection=TurnDetection(create_response=False)))
    session.audio(9_600)
    states = [views.session(session.state)]
    session.worker(ev.SpeechStarted(0))
    states.append(views.session(session.state))
    session.worker(ev.SpeechStopped(2_400))
    session.asks()
    states.append(views.session(session.state))
    session.speaks("a")
    states.append(views.session(session.state))
    session.speaks("b", last=True)
    states.append(views.session(session.state))

    expected = ["listening", "user_speaking", "thinking", "speaking", "listening"]
    assert expected == [view.turn_state for view in states]
    assert [None, None, None] == [states[index].active_response_id for index in (0, 1, 4)]


def test_the_session_object_echoes_what_is_configured() -> None:
    """Tools, transcription, semantic turn detection, modality and what no model here acts on."""
    config = replace(
        CONFIG,
        turn_detection=TurnDetection("semantic_vad", eagerness="low", interrupt_response=False),
        transcription=Transcription("whisper", "en"),
        tools=(Tool("f", "Find.", {"type": "object"}),),
        tool_choice={"type": "function", "name": "f"},
        output_modality=Modality.TEXT,
        noise_reduction={"type": "near_field"},
        tracing="auto",
        truncation="disabled",
        speed=1.5,
    )
    session = Scenario.live(Way.OPENAI, config=config)
    (updated,) = session.client(cmd.UpdateSession(SessionPatch(instructions="Hi")))
    GA.validate_json(msgspec.json.encode(updated), strict=True)
    view = as_read(views.session(session.state))

    assert {
        "type": "semantic_vad",
        "eagerness": "low",
        "create_response": True,
        "interrupt_response": False,
    } == view["audio"]["input"]["turn_detection"]
    assert {"model": "whisper", "language": "en"} == view["audio"]["input"]["transcription"]
    assert {"type": "near_field"} == view["audio"]["input"]["noise_reduction"]
    assert [
        {"type": "function", "name": "f", "description": "Find.", "parameters": {"type": "object"}}
    ] == view["tools"]
    assert ({"type": "function", "name": "f"}, ["text"], "auto", "disabled", 1.5) == (
        view["tool_choice"],
        view["output_modalities"],
        view["tracing"],
        view["truncation"],
        view["audio"]["output"]["speed"],
    )


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            Item("a", role=Role.USER, parts=(Part("input_audio", samples=9), Part("input_text", text="Hi"))),
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_audio", "transcript": None},
                    {"type": "input_text", "text": "Hi"},
                ],
            },
        ),
        (
            Item("a", ItemType.FUNCTION_CALL, call_id="c", name="f", arguments=""),
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
        ),
        (
            Item("a", ItemType.FUNCTION_CALL_OUTPUT, call_id="c", output=""),
            {"type": "function_call_output", "call_id": "c", "output": ""},
        ),
    ],
)
def test_items_of_all_types(item: Item, expected: dict[str, object]) -> None:
    """Fields of other types stay away; empty texts do not."""
    base = {"id": "a", "object": "realtime.item", "status": "completed"}

    assert base | expected == as_read(views.item(item))


def test_no_receipts_without_input() -> None:
    """A session that heard nothing acknowledges nothing."""
    receipts = views.receipts(Scenario.live().state)

    assert Input().last_client_event_id is receipts["last_client_event_id"]
    assert (0, 0) == (receipts["input_audio_received_ms"], receipts["input_audio_received_bytes"])
