"""
Commands: what a client asked for. Appended by the gateway that holds the client's attachment.

Each is journaled with a stable tag: two letters and the schema version. A tag is never used again for another
meaning; a new field goes to the end with a default. `event_id` is the client's own id of its event, echoed in
errors.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType

from session_core.audio import Count
from session_core.config import JsonObject, Modality, SessionPatch, Tool
from session_core.items import Item


class Command(Struct, frozen=True, array_like=True, gc=False):
    """Base of all commands."""


class UpdateSession(Command, tag="us1", frozen=True):
    """Merge `patch` into the configuration, all of it or nothing."""

    patch: SessionPatch
    event_id: str | None = None


class AppendAudio(Command, tag="aa1", frozen=True):
    """Add audio to the input buffer: whole samples in the session's input format, no base64."""

    audio: bytes
    event_id: str | None = None


class CommitInput(Command, tag="ci1", frozen=True):
    """
    Seal the buffer into a user item.

    `respond`: True asks for a response, False for none, None leaves it to the session. `speech` False
    declares that the buffer holds no speech.
    """

    respond: bool | None = None
    speech: bool = True
    event_id: str | None = None


class ClearInput(Command, tag="cl1", frozen=True):
    """
    Drop what is not committed.

    `cancel_turn`: also start a new epoch, so that output in the making is muted.
    """

    cancel_turn: bool = False
    event_id: str | None = None


class CreateItem(Command, tag="ic1", frozen=True):
    """Put an item into the history, after `previous_item_id` (None: at the end, "root": at the head)."""

    item: Item
    previous_item_id: str | None = None
    event_id: str | None = None


class RetrieveItem(Command, tag="ir1", frozen=True):
    """Show an item as the history holds it."""

    item_id: str
    event_id: str | None = None


class DeleteItem(Command, tag="id1", frozen=True):
    """Take an item out of the history."""

    item_id: str
    event_id: str | None = None


class TruncateItem(Command, tag="it1", frozen=True):
    """Cut an assistant's audio and its transcript to what the user heard."""

    item_id: str
    content_index: Count
    audio_end_ms: Count
    event_id: str | None = None


class AppendText(Command, tag="ta1", frozen=True):
    """Add text to the turn that is being spoken."""

    text: str
    event_id: str | None = None


class ResponseOptions(Struct, frozen=True, omit_defaults=True):
    """Overrides for one response; they never reach the session's configuration."""

    instructions: str | UnsetType = UNSET
    output_modality: Modality | UnsetType = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    tools: tuple[Tool, ...] | UnsetType = UNSET
    tool_choice: str | JsonObject | UnsetType = UNSET
    metadata: dict[str, str] | None = None
    outside: bool = False
    """`conversation: "none"`: beside the conversation, from `input` alone or the history, leaving no item."""
    input: tuple[Item, ...] | None = None
    """The response's own context; None: the conversation."""


class CreateResponse(Command, tag="rc1", frozen=True):
    """Ask for a response."""

    options: ResponseOptions = ResponseOptions()
    event_id: str | None = None


class CancelResponse(Command, tag="rx1", frozen=True):
    """Stop the active response, or the named one if it is the active one."""

    response_id: str | None = None
    event_id: str | None = None


class ClearOutput(Command, tag="oc1", frozen=True):
    """Drop output audio that was not heard yet; the response in progress ends."""

    event_id: str | None = None


class BargeIn(Command, tag="bi1", frozen=True):
    """The client heard the user interrupt."""

    event_id: str | None = None


class SignalTurn(Command, tag="ts1", frozen=True):
    """A turn transition that the client saw, told back as `turn.event`."""

    signal: str
    event_id: str | None = None


class AckPlayback(Command, tag="pa1", frozen=True):
    """
    The client played the response's audio up to `played_ms` (cumulative).

    `truncate`: and will play no more of it; the item ends there.
    """

    played_ms: int
    committed_ms: int | None = None
    response_id: str | None = None
    event_id: str | None = None
    truncate: bool = False


class Heartbeat(Command, tag="hb1", frozen=True):
    """The client is alive. Gateways journal at most one a second."""

    event_id: str | None = None


class ConfirmAttachment(Command, tag="at1", frozen=True):
    """
    The attachment's client spoke, in a message that is not journaled itself.

    Confirms the offered token.
    """


class CloseSession(Command, tag="cs1", frozen=True):
    """End the session gracefully."""

    event_id: str | None = None


AnyCommand: TypeAlias = (
    UpdateSession
    | AppendAudio
    | CommitInput
    | ClearInput
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | AppendText
    | CreateResponse
    | CancelResponse
    | ClearOutput
    | BargeIn
    | SignalTurn
    | AckPlayback
    | Heartbeat
    | ConfirmAttachment
    | CloseSession
)
