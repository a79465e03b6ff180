"""
The codec: client events to commands, mistakes to codes, events to text frames.
"""

from __future__ import annotations

import base64
import struct
from typing import Any, get_args

import msgspec
import pytest

from api.codec import client
from api.codec.command import MAX_AUDIO_BYTES, to_command
from api.codec.context import CodecContext, default_config
from api.codec.server import Projection, error_text, resync_text
from api.errors import CodecError
from api.settings import SemanticVad
from session_core import commands as cmd
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import Dialect, TurnDetection, SessionPatch, Way
from session_core.items import Item, ItemType, Part, Role


def context(way: Way = Way.OPENAI, dialect: Dialect = Dialect.GA, **config: Any) -> CodecContext:
    """A connection that knows one model alias."""
    base = msgspec.structs.replace(default_config(way, "loopback"), **config)
    return CodecContext(
        way, dialect, base, lambda name, current: {"alias": "loopback"}.get(name, name), SemanticVad()
    )


def command(event: dict[str, Any], codec: CodecContext | None = None) -> cmd.AnyCommand:
    """What an event is journaled as."""
    codec = codec or context(Way.DUPLEX)
    return to_command(client.parse(msgspec.json.encode(event).decode(), codec), codec)


def refusal(text: str, codec: CodecContext) -> CodecError:
    """How a text frame is refused."""
    with pytest.raises(CodecError) as caught:
        to_command(client.parse(text, codec), codec)
    return caught.value


def b64(audio: bytes) -> str:
    """Audio as clients send it."""
    return base64.b64encode(audio).decode()


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
    ({"type": "response.cancel"}, cmd.CancelResponse()),
    ({"type": "response.cancel", "response_id": "r", "event_id": "e"}, cmd.CancelResponse("r", "e")),
    ({"type": "playback.ack", "played_ms": 10.7, "response_id": "r"}, cmd.AckPlayback(10, None, "r")),
    ({"type": "audio.playback_ack", "played_ms": 10, "committed_ms": 5}, cmd.AckPlayback(10, 5)),
    ({"type": "playback.ack", "played_ms": 1, "item_id": "item_resp_1"}, cmd.AckPlayback(1, None, "resp_1")),
]


@pytest.mark.parametrize(("event", "expected"), COMMANDS, ids=lambda value: str(value)[:60])
def test_event_becomes_command(event: dict[str, Any], expected: cmd.AnyCommand) -> None:
    """Every event that is served, in every spelling, becomes the one command that it means."""
    assert expected == command(event)


UNSERVED: list[tuple[dict[str, Any], str]] = [
    ({"type": "input.text.append", "text": "a"}, "native_text_append_unsupported"),
    ({"type": "input_text.append", "text": "a"}, "native_text_append_unsupported"),
    ({"type": "push_text", "text": "a"}, "native_text_append_unsupported"),
    ({"type": "conversation.item.retrieve", "item_id": "i"}, "unsupported_event"),
    ({"type": "conversation.item.delete", "item_id": "i"}, "unsupported_event"),
    (
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 1},
        "unsupported_event",
    ),
    ({"type": "output_audio_buffer.clear"}, "unsupported_event"),
    ({"type": "barge_in"}, "barge_in_unsupported"),
    ({"type": "turn.signal", "event": "user_started"}, "unsupported_event"),
    ({"type": "signal_turn", "event": "user_started"}, "unsupported_event"),
    ({"type": "transcription_session.update", "session": {}}, "unsupported_event"),
]


@pytest.mark.parametrize(("event", "code"), UNSERVED, ids=lambda value: str(value)[:40])
def test_unserved_event_is_refused_by_name(event: dict[str, Any], code: str) -> None:
    """An event of the contract that is not served yet gets a coded error with the client's event id."""
    error = refusal(msgspec.json.encode({**event, "event_id": "mine"}).decode(), context(Way.DUPLEX))
    assert (code, "mine") == (error.code, error.event_id)


def test_every_client_event_is_covered() -> None:
    """The tables above and `session.resume` name every event type that the decoder knows."""
    known = {kind.__struct_config__.tag for kind in get_args(client.AnyClientEvent)}
    tried_events = [event for event, _ in COMMANDS] + [event for event, _ in UNSERVED]
    tried = {event["type"] for event in tried_events} | {"session.resume"}
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
        *("missing_required_parameter", "bad_event", "item.output", None),
    ),
    (
        '{"type":"response.create","response":{"conversation":"none"}}',
        *("invalid_value", "unsupported_event", "response.conversation", None),
    ),
    (
        '{"type":"response.create","response":{"metadata":{"a":1}}}',
        *("invalid_value", "bad_event", "response.metadata[...]", None),
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


PCM24 = AudioFormat(Encoding.PCM16, 24_000)
PCM16 = AudioFormat(Encoding.PCM16, 16_000)
GA_SESSIONS: list[tuple[dict[str, Any], SessionPatch]] = [
    ({}, SessionPatch()),
    ({"instructions": None}, SessionPatch(instructions="")),
    ({"model": "alias"}, SessionPatch(model="loopback")),
    ({"tracing": "auto", "tools": [], "unknown": 1}, SessionPatch()),
    ({"max_output_tokens": "inf"}, SessionPatch(max_output_tokens=None)),
    ({"max_output_tokens": 5}, SessionPatch(max_output_tokens=5)),
    ({"audio": {"input": {"turn_detection": None}}}, SessionPatch(turn_detection=None)),
    (
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}}},
        SessionPatch(turn_detection=TurnDetection(silence_duration_ms=200)),
    ),
    (
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}},
        SessionPatch(turn_detection=TurnDetection(silence_duration_ms=1_000)),
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
    ({"modalities": ["text", "audio"], "turn_detection": None}, SessionPatch(turn_detection=None)),
    ({"extra_body": {"auto_response": True, "force_listen_count": 3}}, SessionPatch(auto_response=True)),
    (
        {"idle_timeout_s": 2.5, "temperature": 0.5, "voice": "v"},
        SessionPatch(idle_timeout_s=3, temperature=0.5, voice="v"),
    ),
    ({"max_response_output_tokens": 9}, SessionPatch(max_output_tokens=9)),
    ({"overlap_policy": "listen_only"}, SessionPatch()),
]


@pytest.mark.parametrize(("session", "patch"), FLAT_SESSIONS, ids=lambda value: str(value)[:60])
def test_flat_session(session: dict[str, Any], patch: SessionPatch) -> None:
    """DuplexClient's flat session keys set exactly what they name."""
    assert cmd.UpdateSession(patch) == command({"type": "session.update", "session": session})


SESSION_MISTAKES: list[tuple[Way, dict[str, Any], str, str]] = [
    (Way.OPENAI, {}, "missing_required_parameter", "session.type"),
    (Way.OPENAI, {"type": "transcription"}, "invalid_value", "session.type"),
    (Way.OPENAI, {"type": "realtime", "voice": "v"}, "unknown_parameter", "session.voice"),
    (Way.OPENAI, {"type": "realtime", "modalities": ["audio"]}, "unknown_parameter", "session.modalities"),
    (
        Way.OPENAI,
        {"type": "realtime", "output_modalities": ["text"]},
        "invalid_value",
        "session.output_modalities",
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
    (Way.DUPLEX, {"ref_audio": "x"}, "invalid_session_config", "session.ref_audio"),
    (Way.DUPLEX, {"modalities": ["text"]}, "invalid_session_config", "session.modalities"),
]


@pytest.mark.parametrize(
    ("way", "session", "code", "param"), SESSION_MISTAKES, ids=lambda value: str(value)[:60]
)
def test_session_mistake_is_named(way: Way, session: dict[str, Any], code: str, param: str) -> None:
    """One bad setting refuses the whole update and is named, on either way."""
    text = msgspec.json.encode({"type": "session.update", "event_id": "u", "session": session}).decode()
    error = refusal(text, context(way))
    assert (code, param, "u") == (error.code, error.param, error.event_id)


def test_beta_refuses_nested_keys() -> None:
    """A beta client's session object is the flat one."""
    text = '{"type":"session.update","session":{"audio":{}}}'
    error = refusal(text, context(Way.OPENAI, Dialect.BETA))
    assert ("unknown_parameter", "session.audio") == (error.code, error.param)


# --- encoding -----------------------------------------------------------------------------------------------

DELTA = wire.AudioDelta(
    event_id="event_3",
    server_event_seq=3,
    epoch=0,
    response_id="r",
    item_id="i",
    delta=b"\x00\xff\xfe\x01",
    format="pcm16",
    sample_rate_hz=24_000,
    metadata=wire.DeltaMetadata(0, False, 0),
)
ITEM = wire.ItemView(id="i", type="message", status="completed")


def shown(event: wire.ServerEvent, way: Way, dialect: Dialect = Dialect.GA) -> str | None:
    """Under which type an event is sent; None: not at all."""
    text = Projection(way, dialect).encode(event)
    return None if text is None else msgspec.json.decode(text)["type"]


def test_audio_is_exact_base64() -> None:
    """A delta's frame is the canonical event as JSON, its audio in standard base64."""
    text = Projection(Way.DUPLEX, Dialect.GA).encode(DELTA)
    assert text is not None
    event = msgspec.json.decode(text)
    assert DELTA.delta == base64.b64decode(event["delta"], validate=True)
    assert ("response.output_audio.delta", 3) == (event["type"], event["server_event_seq"])


@pytest.mark.parametrize(
    ("event", "openai", "beta", "duplex"),
    [
        (wire.ResponseSpeak(response_id="r"), None, None, "response.speak"),
        (wire.ResponseListen(), None, None, "response.listen"),
        (
            wire.ItemAdded(previous_item_id=None, item=ITEM),
            *("conversation.item.added", None, "conversation.item.added"),
        ),
        (
            wire.ItemCreated(previous_item_id=None, item=ITEM),
            *(None, "conversation.item.created", "conversation.item.created"),
        ),
        (DELTA, "response.output_audio.delta", "response.audio.delta", "response.output_audio.delta"),
        (
            wire.TranscriptDelta(
                response_id="r", item_id="i", delta="response.output_audio_transcript.delta"
            ),
            "response.output_audio_transcript.delta",
            "response.audio_transcript.delta",
            "response.output_audio_transcript.delta",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_dialect_hides_and_renames(
    event: wire.ServerEvent, openai: str | None, beta: str | None, duplex: str | None
) -> None:
    """Each way and dialect is shown the events it knows, under the names it knows."""
    assert openai == shown(event, Way.OPENAI)
    assert beta == shown(event, Way.OPENAI, Dialect.BETA)
    assert duplex == shown(event, Way.DUPLEX)


def test_discarded_delta_keeps_its_number() -> None:
    """A cancelled response's delta is emptied on the duplex way and left out on OpenAI's."""
    left = Projection(Way.DUPLEX, Dialect.GA).discarded(DELTA)
    assert left is not None
    assert (b"", True, 3) == (left.delta, left.metadata.discarded, left.server_event_seq)
    assert Projection(Way.OPENAI, Dialect.GA).discarded(DELTA) is None


def test_refusals_carry_no_number() -> None:
    """Errors that never were in the journal are nested as OpenAI's and have no `server_event_seq`."""
    event = msgspec.json.decode(error_text(CodecError("c", "m", param="p", event_id="e"), "event_x"))
    detail = {"type": "invalid_request_error", "code": "c", "message": "m", "param": "p", "event_id": "e"}
    assert {"type": "error", "event_id": "event_x", "error": detail} == event
    resync = {"type": "session.resync_required", "event_id": "event_y", "reason": "journal_gap"}
    assert resync == msgspec.json.decode(resync_text("journal_gap", "event_y"))
