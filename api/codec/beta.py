"""
The beta dialect: a flat session object, items whose parts are `audio` and `text`, and older names.

One to one with the canonical events: nothing is added or split, so numbers stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from session_core import wire
from session_core.config import JsonObject

NAMES: dict[type[wire.ServerEvent], tuple[str, str]] = {
    wire.AudioDelta: ("response.output_audio.delta", "response.audio.delta"),
    wire.AudioDone: ("response.output_audio.done", "response.audio.done"),
    wire.TranscriptDelta: ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
    wire.TranscriptDone: ("response.output_audio_transcript.done", "response.audio_transcript.done"),
    wire.TextDelta: ("response.output_text.delta", "response.text.delta"),
    wire.TextDone: ("response.output_text.done", "response.text.done"),
}
"""GA's name and beta's."""

_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_PARTS = {"output_audio": "audio", "output_text": "text"}


class BetaSession(Struct, frozen=True, kw_only=True):
    """The session as beta clients read it."""

    id: str
    object: Literal["realtime.session"] = "realtime.session"
    model: str
    expires_at: int
    modalities: tuple[str, ...]
    instructions: str
    voice: str
    input_audio_format: str
    output_audio_format: str
    sample_rate_hz: int
    input_audio_transcription: wire.TranscriptionView | None
    input_audio_noise_reduction: JsonObject | None
    turn_detection: wire.TurnDetectionView | None
    tools: tuple[wire.ToolView, ...]
    tool_choice: str | JsonObject
    tracing: str | JsonObject | None
    speed: float
    temperature: float = 0.8
    """Beta clients require it; GA's session object, from which this one is made, does not have it."""
    max_response_output_tokens: int | Literal["inf"]


class BetaResponse(Struct, frozen=True, kw_only=True):
    """A response as beta clients read it."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: str
    status_details: wire.StatusDetails | None
    output: tuple[wire.ItemView, ...]
    conversation_id: str | None
    modalities: tuple[str, ...]
    metadata: dict[str, str] | None
    usage: wire.Usage | None


class BetaResponseCreated(wire.ServerEvent, tag="response.created", frozen=True, kw_only=True):
    """`response.created`."""

    response_id: str
    response: BetaResponse


class BetaResponseDone(wire.ServerEvent, tag="response.done", frozen=True, kw_only=True):
    """`response.done`."""

    response_id: str
    response: BetaResponse


class BetaSessionCreated(wire.ServerEvent, tag="session.created", frozen=True, kw_only=True):
    """`session.created`."""

    session: BetaSession
    resume_token: str | UnsetType = UNSET


class BetaSessionUpdated(wire.ServerEvent, tag="session.updated", frozen=True, kw_only=True):
    """`session.updated`."""

    session: BetaSession


def session_created(event: wire.SessionCreated) -> wire.ServerEvent:
    """Give `session.created` with the flat session."""
    return BetaSessionCreated(
        event_id=event.event_id, session=flat_session(event.session), resume_token=event.resume_token
    )


def _session_updated(event: wire.SessionUpdated) -> wire.ServerEvent:
    return BetaSessionUpdated(
        event_id=event.event_id,
        server_event_seq=event.server_event_seq,
        epoch=event.epoch,
        session=flat_session(event.session),
    )


def flat_session(view: wire.SessionView) -> BetaSession:
    """Give the session object flat."""
    into, out = view.audio.input, view.audio.output
    return BetaSession(
        id=view.id,
        model=view.model,
        modalities=_modalities(view.output_modalities),
        expires_at=view.expires_at,
        instructions=view.instructions,
        voice=out.voice,
        input_audio_format=_format(into.format),
        output_audio_format=_format(out.format),
        sample_rate_hz=into.sample_rate_hz,
        input_audio_transcription=into.transcription,
        input_audio_noise_reduction=into.noise_reduction,
        turn_detection=into.turn_detection,
        tools=view.tools,
        tool_choice=view.tool_choice,
        tracing=view.tracing,
        speed=out.speed,
        max_response_output_tokens=view.max_output_tokens,
    )


def _modalities(output: tuple[str, ...]) -> tuple[str, ...]:
    """Beta says of audio that it has its text."""
    return ("audio", "text") if "audio" in output else output


def _format(view: wire.AudioFormatView | UnsetType) -> str:
    return "pcm_f32le" if isinstance(view, UnsetType) else _FORMATS[view.type]


def _item(item: wire.ItemView) -> wire.ItemView:
    if not item.content:
        return item
    content = tuple(replace(part, type=_PARTS.get(part.type, part.type)) for part in item.content)
    return replace(item, content=content)


_WithItem: TypeAlias = wire.ItemCreated | wire.ItemRetrieved | wire.OutputItemAdded | wire.OutputItemDone


def _with_item(event: _WithItem) -> wire.ServerEvent:
    return replace(event, item=_item(event.item))


def _response(view: wire.ResponseView) -> BetaResponse:
    return BetaResponse(
        id=view.id,
        status=view.status,
        status_details=view.status_details,
        output=tuple(map(_item, view.output)),
        conversation_id=view.conversation_id,
        modalities=_modalities(view.output_modalities),
        metadata=view.metadata,
        usage=view.usage,
    )


def _response_created(event: wire.ResponseCreated) -> wire.ServerEvent:
    return BetaResponseCreated(
        event_id=event.event_id,
        server_event_seq=event.server_event_seq,
        epoch=event.epoch,
        response_id=event.response_id,
        response=_response(event.response),
    )


def _response_done(event: wire.ResponseDone) -> wire.ServerEvent:
    return BetaResponseDone(
        event_id=event.event_id,
        server_event_seq=event.server_event_seq,
        epoch=event.epoch,
        response_id=event.response_id,
        response=_response(event.response),
    )


SHAPES: dict[type[wire.ServerEvent], Callable[[Any], wire.ServerEvent]] = {
    wire.SessionUpdated: _session_updated,
    wire.ItemCreated: _with_item,
    wire.ItemRetrieved: _with_item,
    wire.OutputItemAdded: _with_item,
    wire.OutputItemDone: _with_item,
    wire.ResponseCreated: _response_created,
    wire.ResponseDone: _response_done,
}
"""Events that beta shapes otherwise."""
