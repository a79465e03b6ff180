"""
Changes: what an entry, once accepted, means for the session. Decided by the reducer, never journaled.

`decide` gives them, `evolve` applies them, `project` tells them to clients, and a worker feeds its model by
them: whoever acts on the journal acts on changes, because only they have passed the one function that
refuses.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from session_core.config import SessionConfig
from session_core.errors import Refusal
from session_core.events import ModelUnitCompleted, ToolCall
from session_core.items import Item, ItemStatus
from session_core.state import Attachment, EndReason, Message, Pinned, Response


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


class ServingBegan(Change, frozen=True):
    """The worker begins to work on the session."""


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


class ItemRetrieved(Change, frozen=True):
    """The client wants to see `item`."""

    item: Item


class ItemDeleted(Change, frozen=True):
    """The item is out of the history."""

    item_id: str


class ItemTruncated(Change, frozen=True):
    """The item's audio was heard up to `heard_samples` of its output format."""

    item_id: str
    content_index: int
    audio_end_ms: int
    heard_samples: int


class TextReceived(Change, frozen=True):
    """Text came into the turn."""

    text: str


class SpeechBegan(Change, frozen=True):
    """The user speaks."""

    sample: int
    item_id: str


class SpeechEnded(Change, frozen=True):
    """
    The user stopped.

    `item_id` is what the speech becomes, unless a manual commit already took all of it.
    """

    sample: int
    item_id: str


class UnitTaken(Change, frozen=True):
    """The unit counts for the clock and stands in the context. `muted`: it projects nothing."""

    unit: ModelUnitCompleted
    muted: bool


class ResponseBegan(Change, frozen=True):
    """A response is in progress; `outside` the conversation or in it."""

    response: Response


class MessageOpened(Change, frozen=True):
    """The response begins to say an item."""

    message: Message


class Spoken(Change, frozen=True):
    """The open message goes on by what a unit said. `audio` None: it follows in parts."""

    unit: int
    audio: bytes | None
    text: str = ""
    end_of_turn: bool = False


class PartRendered(Change, frozen=True):
    """A part of the audio that a unit left for later. `last_part`: the unit's audio is whole."""

    audio: bytes
    last_part: bool
    end_of_turn: bool


class MessageClosed(Change, frozen=True):
    """The open message is over: whole, or as far as it was heard."""

    status: ItemStatus


class CallMalformed(Change, frozen=True):
    """The model wrote a call that nobody can make; it stands in no history."""

    response_id: str
    call: ToolCall


class ToolCalled(Change, frozen=True):
    """The response calls a function."""

    call: ToolCall


class CallsDelayed(Change, frozen=True):
    """Function calls wait until the audio before them is rendered."""

    calls: tuple[ToolCall, ...]


class TurnEnded(Change, frozen=True):
    """The model said its last unit; the response ends with the last part of its audio."""


class Listened(Change, frozen=True):
    """The model was asked and goes on listening."""

    response_id: str | None


class ResponseEnded(Change, frozen=True):
    """The response in progress is over; its message was closed before."""

    status: str
    reason: str | None = None
    cause: str | None = None


class SideSpoken(Change, frozen=True):
    """A response outside the conversation gives more of its one message, or works on its calls."""

    response_id: str
    text: str
    audio: bytes
    tokens: int


class SideEnded(Change, frozen=True):
    """A response outside the conversation is over."""

    response_id: str
    status: str
    reason: str | None = None
    cause: str | None = None
    calls: tuple[ToolCall, ...] = ()


class OutputCleared(Change, frozen=True):
    """Output audio that was not heard is void."""

    response_id: str


class OverlapDecided(Change, frozen=True):
    """What the user's speech does to the response in progress."""

    action: str
    reason: str


class Signalled(Change, frozen=True):
    """A turn transition that the client saw."""

    signal: str


class Transcribed(Change, frozen=True):
    """A user item has its transcript, or will have none."""

    item_id: str
    text: str
    duration_ms: int
    error: str | None


class SilencePassed(Change, frozen=True):
    """The user said nothing for turn detection's idle timeout."""

    first_sample: int
    end_sample: int
    item_id: str


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


class Ended(Change, frozen=True):
    """The session is over."""

    reason: EndReason


AnyChange: TypeAlias = (
    Opened
    | Attached
    | AttachRefused
    | Detached
    | Assigned
    | ServingBegan
    | Unassigned
    | ConfigChanged
    | AudioReceived
    | AudioCommitted
    | InputDropped
    | ItemInserted
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TextReceived
    | SpeechBegan
    | SpeechEnded
    | UnitTaken
    | ResponseBegan
    | MessageOpened
    | Spoken
    | PartRendered
    | MessageClosed
    | CallMalformed
    | ToolCalled
    | CallsDelayed
    | TurnEnded
    | Listened
    | ResponseEnded
    | SideSpoken
    | SideEnded
    | OutputCleared
    | OverlapDecided
    | Signalled
    | Transcribed
    | SilencePassed
    | EpochAdvanced
    | PlaybackMoved
    | HeartbeatSeen
    | Refused
    | Warned
    | Ended
)
