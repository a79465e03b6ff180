"""The overrides of `response.create`, for one response only, and the options that they mean."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, json

from api.codec.context import CodecContext
from api.codec.formats import audio_format
from api.codec.items import MAX_ITEM_BYTES, WireInputItem, item
from api.codec.session import Voice, WireOutput, voice_name
from api.codec.tools import Choice, Tools, tool_choice, tools
from api.codec.values import Modalities, Temperature, Tokens, invalid, modality, token_limit, unknown
from session_core.commands import ResponseOptions
from session_core.config import Dialect, Way
from session_core.items import Item

Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""OpenAI's limits. It is told back in `response.created` and `response.done`."""


class WireResponseAudio(Struct, frozen=True):
    """`response.audio`."""

    output: WireOutput | UnsetType | None = UNSET


class WireResponse(Struct, frozen=True):
    """Overrides for one response, in the spellings of all dialects."""

    conversation: str | UnsetType | None = UNSET
    input: tuple[WireInputItem, ...] | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    metadata: Metadata | None = None
    tools: Tools = UNSET
    tool_choice: Choice = UNSET
    temperature: Temperature | UnsetType | None = UNSET

    output_modalities: Modalities = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET
    audio: WireResponseAudio | UnsetType | None = UNSET

    modalities: Modalities = UNSET
    max_response_output_tokens: Tokens | UnsetType | None = UNSET
    voice: Voice = UNSET
    output_audio_format: str | UnsetType | None = UNSET


_GA_KEYS = ("output_modalities", "audio")
_BETA_KEYS = ("modalities", "max_response_output_tokens", "voice", "output_audio_format")


def response_options(given: WireResponse, context: CodecContext) -> ResponseOptions:
    """
    Give the options that a client means.

    Raises:
        CodecError: something in it is refused; then no response is asked for.
    """
    _check(given, context)
    model = context.config.model
    either = given.output_modalities if given.output_modalities is not UNSET else given.modalities
    limit = (
        given.max_output_tokens if given.max_output_tokens is not UNSET else given.max_response_output_tokens
    )
    return ResponseOptions(
        instructions="" if given.instructions is None else given.instructions,
        output_modality=modality(either, model, context, "response.output_modalities"),
        max_output_tokens=token_limit(limit),
        temperature=given.temperature,
        tools=tools(given.tools, context, "response.tools"),
        tool_choice=tool_choice(given.tool_choice, context, "response.tool_choice"),
        metadata=given.metadata,
        outside=given.conversation == "none",
        input=_input(given, context),
    )


def _input(given: WireResponse, context: CodecContext) -> tuple[Item, ...] | None:
    """The response's own context; empty is not the same as none."""
    if given.input is UNSET or given.input is None:
        return None
    return tuple(item(one, context, f"response.input[{index}]") for index, one in enumerate(given.input))


def _check(given: WireResponse, context: CodecContext) -> None:
    if context.way is Way.OPENAI:
        for key in _BETA_KEYS if context.dialect is Dialect.GA else _GA_KEYS:
            if getattr(given, key) is not UNSET:
                raise unknown(f"response.{key}")
    if given.conversation not in (UNSET, None, "auto", "none"):
        message = "Invalid value: 'response.conversation' is neither 'auto' nor 'none'."
        raise invalid(context, "bad_event", message, "response.conversation")
    if len(json.encode(given)) > MAX_ITEM_BYTES:
        message = f"Invalid value: 'response' is larger than {MAX_ITEM_BYTES} bytes."
        raise invalid(context, "event_too_large", message, "response")
    _check_voice_and_format(given, context)


def _check_voice_and_format(given: WireResponse, context: CodecContext) -> None:
    """Both belong to the session; naming what is in force is no override."""
    out = (given.audio or WireResponseAudio()).output or WireOutput()
    config = context.config
    voice = voice_name(out.voice if out.voice is not UNSET else given.voice, context)
    if voice not in (UNSET, config.voice):
        message = "The voice belongs to the session; change it by session.update."
        raise invalid(context, "unsupported_native_response_options", message, "response.audio.output.voice")
    named = out.format if out.format is not UNSET else given.output_audio_format
    base = config.output_format
    if audio_format(named, out.sample_rate_hz, base, context, "response.audio.output") not in (UNSET, base):
        message = "The output format belongs to the session; change it by session.update."
        raise invalid(context, "unsupported_native_response_options", message, "response.audio.output.format")
