"""The codec's way in: client events to commands, mistakes to codes."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgspec
import pytest

from api.codec import client
from api.codec.command import MAX_AUDIO_BYTES
from session_core import commands as cmd
from session_core.audio import AudioFormat, Encoding
from session_core.config import Dialect, Modality, ModelProfile, SessionPatch, Tool, Way
from session_core.items import Item, ItemType, Part, Role
from tests.api.spelling import b64, command, context, refusal

COMMANDS: list[tuple[dict[str, Any], cmd.AnyCommand]] = [
    (
        {"type": "session.update", "session": {"instructions": "hi"}},
        cmd.UpdateSession(SessionPatch(instructions="hi")),
    ),
    ({"type": "session.heartbeat", "event_id": "h"}, cmd.Heartbeat("h")),
    ({"type": "session.event_ack", "server_event_seq": 7}, cmd.ConfirmAttachment()),
    ({"type": "session.close"}, cmd.CloseSession()),
    ({"type": "close_session"}, cmd.CloseSession()),
    ({"type": "close", "event_id": "c"}, cmd.CloseSession("c")),
    ({"type": "input_audio_buffer.append", "audio": b64(b"abcd")}, cmd.AppendAudio(b"abcd")),
    (
        {
            "type": "input_audio_buffer.append",
            "audio": b64(b"ab"),
            "format": "pcm_s16le",
            "sample_rate_hz": 16_000,
        },
        cmd.AppendAudio(b"ab"),
    ),
    ({"type": "input_audio_buffer.commit", "event_id": "e"}, cmd.CommitInput(None, True, "e")),
    ({"type": "input_audio_buffer.commit", "create_response": False}, cmd.CommitInput(False)),
    ({"type": "input_audio_buffer.commit", "response_create": True, "final": True}, cmd.CommitInput(True)),
    ({"type": "input_audio_buffer.commit", "is_speech": False}, cmd.CommitInput(None, False)),
    ({"type": "input.commit"}, cmd.CommitInput(True)),
    ({"type": "input.commit", "create_response": False}, cmd.CommitInput(False)),
    ({"type": "input_audio_buffer.clear"}, cmd.ClearInput()),
    ({"type": "input.cancel"}, cmd.ClearInput(True)),
    (
        {
            "type": "conversation.item.create",
            "previous_item_id": "root",
            "item": {
                "type": "message",
                "id": "i",
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_audio", "transcript": "b"}],
            },
        },
        cmd.CreateItem(
            Item("i", role=Role.USER, parts=(Part("input_text", "a"), Part("input_audio", "b"))), "root"
        ),
    ),
    (
        {
            "type": "conversation.item.create",
            "item": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]},
        },
        cmd.CreateItem(Item("", role=Role.ASSISTANT, parts=(Part("output_text", "a"),))),
    ),
    (
        {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", "call_id": "c"}},
        cmd.CreateItem(Item("", ItemType.FUNCTION_CALL, call_id="c", name="f", arguments="")),
    ),
    (
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "c", "output": ""},
        },
        cmd.CreateItem(Item("", ItemType.FUNCTION_CALL_OUTPUT, call_id="c", output="")),
    ),
    ({"type": "response.create"}, cmd.CreateResponse()),
    (
        {
            "type": "response.create",
            "response": {"instructions": "x", "max_output_tokens": "inf", "metadata": {"a": "b"}},
        },
        cmd.CreateResponse(cmd.ResponseOptions("x", max_output_tokens=None, metadata={"a": "b"})),
    ),
    ({"type": "response.create", "response": {"conversation": "auto"}}, cmd.CreateResponse()),
    (
        {"type": "response.create", "response": {"conversation": "none", "input": []}},
        cmd.CreateResponse(cmd.ResponseOptions(outside=True, input=())),
    ),
    (
        {
            "type": "response.create",
            "response": {
                "input": [
                    {"type": "item_reference", "id": "i"},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "function_call_output", "call_id": "c", "output": "o"},
                ]
            },
        },
        cmd.CreateResponse(
            cmd.ResponseOptions(
                input=(
                    Item("i", ItemType.REFERENCE),
                    Item("", role=Role.USER, parts=(Part("input_text", "a"),)),
                    Item("", ItemType.FUNCTION_CALL_OUTPUT, call_id="c", output="o"),
                )
            )
        ),
    ),
    (
        {"type": "response.create", "response": {"output_modalities": ["text"], "temperature": 0.5}},
        cmd.CreateResponse(cmd.ResponseOptions(output_modality=Modality.TEXT, temperature=0.5)),
    ),
    (
        {"type": "response.create", "response": {"modalities": ["text", "audio"], "voice": "default"}},
        cmd.CreateResponse(cmd.ResponseOptions(output_modality=Modality.AUDIO)),
    ),
    (
        {
            "type": "response.create",
            "response": {
                "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"a": 1}}],
                "tool_choice": {"type": "function", "name": "f"},
                "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}}},
                "parallel_tool_calls": True,
            },
        },
        cmd.CreateResponse(
            cmd.ResponseOptions(
                tools=(Tool("f", "d", {"a": 1}),), tool_choice={"type": "function", "name": "f"}
            )
        ),
    ),
    (
        {"type": "response.create", "response": {"tools": [], "tool_choice": "none"}},
        cmd.CreateResponse(cmd.ResponseOptions(tools=(), tool_choice="none")),
    ),
    ({"type": "response.cancel"}, cmd.CancelResponse()),
    ({"type": "response.cancel", "response_id": "r", "event_id": "e"}, cmd.CancelResponse("r", "e")),
    ({"type": "input.text.append", "text": "a", "event_id": "e"}, cmd.AppendText("a", "e")),
    ({"type": "input_text.append", "text": "a"}, cmd.AppendText("a")),
    ({"type": "push_text", "text": "a"}, cmd.AppendText("a")),
    ({"type": "conversation.item.retrieve", "item_id": "i", "event_id": "e"}, cmd.RetrieveItem("i", "e")),
    ({"type": "conversation.item.delete", "item_id": "i", "event_id": "e"}, cmd.DeleteItem("i", "e")),
    (
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 9.5},
        cmd.TruncateItem("i", 0, 9),
    ),
    ({"type": "output_audio_buffer.clear", "event_id": "e"}, cmd.ClearOutput("e")),
    ({"type": "barge_in", "event_id": "e"}, cmd.BargeIn("e")),
    ({"type": "turn.signal", "event": "user_started", "event_id": "e"}, cmd.SignalTurn("user_started", "e")),
    ({"type": "signal_turn", "event": "user_stopped"}, cmd.SignalTurn("user_stopped")),
    ({"type": "turn.signal", "event": "barge_in", "event_id": "e"}, cmd.BargeIn("e")),
    ({"type": "turn.signal", "event": "input.cancel", "event_id": "e"}, cmd.ClearInput(True, "e")),
    ({"type": "turn.signal", "event": "input.commit"}, cmd.CommitInput(True)),
    ({"type": "turn.signal", "event": "input_audio_buffer.commit"}, cmd.CommitInput()),
    ({"type": "turn.signal", "event": "input_audio_buffer.clear"}, cmd.ClearInput()),
    ({"type": "turn.signal", "event": "output_audio_buffer.clear"}, cmd.ClearOutput()),
    ({"type": "turn.signal", "event": "response.cancel", "event_id": "e"}, cmd.CancelResponse(None, "e")),
    ({"type": "turn.signal", "event": "response.create"}, cmd.CreateResponse()),
    (
        {"type": "transcription_session.update", "session": {"input_audio_transcription": None}},
        cmd.UpdateSession(SessionPatch(transcription=None)),
    ),
    ({"type": "playback.ack", "played_ms": 10.7, "response_id": "r"}, cmd.AckPlayback(10, None, "r")),
    ({"type": "audio.playback_ack", "played_ms": 10, "committed_ms": 5}, cmd.AckPlayback(10, 5)),
    ({"type": "playback.ack", "played_ms": 10, "truncate": True}, cmd.AckPlayback(10, truncate=True)),
    ({"type": "playback.ack", "played_ms": 1, "item_id": "item_resp_1"}, cmd.AckPlayback(1, None, "resp_1")),
]


@pytest.mark.parametrize(("event", "expected"), COMMANDS, ids=lambda value: str(value)[:60])
def test_event_becomes_command(event: dict[str, Any], expected: cmd.AnyCommand) -> None:
    """Every event that is served, in every spelling, becomes the one command that it means."""
    assert expected == command(event)


def test_every_client_event_is_covered() -> None:
    """The table above and `session.resume` name every event type that the decoder knows."""
    known = {kind.__struct_config__.tag for kind in get_args(client.AnyClientEvent)}
    tried = {event["type"] for event, _ in COMMANDS} | {"session.resume"}
    assert known == tried


A = '{"type":"input_audio_buffer.append","event_id":"e","audio":%s}'
MISTAKES: list[tuple[str, str, str, str | None, str | None]] = [
    ("", "invalid_json", "invalid_json", None, None),
    ("{", "invalid_json", "invalid_json", None, None),
    ('{"type":"session.close","event_id":"\\ud800"}', "invalid_json", "invalid_json", None, None),
    ("[" * 100_000, "invalid_value", "bad_event", None, None),
    ('{"type":"session.close","x":' + "[" * 100_000, "invalid_json", "invalid_json", None, None),
    ("[]", "invalid_value", "bad_event", None, None),
    ("3", "invalid_value", "bad_event", None, None),
    ("{}", "missing_required_parameter", "bad_event", "type", None),
    ('{"type":3,"event_id":"e"}', "invalid_value", "bad_event", "type", "e"),
    ('{"type":"nonsense","event_id":"e"}', "invalid_value", "unknown_event", "type", "e"),
    ('{"type":"nonsense","event_id":3}', "invalid_value", "unknown_event", "type", None),
    ('{"type":"response.cancel","event_id":3}', "invalid_value", "bad_event", "event_id", None),
    (A % '"!!!"', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AAA"', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AA A"', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AAAA\\n"', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AA-_"', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AAAA===="', "invalid_value", "bad_audio", "audio", "e"),
    (A % '"AAAA"', "invalid_value", "bad_audio", "audio", "e"),  # three bytes
    (A % '""', "invalid_value", "bad_audio", "audio", "e"),
    (A % "7", "invalid_value", "bad_audio", "audio", "e"),
    (A % "null", "invalid_value", "bad_audio", "audio", "e"),
    ('{"type":"input_audio_buffer.append"}', "missing_required_parameter", "bad_audio", "audio", None),
    (
        '{"type":"input_audio_buffer.append","audio":"AAA=","format":"g711_ulaw"}',
        *("invalid_value", "unsupported_audio_format", "format", None),
    ),
    (
        '{"type":"input_audio_buffer.append","audio":"AAA=","sample_rate_hz":8000}',
        *("invalid_value", "unsupported_audio_format", "sample_rate_hz", None),
    ),
    (
        '{"type":"input_audio_buffer.append","audio":"AAA=","video_frames":["x"]}',
        *("invalid_value", "invalid_video_frames", "video_frames", None),
    ),
    ('{"type":"session.update"}', "missing_required_parameter", "bad_event", "session", None),
    (
        '{"type":"session.event_ack"}',
        "missing_required_parameter",
        "invalid_event_ack",
        "server_event_seq",
        None,
    ),
    (
        '{"type":"session.event_ack","server_event_seq":-1}',
        *("invalid_value", "invalid_event_ack", "server_event_seq", None),
    ),
    (
        '{"type":"session.resume","session_id":"s"}',
        *("missing_required_parameter", "invalid_session_resume", "resume_token", None),
    ),
    (
        '{"type":"session.resume","session_id":"s","resume_token":"t"}',
        "invalid_value",
        "bad_event",
        "type",
        None,
    ),
    ('{"type":"playback.ack","played_ms":-1}', "invalid_value", "bad_event", "played_ms", None),
    ('{"type":"playback.ack","played_ms":1e999}', "invalid_value", "bad_event", "played_ms", None),
    ('{"type":"playback.ack","played_ms":NaN}', "invalid_json", "invalid_json", None, None),
    (
        '{"type":"conversation.item.truncate","item_id":"i","content_index":0}',
        *("missing_required_parameter", "bad_event", "audio_end_ms", None),
    ),
    ('{"type":"conversation.item.create"}', "missing_required_parameter", "bad_event", "item", None),
    (
        '{"type":"conversation.item.create","item":{"type":"message"}}',
        *("missing_required_parameter", "bad_event", "item.role", None),
    ),
    (
        '{"type":"conversation.item.create","item":{"type":"spell"}}',
        *("invalid_value", "bad_event", "item.type", None),
    ),
    (
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"image"}]}}'
        ),
        *("unsupported_content_type", "invalid_input_modality", "item.content[0].type", None),
    ),
    (
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"text"}]}}'
        ),
        *("missing_required_parameter", "bad_event", "item.content[0].text", None),
    ),
    (
        '{"type":"conversation.item.create","item":{"type":"function_call_output","call_id":"c"}}',
        *("missing_required_parameter", "invalid_function_call_output", "item.output", None),
    ),
    (
        '{"type":"conversation.item.truncate","item_id":"i","audio_end_ms":1}',
        *("missing_required_parameter", "bad_event", "content_index", None),
    ),
    (
        '{"type":"conversation.item.truncate","content_index":0,"audio_end_ms":1}',
        *("missing_required_parameter", "missing_item_id", "item_id", None),
    ),
    (
        '{"type":"conversation.item.retrieve"}',
        *("missing_required_parameter", "missing_item_id", "item_id", None),
    ),
    (
        '{"type":"conversation.item.delete","item_id":7,"event_id":"e"}',
        *("invalid_value", "missing_item_id", "item_id", "e"),
    ),
    (
        '{"type":"conversation.item.create","item":{"type":"item_reference","id":"i"}}',
        *("invalid_value", "bad_event", "item.type", None),
    ),
    (
        '{"type":"conversation.item.create","item":{"type":"function_call"}}',
        *("missing_required_parameter", "bad_event", "item.name", None),
    ),
    (
        '{"type":"conversation.item.create","item":{"type":"function_call_output","output":""}}',
        *("missing_required_parameter", "invalid_function_call_output", "item.call_id", None),
    ),
    (
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"input_audio","audio":"AAAA"}]}}'
        ),
        *("unsupported_content_type", "invalid_input_modality", "item.content[0].type", None),
    ),
    (
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"input_image"}]}}'
        ),
        *("unsupported_content_type", "invalid_input_modality", "item.content[0].type", None),
    ),
    (
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"text","text":"%s"}]}}' % ("x" * (513 << 10))
        ),
        *("invalid_value", "event_too_large", "item", None),
    ),
    ('{"type":"turn.signal"}', "missing_required_parameter", "bad_event", "event", None),
    ('{"type":"input.text.append","text":""}', "invalid_value", "bad_event", "text", None),
    (
        '{"type":"response.create","response":{"conversation":"elsewhere"}}',
        *("invalid_value", "bad_event", "response.conversation", None),
    ),
    (
        '{"type":"response.create","response":{"input":[{"type":"mcp_call"}]}}',
        *("invalid_value", "bad_event", "response.input[0].type", None),
    ),
    (
        '{"type":"response.create","response":{"output_modalities":["video"]}}',
        *("invalid_value", "invalid_session_config", "response.output_modalities", None),
    ),
    (
        '{"type":"response.create","response":{"tools":[{"type":"mcp","server_label":"s"}]}}',
        *("unsupported_tool_type", "unsupported_tool_type", "response.tools[0].type", None),
    ),
    (
        '{"type":"response.create","response":{"audio":{"output":{"voice":"other"}}}}',
        *("invalid_value", "unsupported_native_response_options", "response.audio.output.voice", None),
    ),
    (
        '{"type":"response.create","response":{"audio":{"output":{"format":{"type":"audio/pcmu"}}}}}',
        *("invalid_value", "unsupported_native_response_options", "response.audio.output.format", None),
    ),
    (
        '{"type":"response.create","response":{"metadata":{"a":1}}}',
        *("invalid_value", "bad_event", "response.metadata[...]", None),
    ),
    (
        '{"type":"response.create","response":{"metadata":{"a":"%s"}}}' % ("x" * 513),
        *("invalid_value", "bad_event", "response.metadata[...]", None),
    ),
    (
        '{"type":"response.create","response":{"instructions":"%s"}}' % ("x" * (513 << 10)),
        *("invalid_value", "event_too_large", "response", None),
    ),
    (
        '{"type":"input_audio_buffer.append","audio":"AAA=","video_frames":7}',
        *("invalid_value", "invalid_video_frames", "video_frames", None),
    ),
    (
        '{"type":"session.close","event_id":"%s"}' % ("x" * 513),
        *("invalid_value", "bad_event", "event_id", None),
    ),
]


@pytest.mark.parametrize(
    ("text", "openai", "duplex", "param", "event_id"), MISTAKES, ids=lambda value: str(value)[:50]
)
def test_mistake_is_named(
    text: str, openai: str, duplex: str, param: str | None, event_id: str | None
) -> None:
    """What makes no command is refused with the way's code, the parameter and the client's event id."""
    for way, code in ((Way.OPENAI, openai), (Way.DUPLEX, duplex)):
        error = refusal(text, context(way))
        assert (code, param, event_id) == (error.code, error.param, error.event_id)


def test_samples_that_are_not_finite_are_refused() -> None:
    """Floats that are no numbers never reach a model."""
    codec = context(Way.DUPLEX, input_format=AudioFormat(Encoding.PCM_F32LE, 16_000))
    fine = struct.pack("<2f", 0.5, -1)
    assert cmd.AppendAudio(fine) == command({"type": "input_audio_buffer.append", "audio": b64(fine)}, codec)
    for bad in (float("nan"), float("inf")):
        text = A % f'"{b64(struct.pack("<2f", 0.5, bad))}"'
        assert "bad_audio" == refusal(text, codec).code


def test_append_has_a_limit() -> None:
    """15 MiB of audio in one append are taken, one sample more is not."""
    audio = bytes(MAX_AUDIO_BYTES)
    assert cmd.AppendAudio(audio) == command({"type": "input_audio_buffer.append", "audio": b64(audio)})
    error = refusal(A % f'"{b64(audio + b"12")}"', context(Way.DUPLEX))
    assert ("event_too_large", "audio") == (error.code, error.param)


@pytest.mark.parametrize(
    ("dialect", "key", "value"),
    [
        (Dialect.GA, "modalities", ["audio"]),
        (Dialect.GA, "voice", "v"),
        (Dialect.GA, "output_audio_format", "pcm16"),
        (Dialect.GA, "max_response_output_tokens", 1),
        (Dialect.BETA, "output_modalities", ["audio"]),
        (Dialect.BETA, "audio", {}),
    ],
)
def test_response_of_another_dialect_is_refused(dialect: Dialect, key: str, value: Any) -> None:
    """An override in the other dialect's spelling is refused by name."""
    text = msgspec.json.encode({"type": "response.create", "response": {key: value}}).decode()
    error = refusal(text, context(Way.OPENAI, dialect))
    assert ("unknown_parameter", f"response.{key}") == (error.code, error.param)


def test_transcription_session_is_beta_s() -> None:
    """GA clients have no `transcription_session.update`; beta clients have."""
    event = {"type": "transcription_session.update", "session": {"input_audio_transcription": None}}
    error = refusal(msgspec.json.encode(event).decode(), context(Way.OPENAI))
    assert ("invalid_value", "type") == (error.code, error.param)
    beta = command(event, context(Way.OPENAI, Dialect.BETA))
    assert cmd.UpdateSession(SessionPatch(transcription=None)) == beta


def test_model_without_text_is_not_asked_for_it() -> None:
    """A response in text alone is refused where the model is known to give none."""
    text = '{"type":"response.create","response":{"output_modalities":["text"]}}'
    for way, code in ((Way.OPENAI, "invalid_value"), (Way.DUPLEX, "text_only_turn_unsupported")):
        error = refusal(text, context(way, profile=ModelProfile("loopback")))
        assert (code, "response.output_modalities") == (error.code, error.param)
