"""Views: parts of the state in the shape that clients read them."""

from __future__ import annotations

from typing import TypedDict

from msgspec import UNSET, UnsetType

from session_core import wire
from session_core.audio import AudioFormat, Encoding, samples_to_ms
from session_core.config import ServerVad, Way
from session_core.items import Item, ItemType
from session_core.state import Response, State

_FORMAT_NAMES = {
    Encoding.PCM16: "audio/pcm",
    Encoding.G711_ULAW: "audio/pcmu",
    Encoding.G711_ALAW: "audio/pcma",
}


class Receipts(TypedDict):
    """What of the client's input is acknowledged: counted in the journal."""

    input_audio_received_ms: int
    input_audio_received_bytes: int
    last_client_event_id: str | None


def receipts(state: State) -> Receipts:
    """Give the receipts at this position."""
    rate = state.pinned.profile.input_sample_rate_hz
    return Receipts(
        input_audio_received_ms=samples_to_ms(state.input.received_samples(rate), rate),
        input_audio_received_bytes=state.input.received_bytes,
        last_client_event_id=state.input.last_client_event_id,
    )


def expires_at(state: State) -> int:
    """When the session maximum ends the session, in unix seconds."""
    return (state.pinned.opened_ms + state.pinned.limits.max_session_ms) // 1000


def playback(state: State) -> wire.PlaybackView:
    """The ledger of the newest response that spoke."""
    ledger = state.playback
    return wire.PlaybackView(ledger.sent_ms, ledger.sent_ms, ledger.played_ms, ledger.committed_ms)


def session(state: State) -> wire.SessionView:
    """The session object; what only duplex clients know stays away from others."""
    pinned, config = state.pinned, state.config
    duplex = pinned.way is Way.DUPLEX
    view = wire.SessionView(
        id=pinned.session_id,
        model=config.model,
        instructions=config.instructions,
        audio=wire.AudioView(
            wire.AudioInputView(
                _format(config.input_format),
                config.input_format.sample_rate_hz,
                _turn_detection(config.turn_detection),
            ),
            wire.AudioOutputView(
                _format(config.output_format), config.output_format.sample_rate_hz, config.voice
            ),
        ),
        max_output_tokens="inf" if config.max_output_tokens is None else config.max_output_tokens,
        expires_at=expires_at(state),
    )
    return _with_duplex_fields(state, view) if duplex else view


def _with_duplex_fields(state: State, view: wire.SessionView) -> wire.SessionView:
    pinned, config, response = state.pinned, state.config, state.response
    idle_s = pinned.limits.idle_timeout_ms // 1000 if config.idle_timeout_s is None else config.idle_timeout_s
    profile = pinned.profile
    return wire.SessionView(
        id=view.id,
        model=view.model,
        instructions=view.instructions,
        audio=view.audio,
        max_output_tokens=view.max_output_tokens,
        expires_at=view.expires_at,
        session_id=pinned.session_id,
        state=state.phase,
        turn_state="speaking" if response is not None and response.speaking else "listening",
        epoch=state.epoch,
        turn_id=state.turn,
        active_response_id=response.response_id if response is not None else None,
        playback_commit_policy=config.playback_commit_policy,
        playback=playback(state),
        idle_timeout_s=idle_s,
        extra_body={"auto_response": config.auto_response},
        capabilities={
            "chunk_period_ms": profile.unit_ms,
            "clock": profile.clock,
            "supports_text": profile.supports_text,
        },
    )


def _format(audio_format: AudioFormat) -> wire.AudioFormatView | UnsetType:
    """GA's format object. Strict clients allow `rate` only as 24000, and know no float format at all."""
    name = _FORMAT_NAMES.get(audio_format.encoding)
    if name is None:
        return UNSET
    rated = audio_format.encoding is Encoding.PCM16 and audio_format.sample_rate_hz == 24_000
    return wire.AudioFormatView(name, 24_000 if rated else UNSET)


def _turn_detection(detection: ServerVad | None) -> wire.TurnDetectionView | None:
    if detection is None:
        return None
    return wire.TurnDetectionView(
        "server_vad",
        detection.threshold,
        detection.prefix_padding_ms,
        detection.silence_duration_ms,
        detection.create_response,
        detection.interrupt_response,
    )


def item(item: Item) -> wire.ItemView:
    """An item without its audio."""
    content: tuple[wire.ContentView, ...] | UnsetType = UNSET
    if item.item_type is ItemType.MESSAGE:
        content = tuple(
            wire.ContentView(type=part.kind, transcript=part.text)
            if part.kind.endswith("audio")
            else wire.ContentView(type=part.kind, text=part.text or "")
            for part in item.parts
        )
    return wire.ItemView(
        id=item.item_id,
        type=item.item_type,
        status=item.status,
        role=item.role or UNSET,
        content=content,
        call_id=item.call_id or UNSET,
        name=item.name or UNSET,
        arguments=UNSET if item.arguments is None else item.arguments,
        output=UNSET if item.output is None else item.output,
    )


def response(
    state: State,
    response: Response,
    *,
    status: str,
    details: wire.StatusDetails | None = None,
    output: tuple[wire.ItemView, ...] = (),
) -> wire.ResponseView:
    """A response at its beginning or end."""
    usage = None
    if status != "in_progress":
        usage = wire.Usage(response.output_tokens, 0, response.output_tokens)
    return wire.ResponseView(
        id=response.response_id,
        status=status,
        status_details=details,
        output=output,
        conversation_id=f"conv_{state.pinned.session_id}",
        metadata=response.options.metadata,
        usage=usage,
    )
