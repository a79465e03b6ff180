"""Conversation items as clients write them, and the items of the history that they mean."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, json

from api.codec.context import CodecContext
from api.codec.values import invalid, missing
from api.errors import CodecError
from session_core.items import Item, ItemType, Part, Role

ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]

MAX_ITEM_BYTES = 512 << 10
"""Of one item as JSON: the events that show it stay below the largest frame that clients take."""


class WirePart(Struct, frozen=True):
    """A content part of a message."""

    type: str
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None


class WireMessage(Struct, frozen=True, tag="message", tag_field="type"):
    """Something that somebody said."""

    id: ItemId | None = None
    role: Literal["user", "assistant", "system"] | None = None
    content: tuple[WirePart, ...] | None = None


class WireCall(Struct, frozen=True, tag="function_call", tag_field="type"):
    """A call that the model made."""

    id: ItemId | None = None
    call_id: CallId | None = None
    name: str | None = None
    arguments: str | None = None


class WireCallOutput(Struct, frozen=True, tag="function_call_output", tag_field="type"):
    """What a call gave."""

    id: ItemId | None = None
    call_id: CallId | None = None
    output: str | None = None


class WireReference(Struct, frozen=True, tag="item_reference", tag_field="type"):
    """An item of the history, by id; in a response's own input only."""

    id: ItemId


WireItem: TypeAlias = WireMessage | WireCall | WireCallOutput
WireInputItem: TypeAlias = WireItem | WireReference


def item(given: WireInputItem, context: CodecContext, param: str) -> Item:
    """
    Give the item that a client means; its id is empty if the client gave none.

    Raises:
        CodecError: something is missing, too large, or of a kind that is not served.
    """
    if len(json.encode(given)) > MAX_ITEM_BYTES:
        message = f"Invalid value: '{param}' is larger than {MAX_ITEM_BYTES} bytes."
        raise invalid(context, "event_too_large", message, param)
    match given:
        case WireMessage():
            return _message(given, context, param)
        case WireCall():
            if not given.name:
                raise missing(context, f"{param}.name")
            return Item(
                given.id or "",
                ItemType.FUNCTION_CALL,
                call_id=given.call_id,
                name=given.name,
                arguments=given.arguments or "",
            )
        case WireCallOutput():
            if given.call_id is None:
                raise missing(context, f"{param}.call_id", "invalid_function_call_output")
            if given.output is None:
                raise missing(context, f"{param}.output", "invalid_function_call_output")
            return Item(
                given.id or "", ItemType.FUNCTION_CALL_OUTPUT, call_id=given.call_id, output=given.output
            )
        case WireReference():
            return Item(given.id, ItemType.REFERENCE)


def _message(given: WireMessage, context: CodecContext, param: str) -> Item:
    if given.role is None:
        raise missing(context, f"{param}.role")
    role = Role(given.role)
    parts = tuple(
        _part(part, role, context, f"{param}.content[{index}]")
        for index, part in enumerate(given.content or ())
    )
    return Item(given.id or "", role=role, parts=parts)


def _part(part: WirePart, role: Role, context: CodecContext, param: str) -> Part:
    """Text under each of its names; audio only as its transcript, since items bring none into the journal."""
    side = "output" if role is Role.ASSISTANT else "input"
    if part.type in ("text", "input_text", "output_text"):
        if part.text is None:
            raise missing(context, f"{param}.text")
        return Part(f"{side}_text", part.text)
    code = context.code("unsupported_content_type", "invalid_input_modality")
    if part.type in ("audio", "input_audio", "output_audio"):
        if part.audio or part.transcript is None:
            message = "Audio in conversation items is not supported; append it to the input buffer instead."
            raise CodecError(code, message, param=f"{param}.type")
        return Part(f"{side}_audio", part.transcript)
    raise CodecError(code, "This content type is not supported.", param=f"{param}.type")
