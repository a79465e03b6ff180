"""
The state of a session: one immutable tree, the fold of its journal.

Nobody stores it, everybody derives it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from session_core.audio import AudioFormat, ticks_to_samples
from session_core.commands import ResponseOptions
from session_core.config import Dialect, Limits, Modality, ModelProfile, SessionConfig, Way
from session_core.events import ToolCall
from session_core.items import Item, Mark
from session_core.journal import Position


class Phase(StrEnum):
    """
    NEW: no `SessionOpened` yet.

    OPEN: alive, with or without client and worker. ENDED: nothing changes any more.
    """

    NEW = "new"
    OPEN = "open"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a session ended."""

    CLOSED = "closed"
    IDLE = "idle_timeout"
    GRACE = "disconnect_grace"
    MAXIMUM = "session_maximum"
    ENGINE_ERROR = "engine_error"
    INTERNAL_ERROR = "internal_error"


class Pinned(Struct, frozen=True):
    """What `SessionOpened` fixed for good. The defaults stand for a session that is not opened yet."""

    session_id: str = ""
    opened_ms: int = 0
    profile: ModelProfile = ModelProfile(model="")
    limits: Limits = Limits()
    way: Way = Way.OPENAI
    dialect: Dialect = Dialect.GA
    reducer_version: int = 0


class Attachment(Struct, frozen=True):
    """The client's hold on the session. Generation 0: no client has attached yet."""

    generation: int = 0
    attachment_id: str = ""
    gateway: str = ""
    attached: bool = False
    since_ms: int = 0
    """When the client attached or, if it is gone, when it was lost."""
    last_n: int = 0
    """Number of the last append taken from this attachment."""
    offered_hash: bytes | None = None
    """Hash of the token that this attachment was given and has not yet shown to have. None: confirmed."""
    confirmed_hash: bytes | None = None
    """Hash of the newest token that a client is known to have."""


class WorkerHold(Struct, frozen=True):
    """
    The worker's hold on the session.

    `worker` is None before the first and after a declined or failed one.
    """

    generation: int = 0
    worker: str | None = None
    last_n: int = 0
    serving: bool = False
    """This generation has begun to work, as opposed to waiting for its turn."""
    completed_units: int = 0
    """Units completed by this generation."""
    barren: int = 0
    """Generations in a row, before this one, that had work to do and completed no unit."""


class Arrival(NamedTuple):
    """From `sample` of the input on, it came at `ms` or, at the pace of speech, after it."""

    sample: int
    ms: int


class Input(Struct, frozen=True):
    """The input buffer and the receipts for it. Counts only; the samples lie in the journal."""

    received_bytes: int = 0
    """Decoded input bytes taken into the session since it opened."""
    received_ticks: int = 0
    """The same as audio time."""
    committed_samples: int = 0
    """Everything before is committed or cleared. At the model's rate, like all samples here."""
    speech_from: int | None = None
    """Where the user's speech began, while it lasts."""
    speech_item_id: str | None = None
    """The id promised to the item of that speech."""
    pending_bytes: int = 0
    """Received and not yet taken by a unit."""
    text: str = ""
    """Text pushed into the turn that is being spoken."""
    last_client_event_id: str | None = None
    arrivals: tuple[Arrival, ...] = ()
    """When the input came that no unit has taken yet: its beginning, and wherever it fell behind the pace."""

    def received_samples(self, sample_rate_hz: int) -> int:
        """Samples at the model's rate that the input received so far amounts to."""
        return ticks_to_samples(self.received_ticks, sample_rate_hz)


class UnitClock(Struct, frozen=True):
    """How far the model has moved on in input time."""

    next_unit: int = 0
    consumed_samples: int = 0
    """Input before this was taken by a unit, or cleared before one took it."""
    covered_ms: int = 0
    """Journal time up to which units cover the input; past it, plus the grace, silence stands in."""
    silent_units: int = 0
    """Units in a row that held nothing but silence while the model listened."""


class Message(Struct, frozen=True):
    """The output item that a response is saying right now."""

    item_id: str
    index: int
    """Its place among the response's output items."""
    modality: Modality
    text: str = ""
    samples: int = 0
    """Audio given out, in the response's output format."""
    marks: tuple[Mark, ...] = ()
    heard_samples: int | None = None
    """Set when the client truncates the item while it is being said."""


class Response(Struct, frozen=True):
    """A response in progress. It leaves the state when it ends; its items stay in the history."""

    response_id: str
    output_format: AudioFormat
    """Pinned at its beginning: a format change takes effect at the next response."""
    modality: Modality = Modality.AUDIO
    options: ResponseOptions = ResponseOptions()
    requested: bool = False
    """Asked for by a command or by turn detection, as opposed to the model's own decision."""
    after_sample: int = 0
    """Input before this came before the response; before one that was asked for, the model is to hear it."""
    message: Message | None = None
    outputs: tuple[Item, ...] = ()
    """Its finished items."""
    turn_ended: bool = False
    """The model said its last unit; rendered parts may still be due."""
    calls: tuple[ToolCall, ...] = ()
    """Function calls that wait until the audio before them is rendered."""
    output_tokens: int = 0

    @property
    def begun(self) -> bool:
        """The model has begun to give output."""
        return self.message is not None or bool(self.outputs)


class Render(Struct, frozen=True):
    """A unit of the response in progress whose audio comes later, part by part."""

    unit: int
    chars: int
    """The message's text up to the end of this unit's."""
    next_part: int = 0
    next_sample: int = 0


class Playback(Struct, frozen=True):
    """The playback ledger of the newest message with audio."""

    response_id: str = ""
    item_id: str = ""
    output_format: AudioFormat = AudioFormat()
    began_ms: int = 0
    """When its first audio was given out."""
    earlier_ms: int = 0
    """Audio of the response's earlier messages: clients count playing time by response, not by message."""
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0
    acknowledged: bool = False
    """The client tells what it plays; otherwise playing is assumed to keep pace with time."""
    interrupted: bool = False
    settled: bool = False
    """The heard point is fixed: later acks move the ledger and leave the history alone."""

    @property
    def ends_ms(self) -> int:
        """When a client that plays at once has played everything."""
        return self.began_ms + self.sent_ms


class Rate(Struct, frozen=True):
    """What was used of one rate limit in its present window."""

    window_from_ms: int = 0
    used: int = 0


class State(Struct, frozen=True):
    """Everything that a process needs to know of a session at one position of its journal."""

    pinned: Pinned = Pinned()
    config: SessionConfig = SessionConfig(model="")
    phase: Phase = Phase.NEW
    position: Position = (0, 0)
    """The last folded entry; its milliseconds are the session's time."""
    seq: int = 0
    """`server_event_seq` of the last outbound session event."""
    epoch: int = 0
    turn: int = 0
    """Turns begun: one more with each commit and each response the model starts by itself."""
    attachment: Attachment = Attachment()
    worker: WorkerHold = WorkerHold()
    input: Input = Input()
    clock: UnitClock = UnitClock()
    response: Response | None = None
    side: tuple[Response, ...] = ()
    """Responses outside the conversation, in progress beside it."""
    renders: tuple[Render, ...] = ()
    playback: Playback = Playback()
    history: tuple[Item, ...] = ()
    transcribing: tuple[str, ...] = ()
    """User items whose transcription is due, oldest first."""
    rates: tuple[Rate, ...] = ()
    """One per configured rate limit."""
    active_ms: int = 0
    """When the client last did something."""
    warned: bool = False
    """The session maximum was announced."""
    end_reason: EndReason | None = None

    @property
    def now_ms(self) -> int:
        """The session's time: that of its last entry."""
        return self.position[0]
