"""What a session is configured with: the model's profile and limits (pinned), the client's settings (mergeable)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from session_core.audio import AudioFormat, Count, SampleRate


class Clock(StrEnum):
    """What moves a model on. UNIT: every unit of input time. COMMIT: a response that was asked for."""

    UNIT = "unit"
    COMMIT = "commit"


class Way(StrEnum):
    """How the session was opened: OPENAI receives no events beyond OpenAI's own, DUPLEX receives all tiers."""

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
    reports_speech: bool = False
    """The model itself tells where the user's speech starts and stops."""
    supports_text: bool = False

    @property
    def unit_ms(self) -> int:
        """Duration of a unit in milliseconds."""
        return self.unit_samples * 1000 // self.input_sample_rate_hz


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
    max_open_renders: Count = 256


class ServerVad(Struct, frozen=True):
    """Server-side turn detection. Field names, defaults and meaning are OpenAI's `server_vad`."""

    threshold: float = 0.5
    prefix_padding_ms: Count = 300
    silence_duration_ms: Count = 500
    create_response: bool = True
    interrupt_response: bool = True


class SessionConfig(Struct, frozen=True):
    """The client's settings in force. Changed only by a `SessionPatch`, as a whole or not at all."""

    model: str
    input_format: AudioFormat = AudioFormat()
    output_format: AudioFormat = AudioFormat()
    instructions: str = ""
    voice: str = "default"
    turn_detection: ServerVad | None = None
    auto_response: bool = False
    """Duplex way: a commit asks for a response, and the model may speak unasked."""
    playback_commit_policy: CommitPolicy = CommitPolicy.ACK_ONLY
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
    turn_detection: ServerVad | UnsetType | None = UNSET
    auto_response: bool | UnsetType = UNSET
    playback_commit_policy: CommitPolicy | UnsetType = UNSET
    idle_timeout_s: Count | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET

    def onto(self, config: SessionConfig) -> SessionConfig:
        """Give `config` with every field that this patch sets."""
        return replace(config, **{name: value for name, value in asdict(self).items() if value is not UNSET})
