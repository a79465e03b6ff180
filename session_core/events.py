"""
Events: past facts that the system saw. Appended by gateways, workers and whoever plays reaper.

Same tag rules as commands. Facts of a worker carry its stamp and are refused when its generation is over; the
other facts name what they are about (a generation, a due time), so that any process may append them and
repeats change nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from session_core.audio import AudioFormat, Count
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way


class Event(Struct, frozen=True, array_like=True, gc=False):
    """Base of all journaled events."""


class SessionOpened(Event, tag="so1", frozen=True):
    """The session exists. Counts only as the journal's first entry; everything in it is pinned for good."""

    session_id: str
    profile: ModelProfile
    config: SessionConfig
    limits: Limits
    way: Way
    dialect: Dialect
    reducer_version: int


class ClientAttached(Event, tag="ca1", frozen=True):
    """
    A client holds the session from here on, if it names the next generation and shows a good token.

    `presented_hash` is None only for the first attachment. `received_seq` is the last outbound event that the
    client has; None for the first attachment.
    """

    attachment_id: str
    gateway: str
    generation: int
    presented_hash: bytes | None
    new_hash: bytes
    received_seq: int | None = None


class ClientDetached(Event, tag="cd1", frozen=True):
    """The attachment of this generation lost its client, or its gateway is suspected dead."""

    generation: int


class WorkerAssigned(Event, tag="wa1", frozen=True):
    """`worker` owns the session as `generation`, if that is the next one."""

    worker: str
    generation: int


class AssignmentDeclined(Event, tag="wd1", frozen=True):
    """The worker of this generation cannot serve the session; another has to be assigned."""

    generation: int
    reason: str


class ServingBegan(Event, tag="sb1", frozen=True):
    """The worker of this stamp begins to work: its death without a completed unit counts from here on."""


class SpeechStarted(Event, tag="ss1", frozen=True):
    """The user's speech begins at `sample` of the input, at the model's rate."""

    sample: Count


class SpeechStopped(Event, tag="se1", frozen=True):
    """The user's speech ends before `sample` of the input, at the model's rate."""

    sample: Count


class Decision(StrEnum):
    """What the model chose in a unit. TURN_END: it speaks, and this unit is the last of the turn."""

    LISTEN = "listen"
    SPEAK = "speak"
    TURN_END = "turn_end"


class ToolCall(Struct, frozen=True, array_like=True):
    """A function call of the model, whole. `arguments` is JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


class ModelUnitCompleted(Event, tag="mu1", frozen=True):
    """
    One whole unit: what went in, exactly, and what came out, exactly. Half a unit is never in the journal.

    `answers` names the response that the model was asked to give when it worked on the unit, if any. `audio`
    is in the session's output format; None: audio follows as `OutputRendered`. `token_ids` and `codes` are
    what a later owner takes over instead of sampling again; `codes` is the plugin's own encoding.
    """

    unit: int
    epoch: int
    first_sample: Count
    input_samples: Count
    silence_samples: Count
    decision: Decision
    token_ids: tuple[int, ...] = ()
    codes: bytes = b""
    text: str = ""
    audio: bytes | None = b""
    answers: str | None = None
    calls: tuple[ToolCall, ...] = ()
    """Function calls, after this unit's text and audio, also where the audio is rendered later."""
    output_format: AudioFormat | None = None
    """Format of `audio` where no response was in progress to pin one: a unit may begin a response unasked."""
    late: bool = False
    """Heard in silence, because the input had waited too long; nothing else follows from it."""


class OutputRendered(Event, tag="or1", frozen=True):
    """
    A part of a unit's audio, rendered later; the fold takes the next part of the oldest unit that waits.

    `first_sample` counts from the start of the unit's audio, in the output format; `last`: it is whole.
    """

    unit: int
    part: int
    first_sample: int
    audio: bytes
    last: bool


class SideOutput(Event, tag="so2", frozen=True):
    """A piece of a response outside the conversation; `last` ends it, with `failed` without success."""

    response_id: str
    text: str = ""
    audio: bytes = b""
    calls: tuple[ToolCall, ...] = ()
    tokens: Count = 0
    last: bool = True
    failed: bool = False


class InputTranscribed(Event, tag="it2", frozen=True):
    """
    The transcription stage is done with a user item.

    `error` is for clients: a short reason, never an exception.
    """

    item_id: str
    text: str = ""
    duration_ms: Count = 0
    error: str | None = None


class ModelFailed(Event, tag="mf1", frozen=True):
    """
    The worker of this stamp cannot go on with this session.

    `reason` is for operators, never for clients.
    """

    reason: str


class DeadlineKind(StrEnum):
    """
    What a session can run out of.

    WARNING announces MAXIMUM; SILENCE is turn detection's `idle_timeout_ms`.
    """

    IDLE = "idle"
    GRACE = "grace"
    WARNING = "warning"
    MAXIMUM = "maximum"
    SILENCE = "silence"


class DeadlinePassed(Event, tag="dp1", frozen=True):
    """Somebody saw this deadline pass. Takes effect if it is the session's own and the entry is not early."""

    kind: DeadlineKind
    due_ms: int


class OutboundDigest(Event, tag="od1", frozen=True):
    """
    What a gateway had folded and projected so far, for `verify` to compare with. Changes no state.

    `sha256` is the hash chain over the canonical outbound events up to `seq`. `upto` is the last entry folded
    into it, and `crc32` the running checksum of every entry up to there: audio of the user's changes no
    outbound event, and damage to it is found all the same. `upto` (0, 0): the gateway gave no checksum.
    """

    seq: int
    sha256: bytes
    upto: tuple[int, int] = (0, 0)
    crc32: int = 0


AnyEvent: TypeAlias = (
    SessionOpened
    | ClientAttached
    | ClientDetached
    | WorkerAssigned
    | AssignmentDeclined
    | ServingBegan
    | SpeechStarted
    | SpeechStopped
    | ModelUnitCompleted
    | OutputRendered
    | SideOutput
    | InputTranscribed
    | ModelFailed
    | DeadlinePassed
    | OutboundDigest
)
