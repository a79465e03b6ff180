"""What a session object means: the patch on top of the settings in force, all of it or nothing."""

from __future__ import annotations

import math
from typing import TypeVar

from msgspec import UNSET, UnsetType, json
from msgspec.structs import replace

from api.codec.context import CodecContext
from api.codec.formats import audio_format
from api.codec.session import (
    FLAT_KEYS,
    GA_KEYS,
    Detection,
    JsonOrName,
    NoiseReduction,
    Transcribing,
    WireAudio,
    WireExtraBody,
    WireInput,
    WireOutput,
    WireSemanticVad,
    WireServerVad,
    WireSession,
    voice_name,
)
from api.codec.tools import tool_choice, tools
from api.codec.values import check_json, invalid, missing, modality, token_limit, unknown
from session_core.config import (
    CommitPolicy,
    Dialect,
    JsonObject,
    Modality,
    OverlapPolicy,
    SessionPatch,
    Transcription,
    TurnDetection,
    Way,
)

T = TypeVar("T")
F = TypeVar("F")

MAX_SESSION_BYTES = 512 << 10
"""Of all settings together: the events that show them stay below the largest frame that clients take."""


def session_patch(session: WireSession, context: CodecContext) -> SessionPatch:
    """
    Give the patch that a session object means on top of `context.config`.

    Raises:
        CodecError: something in it is refused; then nothing of it may be applied.
    """
    _check(session, context)
    config = context.config
    extra = session.extra_body or WireExtraBody()
    model = context.name_model(session.model, config.model) if session.model else UNSET
    truncation = _json(session.truncation, ("auto", "disabled"), context, "session.truncation")
    patch = replace(
        _audio_patch(session, context),
        model=model,
        instructions=_or(session.instructions, ""),
        auto_response=_kept(extra.auto_response),
        output_modality=_modality(session, config.model if isinstance(model, UnsetType) else model, context),
        tools=tools(_said(session.tools, extra.realtime_tools), context, "session.tools"),
        tool_choice=tool_choice(session.tool_choice, context, "session.tool_choice"),
        playback_commit_policy=_or(session.playback_commit_policy, CommitPolicy.COMMIT_ALL_ON_DONE),
        overlap_policy=_or(session.overlap_policy, OverlapPolicy.BARGE_IN_ON_SPEECH),
        overlap_barge_in_ms=_overlap_ms(session),
        tracing=_json(session.tracing, ("auto",), context, "session.tracing"),
        truncation=_or(truncation, "auto"),
        idle_timeout_s=_whole(session.idle_timeout_s),
        temperature=session.temperature,
        max_output_tokens=token_limit(_said(session.max_output_tokens, session.max_response_output_tokens)),
    )
    if len(json.encode(patch.onto(config))) > MAX_SESSION_BYTES:
        message = f"Invalid value: the session's settings take more than {MAX_SESSION_BYTES} bytes."
        raise invalid(context, "event_too_large", message, "session")
    return patch


def _audio_patch(session: WireSession, context: CodecContext) -> SessionPatch:
    """Give what the session object says of the audio and its detection, nested or flat."""
    audio = session.audio or WireAudio()
    into, out = audio.input or WireInput(), audio.output or WireOutput()
    reduction = _said(into.noise_reduction, session.input_audio_noise_reduction)
    return SessionPatch(
        input_format=audio_format(
            _first(into.format, session.input_audio_format),
            _first(into.sample_rate_hz, session.sample_rate_hz),
            context.config.input_format,
            context,
            "session.audio.input",
        ),
        output_format=audio_format(
            _first(out.format, session.output_audio_format),
            out.sample_rate_hz,
            context.config.output_format,
            context,
            "session.audio.output",
        ),
        voice=voice_name(_said(out.voice, session.voice), context),
        turn_detection=_detection(_said(into.turn_detection, session.turn_detection), context),
        transcription=_transcription(_said(into.transcription, session.input_audio_transcription), context),
        noise_reduction=_noise_reduction(reduction, context),
        speed=_or(_said(out.speed, session.speed), 1.0),
    )


# --- which of two places, and what null means ---------------------------------------------------------------


def _first(nested: T | UnsetType | None, flat: F | UnsetType | None) -> T | F | UnsetType | None:
    """What stands in the nested place, else what stands in the flat one; null says nothing."""
    return flat if nested is UNSET or nested is None else nested


def _said(nested: T | UnsetType, flat: T | UnsetType) -> T | UnsetType:
    """What is said in the nested place, else in the flat one; null says something."""
    return flat if nested is UNSET else nested


def _or(given: T | UnsetType | None, null: T) -> T | UnsetType:
    """What is given, and for null what null means."""
    return null if given is None else given


def _kept(given: T | UnsetType | None) -> T | UnsetType:
    return UNSET if given is None else given


# --- refusals -----------------------------------------------------------------------------------------------


def _check(session: WireSession, context: CodecContext) -> None:
    """Refuse what belongs to another dialect, and what this service does not do."""
    if context.way is Way.OPENAI:
        ga = context.dialect is Dialect.GA
        if ga and session.type is UNSET:
            raise missing(context, "session.type")
        for key in FLAT_KEYS if ga else GA_KEYS:
            if getattr(session, key) is not UNSET:
                raise unknown(f"session.{key}")
    if session.type not in (UNSET, "realtime"):
        message = "Only sessions of type 'realtime' are served."
        raise invalid(context, "invalid_session_config", message, "session.type")
    if session.ref_audio:
        message = "No served model takes a reference voice."
        raise invalid(context, "ref_audio_update_unsupported", message, "session.ref_audio")


# --- single settings ----------------------------------------------------------------------------------------


def _modality(session: WireSession, model: str, context: CodecContext) -> Modality | UnsetType:
    name = "modalities" if session.output_modalities is UNSET else "output_modalities"
    given = _said(session.output_modalities, session.modalities)
    return modality(given, model, context, f"session.{name}")


def _detection(detection: Detection, context: CodecContext) -> TurnDetection | UnsetType | None:
    match detection:
        case WireServerVad():
            return TurnDetection(
                threshold=detection.threshold,
                prefix_padding_ms=detection.prefix_padding_ms,
                silence_duration_ms=detection.silence_duration_ms,
                idle_timeout_ms=detection.idle_timeout_ms,
                create_response=detection.create_response,
                interrupt_response=detection.interrupt_response,
            )
        case WireSemanticVad():
            return TurnDetection(
                kind="semantic_vad",
                silence_duration_ms=context.semantic_silence_ms(detection.eagerness),
                eagerness=detection.eagerness,
                create_response=detection.create_response,
                interrupt_response=detection.interrupt_response,
            )
        case _:
            return detection


def _transcription(given: Transcribing, context: CodecContext) -> Transcription | UnsetType | None:
    """Transcription is replaced as a whole; only a model that is not named stays what it is."""
    if given is None or isinstance(given, UnsetType):
        return given
    current = context.config.transcription
    unnamed = current.model if current is not None else "default"
    language = given.language or next(iter(given.languages or ()), None)
    model = context.transcription_model(given.model) if given.model else unnamed
    return Transcription(model, language, given.prompt)


def _noise_reduction(given: NoiseReduction, context: CodecContext) -> JsonObject | UnsetType | None:
    """The keys that are given, over those in force."""
    if given is None or isinstance(given, UnsetType):
        return given
    said = {"type": given.type, "strength": given.strength}
    return {
        **(context.config.noise_reduction or {}),
        **{name: value for name, value in said.items() if value is not None},
    }


def _json(
    given: JsonOrName, names: tuple[str, ...], context: CodecContext, param: str
) -> str | JsonObject | UnsetType | None:
    """One of some words, or an object that is kept as it is."""
    if isinstance(given, str) and given not in names:
        raise invalid(context, "invalid_session_config", f"Invalid value: '{param}' is no known word.", param)
    check_json(given, context, param)
    return given


def _overlap_ms(session: WireSession) -> int | UnsetType:
    """How long speech has to last to interrupt: what is too short for that is an acknowledgement."""
    given = (session.overlap_short_ack_ms, session.overlap_barge_in_ms)
    return max((ms for ms in given if isinstance(ms, int)), default=UNSET)


def _whole(seconds: float | UnsetType | None) -> int | UnsetType | None:
    return math.ceil(seconds) if isinstance(seconds, (int, float)) else seconds
