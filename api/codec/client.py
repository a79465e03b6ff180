"""
Client events: what a client may send, one Struct each, decoded strictly and in one pass.

A message is told apart by `type`. Unknown keys are skipped; a wrong type, a missing field, a number that is
not finite or base64 that is not exact is refused and names the parameter. msgspec decodes base64 by RFC 4648
with padding; that the bits behind the last byte are zero it does not check, and no byte depends on them.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec.context import CodecContext
from api.codec.items import WireItem
from api.codec.mistakes import explain
from api.codec.response import WireResponse
from api.codec.session import WireSession
from api.errors import CodecError

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Duration: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
"""Milliseconds; clients that compute them send fractions."""
Id: TypeAlias = Annotated[str, Meta(max_length=512)]
"""An id that the client names; errors repeat it, so it has a limit."""


class ClientEvent(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of all client events."""

    event_id: Id | None = None


# --- the session --------------------------------------------------------------------------------------------


class SessionUpdate(ClientEvent, tag="session.update", frozen=True, kw_only=True):
    """Merge settings; on the duplex way as a first message: open."""

    session: WireSession


class TranscriptionSessionUpdate(ClientEvent, tag="transcription_session.update", frozen=True, kw_only=True):
    """Beta's update of what concerns the input alone."""

    session: WireSession


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

    session_id: Id
    resume_token: Id
    last_received_server_event_seq: Count = 0


# --- input --------------------------------------------------------------------------------------------------


class AudioAppend(ClientEvent, tag="input_audio_buffer.append", frozen=True, kw_only=True, gc=False):
    """Audio; `format` and `sample_rate_hz` may repeat what the session is configured with, no more."""

    audio: bytes
    format: str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    video_frames: list[str] | UnsetType | None = UNSET


class AudioCommit(ClientEvent, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """Seal the buffer; both spellings of the create flag are in use. Every commit here is `final`."""

    response_create: bool | None = None
    create_response: bool | None = None
    is_speech: bool | None = None
    final: bool | None = None


class InputCommit(ClientEvent, tag="input.commit", frozen=True, kw_only=True):
    """The same, but without a create flag it asks for a response."""

    response_create: bool | None = None
    create_response: bool | None = None
    is_speech: bool | None = None
    final: bool | None = None


class AudioClear(ClientEvent, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """Drop what is not committed."""


class InputCancel(ClientEvent, tag="input.cancel", frozen=True, kw_only=True):
    """Drop pending input and what is being said."""


class TextAppend(ClientEvent, tag="input.text.append", frozen=True, kw_only=True):
    """Text into a live turn."""

    text: Annotated[str, Meta(min_length=1, max_length=65_536)]


class TextAppendAlias(TextAppend, tag="input_text.append", frozen=True, kw_only=True):
    """Alias of `input.text.append`."""


class PushTextAlias(TextAppend, tag="push_text", frozen=True, kw_only=True):
    """Alias of `input.text.append`."""


# --- conversation -------------------------------------------------------------------------------------------


class ItemCreate(ClientEvent, tag="conversation.item.create", frozen=True, kw_only=True):
    """Put an item into the history."""

    item: WireItem
    previous_item_id: Id | None = None


class ItemRetrieve(ClientEvent, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    """Ask for an item."""

    item_id: Id


class ItemDelete(ClientEvent, tag="conversation.item.delete", frozen=True, kw_only=True):
    """Remove an item."""

    item_id: Id


class ItemTruncate(ClientEvent, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """Cut an assistant item to what was heard."""

    item_id: Id
    content_index: Count
    audio_end_ms: Duration


# --- responses ----------------------------------------------------------------------------------------------


class ResponseCreate(ClientEvent, tag="response.create", frozen=True, kw_only=True):
    """Ask for a response."""

    response: WireResponse | None = None


class ResponseCancel(ClientEvent, tag="response.cancel", frozen=True, kw_only=True):
    """Stop a response."""

    response_id: Id | None = None


class OutputClear(ClientEvent, tag="output_audio_buffer.clear", frozen=True, kw_only=True):
    """Drop queued output."""


class BargeIn(ClientEvent, tag="barge_in", frozen=True, kw_only=True):
    """Interrupt at once."""


class TurnSignal(ClientEvent, tag="turn.signal", frozen=True, kw_only=True):
    """The client's own turn detection speaks; some signals are other commands under another name."""

    event: Annotated[str, Meta(min_length=1, max_length=128)]


class TurnSignalAlias(TurnSignal, tag="signal_turn", frozen=True, kw_only=True):
    """Alias of `turn.signal`."""


class PlaybackAck(ClientEvent, tag="playback.ack", frozen=True, kw_only=True):
    """The client played so much; cumulative."""

    played_ms: Duration
    committed_ms: Duration | None = None
    response_id: Id | None = None
    item_id: Id | None = None
    truncate: bool = False


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
    """
    Read one text frame.

    Raises:
        CodecError: it is no client event; carries the client's `event_id` if that can be read.
    """
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise explain(text, str(error), context) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError("invalid_json", "The message is not valid JSON.") from error
