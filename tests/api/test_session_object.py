"""The session object in each dialect: what it sets, what it keeps, and what is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.settings import GatewaySettings, SemanticVad
from session_core import commands as cmd
from session_core.audio import AudioFormat, Encoding
from session_core.config import (
    CommitPolicy,
    Dialect,
    Modality,
    ModelProfile,
    OverlapPolicy,
    SessionPatch,
    Tool,
    Transcription,
    TurnDetection,
    Way,
)
from tests.api.spelling import command, context, refusal

PCM24 = AudioFormat(Encoding.PCM16, 24_000)
PCM16 = AudioFormat(Encoding.PCM16, 16_000)
GA_SESSIONS: list[tuple[dict[str, Any], SessionPatch]] = [
    ({}, SessionPatch()),
    ({"instructions": None}, SessionPatch(instructions="")),
    ({"model": "alias"}, SessionPatch(model="loopback")),
    ({"unknown": 1, "prompt": {"id": "p"}, "include": [], "reasoning": {"effort": "low"}}, SessionPatch()),
    ({"parallel_tool_calls": False, "audio": None}, SessionPatch()),
    ({"tracing": "auto", "tools": []}, SessionPatch(tracing="auto", tools=())),
    ({"tracing": {"workflow_name": "w"}}, SessionPatch(tracing={"workflow_name": "w"})),
    (
        {"tracing": None, "tools": None, "tool_choice": None},
        SessionPatch(tracing=None, tools=(), tool_choice="auto"),
    ),
    (
        {
            "tools": [{"type": "function", "name": "f", "description": None, "strict": True}],
            "tool_choice": "required",
        },
        SessionPatch(tools=(Tool("f"),), tool_choice="required"),
    ),
    (
        {"tool_choice": {"type": "function", "name": "f"}},
        SessionPatch(tool_choice={"type": "function", "name": "f"}),
    ),
    ({"truncation": "disabled"}, SessionPatch(truncation="disabled")),
    ({"truncation": None}, SessionPatch(truncation="auto")),
    (
        {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
        SessionPatch(truncation={"type": "retention_ratio", "retention_ratio": 0.5}),
    ),
    ({"output_modalities": ["audio"]}, SessionPatch(output_modality=Modality.AUDIO)),
    ({"output_modalities": ["text"]}, SessionPatch(output_modality=Modality.TEXT)),
    ({"audio": {"input": {"transcription": None}}}, SessionPatch(transcription=None)),
    (
        {"audio": {"input": {"transcription": {"model": "whisper-1", "language": "en", "prompt": "p"}}}},
        SessionPatch(transcription=Transcription("whisper-1", "en", "p")),
    ),
    (
        {"audio": {"input": {"transcription": {"languages": ["de", "en"], "keywords": ["k"]}}}},
        SessionPatch(transcription=Transcription("default", "de")),
    ),
    ({"audio": {"input": {"noise_reduction": None}}}, SessionPatch(noise_reduction=None)),
    (
        {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}},
        SessionPatch(noise_reduction={"type": "far_field"}),
    ),
    ({"audio": {"output": {"speed": 1.5}}}, SessionPatch(speed=1.5)),
    ({"audio": {"output": {"speed": None, "voice": None}}}, SessionPatch(speed=1.0)),
    ({"playback_commit_policy": "ack_only"}, SessionPatch(playback_commit_policy=CommitPolicy.ACK_ONLY)),
    ({"max_output_tokens": "inf"}, SessionPatch(max_output_tokens=None)),
    ({"max_output_tokens": 5}, SessionPatch(max_output_tokens=5)),
    ({"audio": {"input": {"turn_detection": None}}}, SessionPatch(turn_detection=None)),
    (
        {
            "audio": {
                "input": {
                    "turn_detection": {
                        "type": "server_vad",
                        "silence_duration_ms": 200,
                        "idle_timeout_ms": 5_000,
                        "min_speech_duration_ms": 96,
                    }
                }
            }
        },
        SessionPatch(turn_detection=TurnDetection(silence_duration_ms=200, idle_timeout_ms=5_000)),
    ),
    (
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}},
        SessionPatch(
            turn_detection=TurnDetection("semantic_vad", silence_duration_ms=1_000, eagerness="low")
        ),
    ),
    ({"audio": {"input": {"format": {"type": "audio/pcm"}}}}, SessionPatch(input_format=PCM24)),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
        SessionPatch(input_format=PCM16),
    ),
    (
        {"audio": {"output": {"format": {"type": "audio/pcmu"}, "voice": {"id": "v"}}}},
        SessionPatch(output_format=AudioFormat(Encoding.G711_ULAW, 8_000), voice="v"),
    ),
    (
        {"audio": {"output": {"sample_rate_hz": 48000, "voice": "v"}}},
        SessionPatch(output_format=AudioFormat(Encoding.PCM16, 48_000), voice="v"),
    ),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm"}, "sample_rate_hz": 16000}}},
        SessionPatch(input_format=PCM16),
    ),
]


@pytest.mark.parametrize(("session", "patch"), GA_SESSIONS, ids=lambda value: str(value)[:60])
def test_ga_session(session: dict[str, Any], patch: SessionPatch) -> None:
    """GA's nested session object sets exactly what it names."""
    event = {"type": "session.update", "session": {"type": "realtime", **session}}
    assert cmd.UpdateSession(patch) == command(event, context(Way.OPENAI))


FLAT_SESSIONS: list[tuple[dict[str, Any], SessionPatch]] = [
    ({"input_audio_format": "pcm16"}, SessionPatch(input_format=PCM16)),
    ({"input_audio_format": "pcm16", "sample_rate_hz": 24000}, SessionPatch(input_format=PCM24)),
    ({"output_audio_format": "pcm16"}, SessionPatch(output_format=PCM24)),
    (
        {"input_audio_format": "pcm_f32le", "audio": {"input": {"sample_rate_hz": 16000}}},
        SessionPatch(input_format=AudioFormat(Encoding.PCM_F32LE, 16_000)),
    ),
    (
        {"modalities": ["text", "audio"], "turn_detection": None},
        SessionPatch(output_modality=Modality.AUDIO, turn_detection=None),
    ),
    ({"modalities": ["text"]}, SessionPatch(output_modality=Modality.TEXT)),
    (
        {
            "extra_body": {
                "auto_response": True,
                "force_listen_count": 3,
                "duplex_initial_user_text": "hi",
                "return_stage_metrics": True,
            }
        },
        SessionPatch(auto_response=True),
    ),
    (
        {"extra_body": {"realtime_tools": [{"type": "function", "function": {"name": "f"}}]}},
        SessionPatch(tools=(Tool("f"),)),
    ),
    (
        {"input_audio_transcription": {"model": "m"}, "input_audio_noise_reduction": None, "speed": 0.5},
        SessionPatch(transcription=Transcription("m"), noise_reduction=None, speed=0.5),
    ),
    (
        {"overlap_policy": "listen_only", "overlap_silence_rms": 0.01},
        SessionPatch(overlap_policy=OverlapPolicy.LISTEN_ONLY),
    ),
    ({"overlap_short_ack_ms": 300}, SessionPatch(overlap_barge_in_ms=300)),
    ({"overlap_short_ack_ms": 300, "overlap_barge_in_ms": 800}, SessionPatch(overlap_barge_in_ms=800)),
    ({"overlap_short_ack_ms": 300, "overlap_barge_in_ms": 100}, SessionPatch(overlap_barge_in_ms=300)),
    (
        {"idle_timeout_s": 2.5, "temperature": 0.5, "voice": "v"},
        SessionPatch(idle_timeout_s=3, temperature=0.5, voice="v"),
    ),
    ({"max_response_output_tokens": 9}, SessionPatch(max_output_tokens=9)),
]


@pytest.mark.parametrize(("session", "patch"), FLAT_SESSIONS, ids=lambda value: str(value)[:60])
def test_flat_session(session: dict[str, Any], patch: SessionPatch) -> None:
    """DuplexClient's flat session keys set exactly what they name."""
    assert cmd.UpdateSession(patch) == command({"type": "session.update", "session": session})


DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"a": DEEP}

SESSION_MISTAKES: list[tuple[Way, dict[str, Any], str, str]] = [
    (Way.OPENAI, {}, "missing_required_parameter", "session.type"),
    (Way.OPENAI, {"type": "transcription"}, "invalid_value", "session.type"),
    (Way.OPENAI, {"type": "realtime", "voice": "v"}, "unknown_parameter", "session.voice"),
    (Way.OPENAI, {"type": "realtime", "modalities": ["audio"]}, "unknown_parameter", "session.modalities"),
    (
        Way.OPENAI,
        {"type": "realtime", "output_modalities": ["text", "audio"]},
        "invalid_value",
        "session.output_modalities",
    ),
    (Way.OPENAI, {"type": "realtime", "speed": 1.0}, "unknown_parameter", "session.speed"),
    (
        Way.OPENAI,
        {"type": "realtime", "input_audio_transcription": None},
        *("unknown_parameter", "session.input_audio_transcription"),
    ),
    (
        Way.OPENAI,
        {
            "type": "realtime",
            "tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}],
        },
        *("unsupported_tool_type", "session.tools[1].type"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tool_choice": {"type": "mcp", "server_label": "s"}},
        *("unsupported_tool_type", "session.tool_choice.type"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tools": [{"type": "function"}]},
        *("missing_required_parameter", "session.tools[0].name"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tools": [{"type": "function", "name": "f"}] * 2},
        *("invalid_value", "session.tools"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tools": [{"type": "function", "name": "f", "parameters": {"n": 1 << 63}}]},
        *("invalid_value", "session.tools[0].parameters"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tracing": DEEP},
        *("invalid_value", "session.tracing"),
    ),
    (Way.OPENAI, {"type": "realtime", "tool_choice": "maybe"}, "invalid_value", "session.tool_choice"),
    (
        Way.OPENAI,
        {"type": "realtime", "tool_choice": {"type": "function"}},
        *("missing_required_parameter", "session.tool_choice.name"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "tracing": {"metadata": [1 << 63]}},
        *("invalid_value", "session.tracing"),
    ),
    (Way.OPENAI, {"type": "realtime", "tracing": "x"}, "invalid_value", "session.tracing"),
    (Way.OPENAI, {"type": "realtime", "truncation": "x"}, "invalid_value", "session.truncation"),
    (Way.OPENAI, {"type": "realtime", "instructions": "x" * (513 << 10)}, "invalid_value", "session"),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"output": {"speed": 9}}},
        *("invalid_value", "session.audio.output.speed"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"input": {"noise_reduction": {"type": "x"}}}},
        *("invalid_value", "session.audio.input.noise_reduction.type"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 11025}}}},
        *("invalid_value", "session.audio.input.format.rate"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"output": {"format": {"type": "audio/mp3"}}}},
        *("invalid_value", "session.audio.output.format.type"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "psychic"}}}},
        *("invalid_value", "session.audio.input.turn_detection.type"),
    ),
    (
        Way.OPENAI,
        {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
        *("invalid_value", "session.audio.input.turn_detection.threshold"),
    ),
    (Way.DUPLEX, {"input_audio_format": "mp3"}, "unsupported_audio_format", "session.audio.input.format"),
    (Way.DUPLEX, {"sample_rate_hz": 11025}, "unsupported_audio_format", "session.audio.input.sample_rate_hz"),
    (Way.DUPLEX, {"temperature": 3}, "invalid_session_config", "session.temperature"),
    (Way.DUPLEX, {"ref_audio": "x"}, "ref_audio_update_unsupported", "session.ref_audio"),
    (Way.DUPLEX, {"modalities": []}, "invalid_session_config", "session.modalities"),
    (
        Way.DUPLEX,
        {"turn_detection": {"type": "x"}},
        "unsupported_turn_detection",
        "session.turn_detection.type",
    ),
    (Way.DUPLEX, {"overlap_policy": "x"}, "invalid_session_config", "session.overlap_policy"),
    (Way.DUPLEX, {"playback_commit_policy": "x"}, "invalid_session_config", "session.playback_commit_policy"),
]


@pytest.mark.parametrize(
    ("way", "session", "code", "param"), SESSION_MISTAKES, ids=lambda value: str(value)[:60]
)
def test_session_mistake_is_named(way: Way, session: dict[str, Any], code: str, param: str) -> None:
    """One bad setting refuses the whole update and is named, on either way."""
    text = msgspec.json.encode({"type": "session.update", "event_id": "u", "session": session}).decode()
    error = refusal(text, context(way))
    assert (code, param, "u") == (error.code, error.param, error.event_id)


@pytest.mark.parametrize(
    "key", ["audio", "output_modalities", "max_output_tokens", "truncation", "reasoning"]
)
def test_beta_refuses_nested_keys(key: str) -> None:
    """A beta client's session object is the flat one."""
    text = msgspec.json.encode({"type": "session.update", "session": {key: None}}).decode()
    error = refusal(text, context(Way.OPENAI, Dialect.BETA))
    assert ("unknown_parameter", f"session.{key}") == (error.code, error.param)


def test_noise_reduction_keeps_what_is_not_said() -> None:
    """An update that names only the type keeps the strength."""
    codec = context(Way.OPENAI, noise_reduction={"type": "near_field", "strength": "high"})
    event = {
        "type": "session.update",
        "session": {"type": "realtime", "audio": {"input": {"noise_reduction": {"type": "far_field"}}}},
    }
    kept = SessionPatch(noise_reduction={"type": "far_field", "strength": "high"})
    assert cmd.UpdateSession(kept) == command(event, codec)


def test_operator_s_aliases() -> None:
    """Names of voices and transcription models mean what the operator says; `*` catches the others."""
    settings = GatewaySettings(
        voice_aliases={"ash": "amber"},
        transcription_aliases={"*": "local"},
        semantic_vad=SemanticVad(high_ms=150),
    )
    event = {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "audio": {
                "input": {
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
                },
                "output": {"voice": "ash"},
            },
        },
    }
    detection = TurnDetection("semantic_vad", silence_duration_ms=150, eagerness="high")
    meant = SessionPatch(transcription=Transcription("local"), turn_detection=detection, voice="amber")
    assert cmd.UpdateSession(meant) == command(event, context(settings=settings))


def test_model_without_text_is_not_configured_for_it() -> None:
    """A session in text alone is refused where the model is known to give none."""
    text = '{"type":"session.update","session":{"type":"realtime","output_modalities":["text"]}}'
    error = refusal(text, context(profile=ModelProfile("loopback")))
    assert ("invalid_value", "session.output_modalities") == (error.code, error.param)
