"""The codec's way out: every canonical event in GA, beta and duplex clothes."""

from __future__ import annotations

import base64
import inspect
from typing import Any

import msgspec
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from api.codec.server import Projection, error_text, resync_text
from api.errors import CodecError, FrameTooLarge
from session_core import wire
from session_core.config import Dialect, Way

_STRICT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

_FORMAT = wire.AudioFormatView("audio/pcm", 24_000)
_DETECTION = wire.TurnDetectionView(
    type="semantic_vad", eagerness="low", create_response=True, interrupt_response=True
)
SESSION = wire.SessionView(
    id="sess_1",
    model="m",
    instructions="i",
    audio=wire.AudioView(
        wire.AudioInputView(
            _FORMAT, 24_000, _DETECTION, wire.TranscriptionView("t"), {"type": "near_field", "strength": 1}
        ),
        wire.AudioOutputView(_FORMAT, 24_000, "v", 1.0),
    ),
    tools=(wire.ToolView(name="f", description="d", parameters={"type": "object"}),),
    tool_choice={"type": "function", "name": "f"},
    truncation={"type": "retention_ratio", "retention_ratio": 0.5},
    tracing={"workflow_name": "w"},
    expires_at=1,
)
MESSAGE = wire.ItemView(
    id="i",
    type="message",
    status="completed",
    role="assistant",
    content=(
        wire.ContentView(type="output_audio", transcript="t"),
        wire.ContentView(type="output_text", text="t"),
    ),
)
USER = wire.ItemView(
    id="u",
    type="message",
    status="completed",
    role="user",
    content=(
        wire.ContentView(type="input_audio", transcript=None),
        wire.ContentView(type="input_text", text="t"),
    ),
)
CALL = wire.ItemView(id="f", type="function_call", status="completed", call_id="c", name="f", arguments="{}")
RESPONSE = wire.ResponseView(
    id="r",
    status="cancelled",
    status_details=wire.StatusDetails(type="cancelled", reason="turn_detected", cause="speech"),
    output=(MESSAGE, CALL),
    conversation_id="conv_1",
    metadata={"k": "v"},
    usage=wire.Usage(3, 1, 2),
)
PLACE: dict[str, Any] = {"response_id": "r", "item_id": "i"}
DELTA = wire.AudioDelta(
    event_id="event_3",
    server_event_seq=3,
    epoch=0,
    response_id="r",
    item_id="i",
    delta=b"\x00\xff\xfe\x01",
    format="pcm16",
    sample_rate_hz=24_000,
    metadata=wire.DeltaMetadata(0, False, 0, (wire.AudioTextMark(0, 1),)),
)
_ERROR = wire.ErrorDetail(code="c", message="m")
_PLAYBACK = wire.PlaybackView(1, 1, 1, 1)
_TRANSCRIPTION = "conversation.item.input_audio_transcription"

# Each event with the name under which beta clients get it; None: they do not. GA and duplex clients get the
# event's own name, but for tier 3 and `conversation.item.created`, which GA clients do not get.
EVENTS: list[tuple[wire.ServerEvent, str | None]] = [
    (wire.SessionUpdated(session=SESSION), "session.updated"),
    (
        wire.HeartbeatAck(
            session_id="s",
            input_audio_received_ms=1,
            input_audio_received_bytes=1,
            last_client_event_id=None,
        ),
        None,
    ),
    (wire.SessionClosed(session_id="s", reason="closed"), None),
    (wire.SessionExpired(session_id="s", reason="idle_timeout"), None),
    (wire.SessionReplaced(session_id="s", attachment_generation=2), None),
    (wire.ResyncRequired(reason="journal_gap"), None),
    (wire.TurnEvent(session_id="s", event="e", turn_state="listening"), None),
    (wire.OverlapDecision(session_id="s", policy="p", action="listen", reason="r"), None),
    (wire.ErrorEvent(error=_ERROR), "error"),
    (wire.ResumeRefused(error=_ERROR), "error"),
    (
        wire.InputSpeechStarted(audio_start_ms=1, item_id="i"),
        "input_audio_buffer.speech_started",
    ),
    (wire.InputSpeechStopped(audio_end_ms=1, item_id="i"), "input_audio_buffer.speech_stopped"),
    (
        wire.InputTimeoutTriggered(item_id="i", audio_start_ms=1, audio_end_ms=2),
        "input_audio_buffer.timeout_triggered",
    ),
    (wire.InputCommitted(item_id="i", previous_item_id=None), "input_audio_buffer.committed"),
    (wire.InputCleared(), "input_audio_buffer.cleared"),
    (wire.ItemAdded(previous_item_id=None, item=USER), None),
    (wire.ItemCreated(previous_item_id=None, item=MESSAGE), "conversation.item.created"),
    (wire.ItemDone(previous_item_id="u", item=MESSAGE), None),
    (wire.ItemRetrieved(item=CALL), "conversation.item.retrieved"),
    (wire.ItemDeleted(item_id="i"), "conversation.item.deleted"),
    (wire.ItemTruncated(item_id="i", content_index=0, audio_end_ms=1), "conversation.item.truncated"),
    (wire.TranscriptionDelta(item_id="i", delta="d"), f"{_TRANSCRIPTION}.delta"),
    (
        wire.TranscriptionCompleted(item_id="i", transcript="t", usage=wire.DurationUsage(seconds=1.5)),
        f"{_TRANSCRIPTION}.completed",
    ),
    (
        wire.TranscriptionFailed(item_id="i", error=wire.TranscriptionError(message="m")),
        f"{_TRANSCRIPTION}.failed",
    ),
    (wire.ResponseCreated(response_id="r", response=RESPONSE), "response.created"),
    (wire.ResponseDone(response_id="r", response=RESPONSE), "response.done"),
    (wire.OutputItemAdded(response_id="r", item=MESSAGE), "response.output_item.added"),
    (wire.OutputItemDone(response_id="r", item=CALL), "response.output_item.done"),
    (
        wire.ContentPartAdded(**PLACE, part=wire.PartView(type="audio", transcript="")),
        "response.content_part.added",
    ),
    (wire.ContentPartDone(**PLACE, part=wire.PartView(type="text", text="t")), "response.content_part.done"),
    (wire.ResponseSpeak(response_id="r"), None),
    (wire.ResponseListen(), None),
    (DELTA, "response.audio.delta"),
    (
        wire.TranscriptDelta(**PLACE, delta="response.output_audio_transcript.delta"),
        "response.audio_transcript.delta",
    ),
    (wire.AudioDone(**PLACE), "response.audio.done"),
    (wire.TranscriptDone(**PLACE, transcript="t"), "response.audio_transcript.done"),
    (wire.TextDelta(**PLACE, delta="d"), "response.text.delta"),
    (wire.TextDone(**PLACE, text="t"), "response.text.done"),
    (
        wire.CallArgumentsDelta(**PLACE, output_index=1, call_id="c", delta="{}"),
        "response.function_call_arguments.delta",
    ),
    (
        wire.CallArgumentsDone(**PLACE, output_index=1, call_id="c", name="f", arguments="{}"),
        "response.function_call_arguments.done",
    ),
    (wire.MalformedCall(response_id="r", call_id="c", name="f", arguments="{"), None),
    (
        wire.RateLimitsUpdated(
            rate_limits=(wire.RateLimitView(name="requests", limit=2, remaining=1, reset_seconds=0.5),)
        ),
        "rate_limits.updated",
    ),
    (wire.OutputAudioCleared(response_id="r"), "output_audio_buffer.cleared"),
    (wire.PlaybackAcknowledged(**PLACE, playback=_PLAYBACK), None),
]


def sent(event: wire.ServerEvent, way: Way, dialect: Dialect = Dialect.GA) -> dict[str, Any] | None:
    """What a client is sent of an event."""
    text = Projection(way, dialect).encode(event)
    if text is None:
        return None
    decoded: dict[str, Any] = msgspec.json.decode(text)
    return decoded


@pytest.mark.parametrize(("event", "beta"), EVENTS, ids=lambda value: type(value).__name__)
def test_event_in_each_dialect(event: wire.ServerEvent, beta: str | None) -> None:
    """A client is sent the events it knows under the names it knows; GA's are exactly OpenAI's types."""
    own: str = msgspec.json.decode(msgspec.json.encode(event))["type"]
    duplex, ga = sent(event, Way.DUPLEX), sent(event, Way.OPENAI)
    assert own == (duplex or {}).get("type")
    if event.tier == 3 or isinstance(event, wire.ItemCreated):
        assert ga is None
    else:
        assert ga is not None
        assert own == ga["type"]
        _STRICT.validate_python(ga, strict=True)
    flat = sent(event, Way.OPENAI, Dialect.BETA)
    assert beta == (flat["type"] if flat is not None else None)


def test_every_event_is_covered() -> None:
    """The table names every event of the vocabulary, beside the two that open a connection."""
    known = {
        kind
        for _, kind in inspect.getmembers(wire, inspect.isclass)
        if issubclass(kind, wire.ServerEvent) and kind not in (wire.ServerEvent, wire.AddressedEvent)
    }
    assert known == {type(event) for event, _ in EVENTS} | {wire.SessionCreated, wire.SessionResumed}


def test_session_created_in_each_dialect() -> None:
    """The first event carries the token everywhere; beta's session is flat."""
    event = wire.SessionCreated(event_id="e", session=SESSION)
    ga = msgspec.json.decode(Projection(Way.OPENAI, Dialect.GA).welcome(event, "token"))
    _STRICT.validate_python(ga, strict=True)
    beta = msgspec.json.decode(Projection(Way.OPENAI, Dialect.BETA).welcome(event, "token"))
    assert ("token", "token") == (ga["resume_token"], beta["resume_token"])
    session = beta["session"]
    assert (["audio", "text"], "pcm16", {"model": "t"}, {"type": "near_field", "strength": 1}, "f", 1.0) == (
        session["modalities"],
        session["input_audio_format"],
        session["input_audio_transcription"],
        session["input_audio_noise_reduction"],
        session["tools"][0]["name"],
        session["speed"],
    )


def test_beta_shapes() -> None:
    """Beta's responses say `modalities`, and their items have parts `audio` and `text`."""
    event = sent(wire.ResponseDone(response_id="r", response=RESPONSE), Way.OPENAI, Dialect.BETA)
    assert event is not None
    response = event["response"]
    assert ["audio", "text"] == response["modalities"]
    assert "output_modalities" not in response
    assert ["audio", "text"] == [part["type"] for part in response["output"][0]["content"]]
    text = msgspec.structs.replace(RESPONSE, output_modalities=("text",))
    event = sent(wire.ResponseCreated(response_id="r", response=text), Way.OPENAI, Dialect.BETA)
    assert event is not None
    assert ["text"] == event["response"]["modalities"]


def test_frame_has_a_limit() -> None:
    """What would be larger than clients take is not encoded; events are never split."""
    projection = Projection(Way.DUPLEX, Dialect.GA, 1_000)
    assert projection.encode(DELTA) is not None
    with pytest.raises(FrameTooLarge) as caught:
        projection.encode(msgspec.structs.replace(DELTA, delta=bytes(1_000)))
    assert "AudioDelta" == caught.value.event
    assert caught.value.size_bytes > 1_000


def test_audio_is_exact_base64() -> None:
    """A delta's frame is the canonical event as JSON, its audio in standard base64."""
    text = Projection(Way.DUPLEX, Dialect.GA).encode(DELTA)
    assert text is not None
    event = msgspec.json.decode(text)
    assert DELTA.delta == base64.b64decode(event["delta"], validate=True)
    assert ("response.output_audio.delta", 3) == (event["type"], event["server_event_seq"])


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
