"""What the client sends and reads: light Structs, one for each client event, one for all server events."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct


class ClientEvent(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Base of what a client sends."""


class AudioFormatOption(Struct, frozen=True, omit_defaults=True):
    """PCM16 at a rate."""

    type: str
    rate: int


class DirectionOptions(Struct, frozen=True):
    """Settings of one direction."""

    format: AudioFormatOption


class UntimedInputOptions(Struct, frozen=True):
    """Input settings without server-side turn detection."""

    format: AudioFormatOption
    turn_detection: None = None


class AudioOptions(Struct, frozen=True):
    """Settings of both directions."""

    input: DirectionOptions | UntimedInputOptions
    output: DirectionOptions


class ExtraBody(Struct, frozen=True):
    """What only the duplex way knows."""

    auto_response: bool = True


class SessionOptions(Struct, frozen=True, omit_defaults=True):
    """The session object of an update."""

    audio: AudioOptions
    type: str = msgspec.field(default="", name="type")
    model: str | None = None
    extra_body: ExtraBody | None = None


class SessionUpdate(ClientEvent, tag="session.update", frozen=True):
    """Opens a session on the duplex way, changes it later."""

    session: SessionOptions


class SessionResume(ClientEvent, tag="session.resume", frozen=True):
    """Goes on with a session on a new connection."""

    session_id: str
    resume_token: str
    last_received_server_event_seq: int


class SessionHeartbeat(ClientEvent, tag="session.heartbeat", frozen=True):
    """Asks for receipts."""


class SessionClose(ClientEvent, tag="session.close", frozen=True):
    """Ends the session."""


class AppendInput(ClientEvent, tag="input_audio_buffer.append", frozen=True):
    """Input audio; base64 in JSON."""

    audio: bytes


class CommitInput(ClientEvent, tag="input_audio_buffer.commit", frozen=True):
    """Seals the input."""


class CreateResponse(ClientEvent, tag="response.create", frozen=True):
    """Asks for a response."""


class CancelResponse(ClientEvent, tag="response.cancel", frozen=True):
    """Stops the active response."""


class PlaybackAck(ClientEvent, tag="playback.ack", frozen=True):
    """How much of a response was played (cumulative)."""

    response_id: str
    played_ms: int


class SessionInfo(Struct, frozen=True):
    """Of the session object, what the client uses."""

    id: str
    model: str = ""


class ErrorInfo(Struct, frozen=True):
    """The error object."""

    code: str | None = None
    message: str = ""
    param: str | None = None


class ResponseInfo(Struct, frozen=True):
    """Of the response object, what the client uses."""

    id: str
    status: str = ""


class ServerEvent(Struct, frozen=True):
    """
    Any server event: the fields that a client acts on.

    Others are skipped unread, and `delta` stays raw until asked for.
    """

    type: str
    event_id: str = ""
    server_event_seq: int | None = None
    session: SessionInfo | None = None
    attachment_generation: int = 0
    resume_token: str | None = None
    input_audio_received_bytes: int | None = None
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None
    response_id: str | None = None
    response: ResponseInfo | None = None
    delta: Raw = Raw()
    sample_rate_hz: int = 24_000
    transcript: str | None = None
    reason: str | None = None
    error: ErrorInfo | None = None

    def audio(self) -> bytes:
        """The audio of an audio delta."""
        return _audio.decode(self.delta)

    def text(self) -> str:
        """The text of a transcript delta."""
        return _text.decode(self.delta)


_audio = msgspec.json.Decoder(bytes)
_text = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()
_events = msgspec.json.Decoder(ServerEvent)


def encode(event: ClientEvent) -> str:
    """A client event as the text frame that it is sent in."""
    return _encoder.encode(event).decode()


def decode(message: bytes | str) -> ServerEvent:
    """
    Read a server event.

    Raises:
        msgspec.DecodeError: this is no server event.
    """
    return _events.decode(message)
