"""The state of a session: one immutable tree, the fold of its journal. Nobody stores it, everybody derives it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from session_core.audio import AudioFormat, ticks_to_samples
from session_core.commands import ResponseOptions
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.items import Item
from session_core.journal import Position


class Phase(StrEnum):
    """NEW: no `SessionOpened` yet. OPEN: alive, with or without client and worker. ENDED: nothing changes any more."""

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
    """The worker's hold on the session. `worker` is None before the first and after a declined or failed one."""

    generation: int = 0
    worker: str | None = None
    last_n: int = 0
    completed_units: int = 0
    """Units completed by this generation."""
    barren: int = 0
    """Generations in a row, before this one, that had work to do and completed no unit."""


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
    last_client_event_id: str | None = None

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


class Response(Struct, frozen=True):
    """The response in progress. It leaves the state when it ends; its item stays in the history."""

    response_id: str
    item_id: str
    output_format: AudioFormat
    """Pinned at its beginning: a format change takes effect at the next response."""
    options: ResponseOptions = ResponseOptions()
    requested: bool = False
    """Asked for by a command or by turn detection, as opposed to the model's own decision."""
    speaking: bool = False
    """The output item is open."""
    turn_ended: bool = False
    """The model said its last unit; rendered parts may still be due."""
    transcript: str = ""
    output_tokens: int = 0
    samples: int = 0
    """Audio samples given out, in the output format."""


class Render(Struct, frozen=True):
    """A unit of the response in progress whose audio comes later, part by part."""

    unit: int
    next_part: int = 0
    next_sample: int = 0


class Playback(Struct, frozen=True):
    """The playback ledger of the newest response that spoke."""

    response_id: str = ""
    item_id: str = ""
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0
    frozen: bool = False
    """The heard point is fixed: the response was interrupted and something newer uses it."""


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
    renders: tuple[Render, ...] = ()
    playback: Playback = Playback()
    history: tuple[Item, ...] = ()
    active_ms: int = 0
    """When the client last did something."""
    warned: bool = False
    """The session maximum was announced."""
    end_reason: EndReason | None = None

    @property
    def now_ms(self) -> int:
        """The session's time: that of its last entry."""
        return self.position[0]
