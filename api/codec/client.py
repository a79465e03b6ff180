"""Client events: what a client may send, one Struct each, decoded strictly and in one pass.

A message is told apart by `type`. Unknown keys are skipped; a wrong type, a missing field, a number that is
not finite or base64 that is not exact is refused and names the parameter. msgspec decodes base64 by RFC 4648
with padding; that the bits behind the last byte are zero it does not check, and no byte depends on them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec.context import CodecContext
from api.codec.session import Tokens, WireSession
from api.errors import CodecError

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Duration: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
"""Milliseconds; clients that compute them send fractions."""
ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]


class ClientEvent(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of all client events."""

    event_id: str | None = None


# --- the session --------------------------------------------------------------------------------------------


class SessionUpdate(ClientEvent, tag="session.update", frozen=True, kw_only=True):
    """Merge settings; on the duplex way as a first message: open."""

    session: WireSession


class TranscriptionSessionUpdate(ClientEvent, tag="transcription_session.update", frozen=True, kw_only=True):
    """Beta's update of a transcription session."""


class SessionHeartbeat(ClientEvent, tag="session.heartbeat", frozen=True, kw_only=True):
    """The client is alive."""


class SessionEventAck(ClientEvent, tag="session.event_ack", frozen=True, kw_only=True):
    """The client has every event up to here. A hint: never journaled, never answered."""

    server_event_seq: Count


class SessionClose(ClientEvent, tag="session.close", frozen=True, kw_only=True):
    """End the session."""


class CloseSessionAlias(SessionClose, tag="close_session", frozen=True, kw_only=True):
    """Alias of `session.close`."""


class CloseAlias(SessionClose, tag="close", frozen=True, kw_only=True):
    """Alias of `session.close`."""


class SessionResume(ClientEvent, tag="session.resume", frozen=True, kw_only=True):
    """Continue a session; a first message only."""

    session_id: str
    resume_token: str
    last_received_server_event_seq: Count = 0


# --- input --------------------------------------------------------------------------------------------------


class AudioAppend(ClientEvent, tag="input_audio_buffer.append", frozen=True, kw_only=True, gc=False):
    """Audio; `format` and `sample_rate_hz` may repeat what the session is configured with, no more."""

    audio: bytes
    format: str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    video_frames: list[str] | UnsetType | None = UNSET


class AudioCommit(ClientEvent, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """Seal the buffer; both spellings of the create flag are in use."""

    response_create: bool | None = None
    create_response: bool | None = None
    is_speech: bool | None = None


class InputCommit(ClientEvent, tag="input.commit", frozen=True, kw_only=True):
    """The same, but without a create flag it asks for a response."""

    response_create: bool | None = None
    create_response: bool | None = None
    is_speech: bool | None = None


class AudioClear(ClientEvent, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """Drop what is not committed."""


class InputCancel(ClientEvent, tag="input.cancel", frozen=True, kw_only=True):
    """Drop pending input and what is being said."""


class TextAppend(ClientEvent, tag="input.text.append", frozen=True, kw_only=True):
    """Text into a live turn."""

    text: str


class TextAppendAlias(TextAppend, tag="input_text.append", frozen=True, kw_only=True):
    """Alias of `input.text.append`."""


class PushTextAlias(TextAppend, tag="push_text", frozen=True, kw_only=True):
    """Alias of `input.text.append`."""


# --- conversation -------------------------------------------------------------------------------------------


class WirePart(Struct, frozen=True):
    """A content part of an item."""

    type: str
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None


class WireItem(Struct, frozen=True):
    """An item as clients write it."""

    type: Literal["message", "function_call", "function_call_output"]
    id: ItemId | None = None
    role: Literal["user", "assistant", "system"] | None = None
    content: tuple[WirePart, ...] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class ItemCreate(ClientEvent, tag="conversation.item.create", frozen=True, kw_only=True):
    """Put an item into the history."""

    item: WireItem
    previous_item_id: str | None = None


class ItemRetrieve(ClientEvent, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    """Ask for an item."""

    item_id: str


class ItemDelete(ClientEvent, tag="conversation.item.delete", frozen=True, kw_only=True):
    """Remove an item."""

    item_id: str


class ItemTruncate(ClientEvent, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """Cut an assistant item to what was heard."""

    item_id: str
    content_index: Count
    audio_end_ms: Duration


# --- responses ----------------------------------------------------------------------------------------------


class WireResponse(Struct, frozen=True):
    """Overrides for one response."""

    instructions: str | UnsetType | None = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET
    max_response_output_tokens: Tokens | UnsetType | None = UNSET
    metadata: dict[str, str] | None = None
    conversation: str | UnsetType | None = UNSET
    input: list[msgspec.Raw] | UnsetType | None = UNSET
    output_modalities: tuple[str, ...] | UnsetType | None = UNSET


class ResponseCreate(ClientEvent, tag="response.create", frozen=True, kw_only=True):
    """Ask for a response."""

    response: WireResponse | None = None


class ResponseCancel(ClientEvent, tag="response.cancel", frozen=True, kw_only=True):
    """Stop a response."""

    response_id: str | None = None


class OutputClear(ClientEvent, tag="output_audio_buffer.clear", frozen=True, kw_only=True):
    """Drop queued output."""


class BargeIn(ClientEvent, tag="barge_in", frozen=True, kw_only=True):
    """Interrupt at once."""


class TurnSignal(ClientEvent, tag="turn.signal", frozen=True, kw_only=True):
    """The client's own turn detection speaks."""

    event: str


class TurnSignalAlias(TurnSignal, tag="signal_turn", frozen=True, kw_only=True):
    """Alias of `turn.signal`."""


class PlaybackAck(ClientEvent, tag="playback.ack", frozen=True, kw_only=True):
    """The client played so much; cumulative."""

    played_ms: Duration
    committed_ms: Duration | None = None
    response_id: str | None = None
    item_id: str | None = None


class PlaybackAckAlias(PlaybackAck, tag="audio.playback_ack", frozen=True, kw_only=True):
    """Alias of `playback.ack`."""


AnyClientEvent: TypeAlias = (
    AudioAppend
    | AudioClear
    | AudioCommit
    | BargeIn
    | CloseAlias
    | CloseSessionAlias
    | InputCancel
    | InputCommit
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | OutputClear
    | PlaybackAck
    | PlaybackAckAlias
    | PushTextAlias
    | ResponseCancel
    | ResponseCreate
    | SessionClose
    | SessionEventAck
    | SessionHeartbeat
    | SessionResume
    | SessionUpdate
    | TextAppend
    | TextAppendAlias
    | TranscriptionSessionUpdate
    | TurnSignal
    | TurnSignalAlias
)

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)


def parse(text: str, context: CodecContext) -> AnyClientEvent:
    """Read one text frame.

    Raises:
        CodecError: it is no client event; carries the client's `event_id` if that can be read.
    """
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _explain(text, str(error), context) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError("invalid_json", "The message is not valid JSON.") from error


# --- what was wrong -----------------------------------------------------------------------------------------


class _Peek(Struct):
    """As much of a refused message as the error needs. Anything at all may stand in its fields."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    event_id: msgspec.Raw = msgspec.Raw(b"null")


_peek = msgspec.json.Decoder(_Peek)
_string: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return _string.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _explain(text: str, reason: str, context: CodecContext) -> CodecError:
    """Name the parameter that msgspec stumbled over; its own words only steer, they are not passed on."""
    try:
        peek = _peek.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return CodecError(context.code("invalid_value", "bad_event"), "A message must be a JSON object.")
    event_type, event_id = _text(peek.type), _text(peek.event_id)
    place = _PLACE.search(reason)
    param = place[1] if place else ""
    missing = _MISSING.match(reason)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        code = context.code("missing_required_parameter", _duplex_code(event_type, param))
        return CodecError(code, f"Missing required parameter: '{param}'.", param=param, event_id=event_id)
    if param == "type" and event_type is not None:
        code = context.code("invalid_value", "unknown_event")
        return CodecError(
            code, "Invalid value: 'type' names no client event.", param=param, event_id=event_id
        )
    code = context.code("invalid_value", _duplex_code(event_type, param))
    wrong = "it must be standard base64" if param == "audio" else "wrong type or out of range"
    return CodecError(code, f"Invalid value: '{param}', {wrong}.", param=param or None, event_id=event_id)


def _duplex_code(event_type: str | None, param: str) -> str:
    """vLLM-Omni tells the kinds of bad events apart."""
    match event_type:
        case "input_audio_buffer.append" if param == "audio":
            return "bad_audio"
        case "session.event_ack":
            return "invalid_event_ack"
        case "session.update" if param.startswith("session."):
            return "invalid_session_config"
        case "session.resume":
            return "invalid_session_resume"
        case _:
            return "bad_event"
