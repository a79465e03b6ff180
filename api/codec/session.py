"""The session object of `session.update`, in every spelling that clients use, and the patch it means.

GA nests under `audio.input` and `audio.output`; beta and vLLM-Omni's DuplexClient write flat keys. On
OpenAI's way a key of the other dialect is refused by name. Settings that clients send by default and that no
served model has any use for yet are taken and not echoed: transcription, noise reduction, tools, tracing,
truncation, prompt, speed, include, reasoning, and the overlap policies.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec.context import CodecContext
from api.codec.formats import WireFormat, audio_format
from api.errors import CodecError
from session_core.config import CommitPolicy, Dialect, TurnDetection, SessionPatch, Way

T = TypeVar("T")
F = TypeVar("F")
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=3_600_000)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1)] | Literal["inf"]


class WireServerVad(Struct, frozen=True, tag="server_vad", tag_field="type"):
    """OpenAI's `server_vad`; what is not said has its default, whatever was in force before."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 500
    create_response: bool = True
    interrupt_response: bool = True


class WireSemanticVad(Struct, frozen=True, tag="semantic_vad", tag_field="type"):
    """OpenAI's `semantic_vad`."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


Detection: TypeAlias = WireServerVad | WireSemanticVad | UnsetType | None


class WireVoice(Struct, frozen=True):
    """A voice by id."""

    id: str


Voice: TypeAlias = str | WireVoice | UnsetType | None


class WireInput(Struct, frozen=True):
    """`audio.input`."""

    format: WireFormat | str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    turn_detection: Detection = UNSET


class WireOutput(Struct, frozen=True):
    """`audio.output`."""

    format: WireFormat | str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    voice: Voice = UNSET


class WireAudio(Struct, frozen=True):
    """Both directions."""

    input: WireInput | UnsetType | None = UNSET
    output: WireOutput | UnsetType | None = UNSET


class WireExtraBody(Struct, frozen=True):
    """vLLM-Omni's side door."""

    auto_response: bool | UnsetType | None = UNSET


class WireSession(Struct, frozen=True):
    """Everything that a client may set. UNSET keeps; None switches off where that means something."""

    type: str | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    audio: WireAudio | UnsetType | None = UNSET
    output_modalities: tuple[str, ...] | UnsetType | None = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET

    modalities: tuple[str, ...] | UnsetType | None = UNSET
    input_audio_format: str | UnsetType | None = UNSET
    output_audio_format: str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    turn_detection: Detection = UNSET
    voice: Voice = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    max_response_output_tokens: Tokens | UnsetType | None = UNSET

    ref_audio: str | UnsetType | None = UNSET
    playback_commit_policy: CommitPolicy | UnsetType = UNSET
    idle_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] | UnsetType | None = UNSET
    extra_body: WireExtraBody | UnsetType | None = UNSET


_GA_KEYS = ("audio", "output_modalities", "max_output_tokens")
_FLAT_KEYS = (
    *("modalities", "input_audio_format", "output_audio_format", "sample_rate_hz", "turn_detection", "voice"),
    *("temperature", "max_response_output_tokens"),
)


def session_patch(session: WireSession, context: CodecContext) -> SessionPatch:
    """Give the patch that a session object means on top of `context.config`.

    Raises:
        CodecError: something in it is refused; then nothing of it may be applied.
    """
    _check(session, context)
    config = context.config
    audio = session.audio or WireAudio()
    into, out = audio.input or WireInput(), audio.output or WireOutput()
    extra = session.extra_body or WireExtraBody()
    return SessionPatch(
        model=context.name_model(session.model, config.model) if session.model else UNSET,
        input_format=audio_format(
            _first(into.format, session.input_audio_format),
            _first(into.sample_rate_hz, session.sample_rate_hz),
            config.input_format,
            context,
            "session.audio.input",
        ),
        output_format=audio_format(
            _first(out.format, session.output_audio_format),
            out.sample_rate_hz,
            config.output_format,
            context,
            "session.audio.output",
        ),
        instructions="" if session.instructions is None else session.instructions,
        voice=_voice(out.voice if out.voice is not UNSET else session.voice),
        turn_detection=_detection(
            into.turn_detection if into.turn_detection is not UNSET else session.turn_detection, context
        ),
        auto_response=UNSET if extra.auto_response is None else extra.auto_response,
        playback_commit_policy=session.playback_commit_policy,
        idle_timeout_s=_whole(session.idle_timeout_s),
        temperature=session.temperature,
        max_output_tokens=_tokens(session),
    )


def _first(nested: T | UnsetType | None, flat: F | UnsetType | None) -> T | F | UnsetType | None:
    """What stands in the nested place, else what stands in the flat one."""
    return flat if nested is UNSET or nested is None else nested


def _check(session: WireSession, context: CodecContext) -> None:
    """Refuse what belongs to another dialect, and what this service does not do."""
    if context.way is Way.OPENAI:
        ga = context.dialect is Dialect.GA
        if ga and session.type is UNSET:
            message = "Missing required parameter: 'session.type'."
            raise CodecError("missing_required_parameter", message, param="session.type")
        for key in _FLAT_KEYS if ga else _GA_KEYS:
            if getattr(session, key) is not UNSET:
                param = f"session.{key}"
                raise CodecError("unknown_parameter", f"Unknown parameter: '{param}'.", param=param)
    invalid = context.code("invalid_value", "invalid_session_config")
    if session.type not in (UNSET, "realtime"):
        message = "Only sessions of type 'realtime' are served."
        raise CodecError(invalid, message, param="session.type")
    for name in ("output_modalities", "modalities"):
        modalities = getattr(session, name)
        if modalities and "audio" not in modalities:
            message = "Responses without audio are not served."
            raise CodecError(invalid, message, param=f"session.{name}")
    if session.ref_audio:
        raise CodecError(invalid, "No served model takes a reference voice.", param="session.ref_audio")


def _voice(voice: Voice) -> str | UnsetType:
    if voice is None or voice is UNSET:
        return UNSET
    return voice.id if isinstance(voice, WireVoice) else voice


def _detection(detection: Detection, context: CodecContext) -> TurnDetection | UnsetType | None:
    match detection:
        case WireServerVad():
            return TurnDetection(
                threshold=detection.threshold,
                prefix_padding_ms=detection.prefix_padding_ms,
                silence_duration_ms=detection.silence_duration_ms,
                create_response=detection.create_response,
                interrupt_response=detection.interrupt_response,
            )
        case WireSemanticVad():
            semantic = context.semantic_vad
            silence_ms = {"low": semantic.low_ms, "high": semantic.high_ms}.get(
                detection.eagerness, semantic.medium_ms
            )
            return TurnDetection(
                silence_duration_ms=silence_ms,
                create_response=detection.create_response,
                interrupt_response=detection.interrupt_response,
            )
        case _:
            return detection


def _whole(seconds: float | UnsetType | None) -> int | UnsetType | None:
    return math.ceil(seconds) if isinstance(seconds, (int, float)) else seconds


def _tokens(session: WireSession) -> int | UnsetType | None:
    given = session.max_output_tokens
    if given is UNSET:
        given = session.max_response_output_tokens
    return None if given == "inf" else given
