"""Commands: what a client asked for. Appended by the gateway that holds the client's attachment.

Each is journaled with a stable tag: two letters and the schema version. A tag is never used again for another
meaning; a new field goes to the end with a default. `event_id` is the client's own id of its event, echoed in errors.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType

from session_core.config import SessionPatch
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
    """Seal the buffer into a user item.

    `respond`: True asks for a response, False for none, None leaves it to the session. `speech` False declares that
    the buffer holds no speech.
    """

    respond: bool | None = None
    speech: bool = True
    event_id: str | None = None


class ClearInput(Command, tag="cl1", frozen=True):
    """Drop what is not committed. `cancel_turn`: also start a new epoch, so that output in the making is muted."""

    cancel_turn: bool = False
    event_id: str | None = None


class CreateItem(Command, tag="ic1", frozen=True):
    """Put an item into the history, after `previous_item_id` (None: at the end, "root": at the head)."""

    item: Item
    previous_item_id: str | None = None
    event_id: str | None = None


class ResponseOptions(Struct, frozen=True, omit_defaults=True):
    """Overrides for one response; they never reach the session's configuration."""

    instructions: str | UnsetType = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    metadata: dict[str, str] | None = None


class CreateResponse(Command, tag="rc1", frozen=True):
    """Ask for a response."""

    options: ResponseOptions = ResponseOptions()
    event_id: str | None = None


class CancelResponse(Command, tag="rx1", frozen=True):
    """Stop the active response, or the named one if it is the active one."""

    response_id: str | None = None
    event_id: str | None = None


class AckPlayback(Command, tag="pa1", frozen=True):
    """The client played the response's audio up to `played_ms` (cumulative)."""

    played_ms: int
    committed_ms: int | None = None
    response_id: str | None = None
    event_id: str | None = None


class Heartbeat(Command, tag="hb1", frozen=True):
    """The client is alive. Gateways journal at most one a second."""

    event_id: str | None = None


class ConfirmAttachment(Command, tag="at1", frozen=True):
    """The attachment's client spoke, in a message that is not journaled itself. Confirms the offered token."""


class CloseSession(Command, tag="cs1", frozen=True):
    """End the session gracefully."""

    event_id: str | None = None


AnyCommand: TypeAlias = (
    UpdateSession
    | AppendAudio
    | CommitInput
    | ClearInput
    | CreateItem
    | CreateResponse
    | CancelResponse
    | AckPlayback
    | Heartbeat
    | ConfirmAttachment
    | CloseSession
)
