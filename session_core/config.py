"""What a session is configured with: model profile and limits (pinned), the client's settings (mergeable)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from session_core.audio import AudioFormat, Count, SampleRate

JsonObject: TypeAlias = dict[str, Any]
"""JSON that the session keeps and hands on without looking inside, such as a tool's parameter schema."""


class Clock(StrEnum):
    """What moves a model on. UNIT: every unit of input time. COMMIT: a response that was asked for."""

    UNIT = "unit"
    COMMIT = "commit"


class Way(StrEnum):
    """How the session was opened: OPENAI receives OpenAI's own events alone, DUPLEX receives all tiers."""

    OPENAI = "openai"
    DUPLEX = "duplex"


class Dialect(StrEnum):
    """Spelling of OpenAI's events: general availability or the beta before it."""

    GA = "ga"
    BETA = "beta"


class CommitPolicy(StrEnum):
    """When an assistant turn enters history: as far as it was heard, or whole once it is done."""

    ACK_ONLY = "ack_only"
    COMMIT_ALL_ON_DONE = "commit_all_on_done"


class Modality(StrEnum):
    """What a response is made of. Audio always has its transcript."""

    AUDIO = "audio"
    TEXT = "text"


class OverlapPolicy(StrEnum):
    """What the user's speech does to a response in progress."""

    LISTEN_ONLY = "listen_only"
    BARGE_IN_ON_SPEECH = "barge_in_on_speech"


class ModelProfile(Struct, frozen=True):
    """What the fold has to know of a model. Pinned in `SessionOpened`, so a replay needs no model."""

    model: str
    clock: Clock = Clock.UNIT
    input_sample_rate_hz: SampleRate = 24_000
    output_sample_rate_hz: SampleRate = 24_000
    unit_samples: Count = 1_920
    """Input samples of one unit at `input_sample_rate_hz`."""
    silence_grace_ms: Count = 200
    """How long input may be late before silence stands in for it."""
    max_silent_units: Count = 0
    """The unit clock rests after so many units of pure silence while the model listens; 0 = never."""
    max_backlog_ms: Count = 10_000
    """Input that is heard later than this is heard in silence: the model catches up first. 0: never."""
    supports_text: bool = False
    """Takes text items and text in a live turn, and can answer in text."""
    supports_barge_in: bool = True
    supports_tools: bool = False

    @property
    def unit_ms(self) -> int:
        """Duration of a unit in milliseconds."""
        return self.unit_samples * 1000 // self.input_sample_rate_hz


class RateLimit(Struct, frozen=True):
    """At most `limit` responses (`requests`) or output tokens (`tokens`) in each window of `window_s`."""

    name: str
    limit: Count
    window_s: Count = 60


class Limits(Struct, frozen=True):
    """Bounds of one session. Pinned in `SessionOpened`: a replay applies the limits of its day."""

    max_session_ms: Count = 3_600_000
    warn_before_ms: Count = 60_000
    """How long before the maximum a duplex client is warned."""
    disconnect_grace_ms: Count = 60_000
    idle_timeout_ms: Count = 600_000
    max_pending_input_bytes: Count = 32 << 20
    """Input that no unit has taken yet. Above one append of 15 MiB, the largest that the protocol allows."""
    max_barren_workers: Count = 3
    """Worker generations in a row that had work and completed no unit, before the session is given up."""
    max_history_items: Annotated[int, Meta(ge=1)] = 256
    min_commit_ms: Count = 100
    max_side_responses: Count = 8
    """Responses outside the conversation that may be in progress at once."""
    rate_limits: tuple[RateLimit, ...] = ()


class TurnDetection(Struct, frozen=True):
    """Server-side turn detection. Field names, defaults and meaning are OpenAI's."""

    kind: str = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: Count = 300
    silence_duration_ms: Count = 500
    idle_timeout_ms: Count | None = None
    """Ask for a response when the user says nothing for so long after the last one was played. None:
    never."""
    eagerness: str = "auto"
    """Of `semantic_vad` only."""
    create_response: bool = True
    interrupt_response: bool = True


class Transcription(Struct, frozen=True):
    """The user's audio is transcribed, beside the model, by a stage of its own."""

    model: str
    language: str | None = None
    prompt: str | None = None


class Tool(Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: JsonObject = {}


class SessionConfig(Struct, frozen=True):
    """The client's settings in force. Changed only by a `SessionPatch`, as a whole or not at all."""

    model: str
    input_format: AudioFormat = AudioFormat()
    output_format: AudioFormat = AudioFormat()
    instructions: str = ""
    voice: str = "default"
    turn_detection: TurnDetection | None = None
    auto_response: bool = False
    """Duplex way: a commit asks for a response, and the model may speak unasked."""
    output_modality: Modality = Modality.AUDIO
    transcription: Transcription | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str | JsonObject = "auto"
    playback_commit_policy: CommitPolicy = CommitPolicy.COMMIT_ALL_ON_DONE
    overlap_policy: OverlapPolicy = OverlapPolicy.BARGE_IN_ON_SPEECH
    """Duplex way; on OpenAI's way `turn_detection.interrupt_response` decides."""
    overlap_barge_in_ms: Count = 0
    """Speech over a response interrupts it once it has lasted so long; 0: at once. Shorter speech is an
    acknowledgement."""
    speed: float = 1.0
    noise_reduction: JsonObject | None = None
    tracing: str | JsonObject | None = None
    truncation: str | JsonObject = "auto"
    """These four are kept and echoed; no model here acts on them."""
    idle_timeout_s: Count | None = None
    """None: the deployment's `Limits.idle_timeout_ms`."""
    temperature: float | None = None
    max_output_tokens: int | None = None
    """None: no limit."""


class SessionPatch(Struct, frozen=True, omit_defaults=True):
    """What one update sets. UNSET keeps, None switches off. Parsed and normalised at the edge."""

    model: str | UnsetType = UNSET
    input_format: AudioFormat | UnsetType = UNSET
    output_format: AudioFormat | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    voice: str | UnsetType = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET
    auto_response: bool | UnsetType = UNSET
    output_modality: Modality | UnsetType = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    tools: tuple[Tool, ...] | UnsetType = UNSET
    tool_choice: str | JsonObject | UnsetType = UNSET
    playback_commit_policy: CommitPolicy | UnsetType = UNSET
    overlap_policy: OverlapPolicy | UnsetType = UNSET
    overlap_barge_in_ms: Count | UnsetType = UNSET
    speed: float | UnsetType = UNSET
    noise_reduction: JsonObject | UnsetType | None = UNSET
    tracing: str | JsonObject | UnsetType | None = UNSET
    truncation: str | JsonObject | UnsetType = UNSET
    idle_timeout_s: Count | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET

    def onto(self, config: SessionConfig) -> SessionConfig:
        """Give `config` with every field that this patch sets."""
        return replace(config, **{name: value for name, value in asdict(self).items() if value is not UNSET})
