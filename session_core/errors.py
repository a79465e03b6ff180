"""
What can go wrong, by who is at fault.

CoreError
├── UnreadableEntry     the journal holds bytes that no version of this code wrote, or damaged ones
└── BrokenInvariant     an entry of our own making that the fold cannot take

Both end the session they concern and nothing else. What a *client* did wrong is no exception: it is a
`Refusal`, journaled and folded like everything else, and reaches the client as an `error` event.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from session_core.config import Way


class CoreError(Exception):
    """Base of what the core raises."""


class UnreadableEntry(CoreError):
    """An entry that cannot be decoded."""


class BrokenInvariant(CoreError):
    """An accepted entry contradicts the folded state."""


class _Codes(NamedTuple):
    openai: str
    duplex: str


class Cause(Enum):
    """Why a command is refused, with its code on OpenAI's way and on the duplex way."""

    NOTHING_TO_CANCEL = _Codes("response_cancel_not_active", "response_not_active")
    RESPONSE_ACTIVE = _Codes("conversation_already_has_active_response", "response_already_active")
    BUFFER_EMPTY = _Codes("input_audio_buffer_commit_empty", "input_audio_buffer_empty")
    BACKPRESSURE = _Codes("input_backpressure", "input_backpressure")
    DUPLICATE_ITEM = _Codes("item_create_duplicate_item_id", "item_create_duplicate_item_id")
    UNKNOWN_ITEM = _Codes("invalid_value", "item_not_found")
    MODEL_CHANGE = _Codes("invalid_value", "model_update_unsupported")
    VOICE_CHANGE = _Codes("cannot_update_voice", "voice_update_after_audio_unsupported")
    BAD_AUDIO = _Codes("invalid_value", "bad_audio")
    UNKNOWN_ITEM_RETRIEVE = _Codes("item_retrieve_invalid_item_id", "item_not_found")
    UNKNOWN_ITEM_DELETE = _Codes("item_delete_invalid_item_id", "item_not_found")
    UNKNOWN_ITEM_TRUNCATE = _Codes("item_truncate_invalid_item_id", "item_not_found")
    NOT_AUDIO = _Codes("unsupported_content_type", "unsupported_content_type")
    BEYOND_AUDIO = _Codes("invalid_value", "invalid_value")
    UNKNOWN_CALL = _Codes("invalid_value", "invalid_function_call_output")
    BARGE_IN_UNSUPPORTED = _Codes("invalid_value", "barge_in_unsupported")
    NOTHING_TO_CLEAR = _Codes("invalid_value", "response_not_active")
    LIMIT_REACHED = _Codes("rate_limit_exceeded", "resource_exhausted")
    LIVE_TEXT_UNSUPPORTED = _Codes("invalid_value", "native_text_append_unsupported")

    def code(self, way: Way) -> str:
        """The code that clients of this way of opening know."""
        return self.value.openai if way is Way.OPENAI else self.value.duplex


class Refusal(NamedTuple):
    """A command that makes no sense in the state it met."""

    cause: Cause
    message: str
    param: str | None = None
