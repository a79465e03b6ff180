"""Conversation items as the history holds them. Audio is named by its range, never carried."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from session_core.audio import Count


class ItemType(StrEnum):
    """OpenAI's item types that this service knows."""

    MESSAGE = "message"
    FUNCTION_CALL = "function_call"
    FUNCTION_CALL_OUTPUT = "function_call_output"
    REFERENCE = "item_reference"
    """Stands for the item of that id, in a response's own input; never in the history."""


class Role(StrEnum):
    """Who speaks in a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"


class ItemStatus(StrEnum):
    """How far an item is; the only values strict clients parse."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


class Mark(NamedTuple):
    """From `sample` of the output on, the text up to `chars` characters is being said."""

    sample: Count
    chars: Count


class Part(Struct, frozen=True, omit_defaults=True):
    """
    One content part: text, or audio with its transcript.

    `kind` is the wire's name: input_text, input_audio, output_text, output_audio. For input audio
    `first_sample` and `samples` name a range of the session's input at the model's rate; for output audio
    `samples` counts what was sent.
    """

    kind: str
    text: str | None = None
    first_sample: Count = 0
    samples: Count = 0
    sample_rate_hz: Count = 0
    marks: tuple[Mark, ...] = ()
    heard_samples: Count | None = None
    """How much of the output audio the user heard; None: all of it. What was sent stays known, so it can be
    cut again."""

    @property
    def heard_text(self) -> str | None:
        """The text as far as it was heard."""
        if self.heard_samples is None or self.text is None:
            return self.text
        return self.text[
            : max((mark.chars for mark in self.marks if mark.sample < self.heard_samples), default=0)
        ]


class Item(Struct, frozen=True, omit_defaults=True):
    """One entry of the conversation. Lives in the state until it falls out of the bounded history."""

    item_id: str
    item_type: ItemType = ItemType.MESSAGE
    role: Role | None = None
    status: ItemStatus = ItemStatus.COMPLETED
    parts: tuple[Part, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
