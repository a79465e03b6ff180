"""
The session object of `session.update`, in every spelling that clients use.

GA nests under `audio.input` and `audio.output`; beta and vLLM-Omni's DuplexClient write flat keys. What the
object means is told by `api.codec.patch`. Keys that are not listed here are skipped: GA's `include`,
`prompt`, `reasoning` and `parallel_tool_calls`, and the duplex way's `overlap_silence_rms`, among others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec.context import CodecContext
from api.codec.formats import WireFormat
from api.codec.tools import Choice, Tools
from api.codec.values import Modalities, Temperature, Tokens
from session_core.config import CommitPolicy, OverlapPolicy

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=3_600_000)]
Name: TypeAlias = Annotated[str, Meta(max_length=512)]


class WireServerVad(Struct, frozen=True, tag="server_vad", tag_field="type"):
    """OpenAI's `server_vad`; what is not said has its default, whatever was in force before."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 500
    idle_timeout_ms: Annotated[int, Meta(ge=100, le=3_600_000)] | None = None
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

    id: Annotated[str, Meta(min_length=1, max_length=512)]


Voice: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)] | WireVoice | UnsetType | None


def voice_name(voice: Voice, context: CodecContext) -> str | UnsetType:
    """Give the voice that a client's word means, or UNSET if it says none."""
    if voice is None or isinstance(voice, UnsetType):
        return UNSET
    return context.voice(voice.id if isinstance(voice, WireVoice) else voice)


class WireTranscription(Struct, frozen=True):
    """Transcription of the user's audio. `keywords` and `delay` are skipped."""

    model: Name | None = None
    language: Name | None = None
    languages: tuple[Name, ...] | None = None
    prompt: str | None = None


Transcribing: TypeAlias = WireTranscription | UnsetType | None


class WireNoiseReduction(Struct, frozen=True):
    """Noise reduction of the input; a key that is absent keeps its value."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | str | None = None


NoiseReduction: TypeAlias = WireNoiseReduction | UnsetType | None
JsonOrName: TypeAlias = str | dict[str, Any] | UnsetType | None


class WireInput(Struct, frozen=True):
    """`audio.input`."""

    format: WireFormat | str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    turn_detection: Detection = UNSET
    transcription: Transcribing = UNSET
    noise_reduction: NoiseReduction = UNSET


Speed: TypeAlias = Annotated[float, Meta(ge=0.25, le=1.5)] | UnsetType | None


class WireOutput(Struct, frozen=True):
    """`audio.output`."""

    format: WireFormat | str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    voice: Voice = UNSET
    speed: Speed = UNSET


class WireAudio(Struct, frozen=True):
    """Both directions."""

    input: WireInput | UnsetType | None = UNSET
    output: WireOutput | UnsetType | None = UNSET


class WireExtraBody(Struct, frozen=True):
    """vLLM-Omni's side door; its other keys are skipped."""

    auto_response: bool | UnsetType | None = UNSET
    realtime_tools: Tools = UNSET


class WireSession(Struct, frozen=True):
    """Everything that a client may set. UNSET keeps; None switches off where that means something."""

    type: str | UnsetType = UNSET
    model: Name | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    tools: Tools = UNSET
    tool_choice: Choice = UNSET
    tracing: JsonOrName = UNSET

    audio: WireAudio | UnsetType | None = UNSET
    output_modalities: Modalities = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET
    truncation: JsonOrName = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    reasoning: JsonOrName = UNSET

    modalities: Modalities = UNSET
    input_audio_format: str | UnsetType | None = UNSET
    output_audio_format: str | UnsetType | None = UNSET
    sample_rate_hz: int | UnsetType | None = UNSET
    input_audio_transcription: Transcribing = UNSET
    input_audio_noise_reduction: NoiseReduction = UNSET
    turn_detection: Detection = UNSET
    voice: Voice = UNSET
    speed: Speed = UNSET
    temperature: Temperature | UnsetType | None = UNSET
    max_response_output_tokens: Tokens | UnsetType | None = UNSET

    ref_audio: Any = None
    playback_commit_policy: CommitPolicy | UnsetType | None = UNSET
    overlap_policy: OverlapPolicy | UnsetType | None = UNSET
    overlap_short_ack_ms: Milliseconds | UnsetType | None = UNSET
    overlap_barge_in_ms: Milliseconds | UnsetType | None = UNSET
    idle_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] | UnsetType | None = UNSET
    extra_body: WireExtraBody | UnsetType | None = UNSET


GA_KEYS = (
    *("audio", "output_modalities", "max_output_tokens", "truncation", "parallel_tool_calls", "reasoning"),
)
"""Keys of GA that beta clients do not have."""
FLAT_KEYS = (
    *("modalities", "input_audio_format", "output_audio_format", "sample_rate_hz"),
    *("input_audio_transcription", "input_audio_noise_reduction", "turn_detection", "voice", "speed"),
    *("temperature", "max_response_output_tokens"),
)
"""Keys of beta that GA clients do not have."""
