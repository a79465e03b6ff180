"""Changes: what an entry, once accepted, means for the session. Decided by the reducer, never journaled.

`decide` gives them, `evolve` applies them, `project` tells them to clients, and a worker feeds its model by them: whoever
acts on the journal acts on changes, because only they have passed the one function that refuses.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from session_core.config import SessionConfig
from session_core.errors import Refusal
from session_core.events import DeadlineKind, ModelUnitCompleted
from session_core.items import Item
from session_core.state import Attachment, EndReason, Pinned, Response


class Change(Struct, frozen=True, gc=False):
    """Base of all changes."""


class Opened(Change, frozen=True):
    """The session exists."""

    pinned: Pinned
    config: SessionConfig


class Attached(Change, frozen=True):
    """`attachment` holds the session now. `replaced`: the attachment that was live until here."""

    attachment: Attachment
    received_seq: int | None
    replaced: str | None


class AttachRefused(Change, frozen=True):
    """An attachment that the session does not accept, for that one's gateway to tell."""

    attachment_id: str
    code: str
    message: str


class Detached(Change, frozen=True):
    """The client is gone; the grace period runs."""


class Assigned(Change, frozen=True):
    """`worker` owns the session now."""

    worker: str
    generation: int
    barren: int


class Unassigned(Change, frozen=True):
    """The session waits for another worker."""

    barren: int


class ConfigChanged(Change, frozen=True):
    """A new configuration is in force."""

    config: SessionConfig


class AudioReceived(Change, frozen=True):
    """Audio came in, in the input format in force."""

    audio: bytes
    ticks: int


class AudioCommitted(Change, frozen=True):
    """Input up to `upto_samples` became `item`."""

    item: Item
    upto_samples: int


class InputDropped(Change, frozen=True):
    """Input up to `upto_samples` is void: neither committed nor fed to the model."""

    upto_samples: int


class ItemInserted(Change, frozen=True):
    """`item` stands in the history at `index`."""

    item: Item
    index: int


class SpeechBegan(Change, frozen=True):
    """The user speaks."""

    sample: int
    item_id: str


class SpeechEnded(Change, frozen=True):
    """The user stopped. `item_id` is what the speech becomes, unless a manual commit already took all of it."""

    sample: int
    item_id: str


class UnitTaken(Change, frozen=True):
    """The unit counts for the clock and stands in the context. `muted`: it projects nothing."""

    unit: ModelUnitCompleted
    muted: bool


class ResponseBegan(Change, frozen=True):
    """A response is in progress."""

    response: Response


class Spoken(Change, frozen=True):
    """The response says something. `audio` None: it follows in parts. `unit` is None for such a part."""

    audio: bytes | None
    text: str = ""
    tokens: int = 0
    end_of_turn: bool = False
    unit: int | None = None
    last_part: bool = False


class Listened(Change, frozen=True):
    """The model was asked and goes on listening."""

    response_id: str | None


class ResponseEnded(Change, frozen=True):
    """The response in progress is over."""

    status: str
    reason: str | None = None
    cause: str | None = None


class EpochAdvanced(Change, frozen=True):
    """Output in the making is void from here on."""


class PlaybackMoved(Change, frozen=True):
    """The client heard more of the newest response."""

    played_ms: int
    committed_ms: int


class HeartbeatSeen(Change, frozen=True):
    """The client is alive and wants its receipts."""


class Refused(Change, frozen=True):
    """A command made no sense in this state."""

    refusal: Refusal
    event_id: str | None


class Warned(Change, frozen=True):
    """The session maximum is near."""

    kind: DeadlineKind


class Ended(Change, frozen=True):
    """The session is over."""

    reason: EndReason


AnyChange: TypeAlias = (
    Opened
    | Attached
    | AttachRefused
    | Detached
    | Assigned
    | Unassigned
    | ConfigChanged
    | AudioReceived
    | AudioCommitted
    | InputDropped
    | ItemInserted
    | SpeechBegan
    | SpeechEnded
    | UnitTaken
    | ResponseBegan
    | Spoken
    | Listened
    | ResponseEnded
    | EpochAdvanced
    | PlaybackMoved
    | HeartbeatSeen
    | Refused
    | Warned
    | Ended
)
