"""Views: parts of the state in the shape that clients read them."""

from __future__ import annotations

from typing import TypedDict

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from session_core import wire
from session_core.audio import AudioFormat, Encoding, samples_to_ms
from session_core.config import Transcription, TurnDetection, Way
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
    sent, before = ledger.earlier_ms + ledger.sent_ms, ledger.earlier_ms
    return wire.PlaybackView(sent, sent, before + ledger.played_ms, before + ledger.committed_ms)


def session(state: State) -> wire.SessionView:
    """The session object; what only duplex clients know stays away from others."""
    config = state.config
    view = wire.SessionView(
        id=state.pinned.session_id,
        model=config.model,
        output_modalities=(config.output_modality,),
        instructions=config.instructions,
        audio=wire.AudioView(
            wire.AudioInputView(
                _format(config.input_format),
                config.input_format.sample_rate_hz,
                _turn_detection(config.turn_detection),
                _transcription(config.transcription),
                config.noise_reduction,
            ),
            wire.AudioOutputView(
                _format(config.output_format), config.output_format.sample_rate_hz, config.voice, config.speed
            ),
        ),
        tools=tuple(
            wire.ToolView(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in config.tools
        ),
        tool_choice=config.tool_choice,
        max_output_tokens="inf" if config.max_output_tokens is None else config.max_output_tokens,
        truncation=config.truncation,
        tracing=config.tracing,
        expires_at=expires_at(state),
    )
    return _with_duplex_fields(state, view) if state.pinned.way is Way.DUPLEX else view


def _with_duplex_fields(state: State, view: wire.SessionView) -> wire.SessionView:
    pinned, config, response = state.pinned, state.config, state.response
    profile = pinned.profile
    idle_s = pinned.limits.idle_timeout_ms // 1000 if config.idle_timeout_s is None else config.idle_timeout_s
    return replace(
        view,
        session_id=pinned.session_id,
        state=state.phase,
        turn_state=turn_state(state),
        epoch=state.epoch,
        turn_id=state.turn,
        active_response_id=response.response_id if response is not None else None,
        overlap_policy=config.overlap_policy,
        overlap_barge_in_ms=config.overlap_barge_in_ms,
        playback_commit_policy=config.playback_commit_policy,
        playback=playback(state),
        idle_timeout_s=idle_s,
        extra_body={"auto_response": config.auto_response},
        capabilities={
            "chunk_period_ms": profile.unit_ms,
            "clock": profile.clock,
            "supports_barge_in": profile.supports_barge_in,
            "supports_text": profile.supports_text,
            "supports_tools": profile.supports_tools,
        },
    )


def turn_state(state: State) -> str:
    """What the session is doing, in a word: derived, never stored."""
    if state.response is not None:
        return "speaking" if state.response.begun else "thinking"
    return "user_speaking" if state.input.speech_from is not None else "listening"


def _format(audio_format: AudioFormat) -> wire.AudioFormatView | UnsetType:
    """GA's format object. Strict clients allow `rate` only as 24000, and know no float format at all."""
    name = _FORMAT_NAMES.get(audio_format.encoding)
    if name is None:
        return UNSET
    rated = audio_format.encoding is Encoding.PCM16 and audio_format.sample_rate_hz == 24_000
    return wire.AudioFormatView(name, 24_000 if rated else UNSET)


def _turn_detection(detection: TurnDetection | None) -> wire.TurnDetectionView | None:
    if detection is None:
        return None
    if detection.kind == "semantic_vad":
        return wire.TurnDetectionView(
            type=detection.kind,
            eagerness=detection.eagerness,
            create_response=detection.create_response,
            interrupt_response=detection.interrupt_response,
        )
    return wire.TurnDetectionView(
        type=detection.kind,
        threshold=detection.threshold,
        prefix_padding_ms=detection.prefix_padding_ms,
        silence_duration_ms=detection.silence_duration_ms,
        idle_timeout_ms=detection.idle_timeout_ms,
        create_response=detection.create_response,
        interrupt_response=detection.interrupt_response,
    )


def _transcription(transcription: Transcription | None) -> wire.TranscriptionView | None:
    if transcription is None:
        return None
    return wire.TranscriptionView(
        transcription.model, transcription.language or UNSET, transcription.prompt or UNSET
    )


def rate_limits(state: State) -> tuple[wire.RateLimitView, ...]:
    """What is left of each configured rate limit at this position."""
    return tuple(
        wire.RateLimitView(
            name=limit.name,
            limit=limit.limit,
            remaining=max(0, limit.limit - rate.used),
            reset_seconds=max(0, rate.window_from_ms + limit.window_s * 1000 - state.now_ms) / 1000,
        )
        for limit, rate in zip(state.pinned.limits.rate_limits, state.rates, strict=True)
    )


def item(item: Item) -> wire.ItemView:
    """An item without its audio."""
    content: tuple[wire.ContentView, ...] | UnsetType = UNSET
    if item.item_type is ItemType.MESSAGE:
        content = tuple(
            wire.ContentView(type=part.kind, transcript=part.heard_text)
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
        conversation_id=None if response.options.outside else f"conv_{state.pinned.session_id}",
        output_modalities=(response.modality,),
        metadata=response.options.metadata,
        usage=usage,
    )
