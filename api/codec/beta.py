"""The beta dialect: a flat session object, items whose parts are `audio` and `text`, and older names.

One to one with the canonical events: nothing is added or split, so numbers stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from session_core import wire

NAMES: dict[type[wire.ServerEvent], tuple[str, str]] = {
    wire.AudioDelta: ("response.output_audio.delta", "response.audio.delta"),
    wire.AudioDone: ("response.output_audio.done", "response.audio.done"),
    wire.TranscriptDelta: ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
    wire.TranscriptDone: ("response.output_audio_transcript.done", "response.audio_transcript.done"),
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
    modalities: tuple[str, ...] = ("audio", "text")
    instructions: str
    voice: str
    input_audio_format: str
    output_audio_format: str
    sample_rate_hz: int
    input_audio_transcription: None = None
    turn_detection: wire.TurnDetectionView | None
    tools: tuple[()] = ()
    tool_choice: str | dict[str, Any]
    temperature: float = 0.8
    max_response_output_tokens: int | Literal["inf"]


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
        event_id=event.event_id, session=_session(event.session), resume_token=event.resume_token
    )


def _session_updated(event: wire.SessionUpdated) -> wire.ServerEvent:
    return BetaSessionUpdated(
        event_id=event.event_id,
        server_event_seq=event.server_event_seq,
        epoch=event.epoch,
        session=_session(event.session),
    )


def _session(view: wire.SessionView) -> BetaSession:
    into, out = view.audio.input, view.audio.output
    return BetaSession(
        id=view.id,
        model=view.model,
        expires_at=view.expires_at,
        instructions=view.instructions,
        voice=out.voice,
        input_audio_format=_format(into.format),
        output_audio_format=_format(out.format),
        sample_rate_hz=into.sample_rate_hz,
        turn_detection=into.turn_detection,
        tool_choice=view.tool_choice,
        max_response_output_tokens=view.max_output_tokens,
    )


def _format(view: wire.AudioFormatView | UnsetType) -> str:
    return "pcm_f32le" if isinstance(view, UnsetType) else _FORMATS[view.type]


def _item(item: wire.ItemView) -> wire.ItemView:
    if not item.content:
        return item
    content = tuple(replace(part, type=_PARTS.get(part.type, part.type)) for part in item.content)
    return replace(item, content=content)


def _with_item(event: wire.ItemCreated | wire.OutputItemAdded | wire.OutputItemDone) -> wire.ServerEvent:
    return replace(event, item=_item(event.item))


def _response_done(event: wire.ResponseDone) -> wire.ServerEvent:
    response = event.response
    return replace(event, response=replace(response, output=tuple(map(_item, response.output))))


SHAPES: dict[type[wire.ServerEvent], Callable[[Any], wire.ServerEvent]] = {
    wire.SessionUpdated: _session_updated,
    wire.ItemCreated: _with_item,
    wire.OutputItemAdded: _with_item,
    wire.OutputItemDone: _with_item,
    wire.ResponseDone: _response_done,
}
"""Events that beta shapes otherwise."""
