"""From a client event to its command: one function each, and one table of what is not served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from msgspec import UNSET, UnsetType

from api.codec import client
from api.codec.context import CodecContext
from api.codec.formats import ENCODINGS
from api.codec.session import session_patch
from api.errors import CodecError
from session_core import commands as cmd
from session_core.audio import Encoding
from session_core.items import Item, ItemType, Part, Role

MAX_AUDIO_BYTES = 15 << 20
"""Of one append, decoded: OpenAI's limit."""

UNSUPPORTED: dict[type[client.ClientEvent], str] = {
    client.TextAppend: "native_text_append_unsupported",
    client.ItemRetrieve: "unsupported_event",
    client.ItemDelete: "unsupported_event",
    client.ItemTruncate: "unsupported_event",
    client.OutputClear: "unsupported_event",
    client.BargeIn: "barge_in_unsupported",
    client.TurnSignal: "unsupported_event",
    client.TranscriptionSessionUpdate: "unsupported_event",
}
"""Events of the contract without a command in the session core, with their code. Subclasses are aliases."""


def to_command(event: client.AnyClientEvent, context: CodecContext) -> cmd.AnyCommand:
    """Give the command that an event asks for.

    Raises:
        CodecError: the event names something that cannot be journaled, or is not served.
    """
    try:
        return _COMMANDS[type(event)](event, context)
    except CodecError as error:
        error.event_id = event.event_id
        raise


# --- the session and life signs -----------------------------------------------------------------------------


def _update(event: client.SessionUpdate, context: CodecContext) -> cmd.AnyCommand:
    return cmd.UpdateSession(session_patch(event.session, context), event.event_id)


def _heartbeat(event: client.SessionHeartbeat, context: CodecContext) -> cmd.AnyCommand:
    return cmd.Heartbeat(event.event_id)


def _ack(event: client.SessionEventAck, context: CodecContext) -> cmd.AnyCommand:
    """An attachment's first message shows that its client has the token; more than that an ack never says."""
    return cmd.ConfirmAttachment()


def _close(event: client.SessionClose, context: CodecContext) -> cmd.AnyCommand:
    return cmd.CloseSession(event.event_id)


def _resume(event: client.SessionResume, context: CodecContext) -> cmd.AnyCommand:
    code = context.code("invalid_value", "bad_event")
    raise CodecError(code, "A session is resumed by the first message of a new connection.", param="type")


def _playback(event: client.PlaybackAck, context: CodecContext) -> cmd.AnyCommand:
    response_id = event.response_id
    if response_id is None and event.item_id is not None:
        # An assistant item is named after its response.
        response_id = event.item_id.removeprefix("item_")
    committed_ms = None if event.committed_ms is None else int(event.committed_ms)
    return cmd.AckPlayback(int(event.played_ms), committed_ms, response_id, event.event_id)


# --- input --------------------------------------------------------------------------------------------------


def _append(event: client.AudioAppend, context: CodecContext) -> cmd.AnyCommand:
    audio, audio_format = event.audio, context.config.input_format
    if event.format or event.sample_rate_hz:
        _check_format(event, context)
    if event.video_frames:
        raise _invalid(context, "invalid_video_frames", "No served model takes video.", "video_frames")
    if not audio or len(audio) % audio_format.sample_bytes:
        message = f"Invalid value: 'audio' is no whole number of {audio_format.encoding} samples."
        raise _invalid(context, "bad_audio", message, "audio")
    if len(audio) > MAX_AUDIO_BYTES:
        message = f"Invalid value: 'audio' is longer than {MAX_AUDIO_BYTES} bytes."
        raise _invalid(context, "event_too_large", message, "audio")
    if audio_format.encoding is Encoding.PCM_F32LE and not np.isfinite(np.frombuffer(audio, "<f4")).all():
        raise _invalid(
            context, "bad_audio", "Invalid value: 'audio' holds samples that are not finite.", "audio"
        )
    return cmd.AppendAudio(audio, event.event_id)


def _check_format(event: client.AudioAppend, context: CodecContext) -> None:
    """An append may repeat the session's format; to change it takes an update."""
    audio_format = context.config.input_format
    if event.format and ENCODINGS.get(event.format.lower()) is not audio_format.encoding:
        message = f"The session's input format is {audio_format.encoding}; change it by session.update."
        raise _invalid(context, "unsupported_audio_format", message, "format")
    if event.sample_rate_hz and event.sample_rate_hz != audio_format.sample_rate_hz:
        message = (
            f"The session's input rate is {audio_format.sample_rate_hz} Hz; change it by session.update."
        )
        raise _invalid(context, "unsupported_audio_format", message, "sample_rate_hz")


def _commit(event: client.AudioCommit, context: CodecContext) -> cmd.AnyCommand:
    respond = event.create_response if event.response_create is None else event.response_create
    return cmd.CommitInput(respond, event.is_speech is not False, event.event_id)


def _input_commit(event: client.InputCommit, context: CodecContext) -> cmd.AnyCommand:
    respond = event.create_response if event.response_create is None else event.response_create
    return cmd.CommitInput(respond is not False, event.is_speech is not False, event.event_id)


def _clear(event: client.AudioClear, context: CodecContext) -> cmd.AnyCommand:
    return cmd.ClearInput(event_id=event.event_id)


def _input_cancel(event: client.InputCancel, context: CodecContext) -> cmd.AnyCommand:
    return cmd.ClearInput(cancel_turn=True, event_id=event.event_id)


# --- conversation -------------------------------------------------------------------------------------------


def _item_create(event: client.ItemCreate, context: CodecContext) -> cmd.AnyCommand:
    return cmd.CreateItem(_item(event.item, context), event.previous_item_id, event.event_id)


def _item(item: client.WireItem, context: CodecContext) -> Item:
    item_id = item.id or ""
    match item.type:
        case "message":
            if item.role is None:
                raise _missing(context, "item.role")
            parts = tuple(
                _part(part, Role(item.role), context, f"item.content[{index}]")
                for index, part in enumerate(item.content or ())
            )
            return Item(item_id, role=Role(item.role), parts=parts)
        case "function_call":
            if not item.name:
                raise _missing(context, "item.name")
            return Item(
                item_id,
                ItemType.FUNCTION_CALL,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments or "",
            )
        case "function_call_output":
            if not item.call_id:
                raise _missing(context, "item.call_id")
            if item.output is None:
                raise _missing(context, "item.output")
            return Item(item_id, ItemType.FUNCTION_CALL_OUTPUT, call_id=item.call_id, output=item.output)


def _part(part: client.WirePart, role: Role, context: CodecContext, param: str) -> Part:
    """Text under each of its names; audio only as its transcript, since history does not carry audio."""
    assistant = role is Role.ASSISTANT
    if part.type in ("text", "output_text" if assistant else "input_text"):
        if part.text is None:
            raise _missing(context, f"{param}.text")
        return Part("output_text" if assistant else "input_text", part.text)
    if part.type in ("audio", "output_audio" if assistant else "input_audio"):
        if part.audio or part.transcript is None:
            message = "Audio in conversation items is not supported; give its transcript."
            code = context.code("unsupported_content_type", "invalid_input_modality")
            raise CodecError(code, message, param=f"{param}.type")
        return Part("output_audio" if assistant else "input_audio", part.transcript)
    code = context.code("unsupported_content_type", "invalid_input_modality")
    raise CodecError(code, "This content type is not supported for this role.", param=f"{param}.type")


# --- responses ----------------------------------------------------------------------------------------------


def _create(event: client.ResponseCreate, context: CodecContext) -> cmd.AnyCommand:
    given = event.response
    if given is None:
        return cmd.CreateResponse(event_id=event.event_id)
    if given.conversation not in (UNSET, None, "auto"):
        message = "Responses outside the conversation are not supported."
        raise _invalid(context, "unsupported_event", message, "response.conversation")
    if given.input is not UNSET and given.input is not None:
        message = "A response's own input is not supported."
        raise _invalid(context, "unsupported_event", message, "response.input")
    if given.output_modalities and "audio" not in given.output_modalities:
        message = "Responses without audio are not served."
        raise _invalid(context, "unsupported_event", message, "response.output_modalities")
    tokens = given.max_output_tokens
    if tokens is UNSET:
        tokens = given.max_response_output_tokens
    options = cmd.ResponseOptions(
        instructions=UNSET if given.instructions is None else given.instructions,
        max_output_tokens=_limit(tokens),
        metadata=given.metadata,
    )
    return cmd.CreateResponse(options, event.event_id)


def _limit(tokens: int | str | UnsetType | None) -> int | UnsetType | None:
    return None if isinstance(tokens, str) else tokens


def _cancel(event: client.ResponseCancel, context: CodecContext) -> cmd.AnyCommand:
    return cmd.CancelResponse(event.response_id, event.event_id)


# --- refusals -----------------------------------------------------------------------------------------------


def _unsupported(event: client.ClientEvent, context: CodecContext) -> cmd.AnyCommand:
    code = next(code for kind, code in UNSUPPORTED.items() if isinstance(event, kind))
    raise CodecError(code, "This session does not support this event.", param="type")


def _missing(context: CodecContext, param: str) -> CodecError:
    code = context.code("missing_required_parameter", "bad_event")
    return CodecError(code, f"Missing required parameter: '{param}'.", param=param)


def _invalid(context: CodecContext, duplex_code: str, message: str, param: str) -> CodecError:
    return CodecError(context.code("invalid_value", duplex_code), message, param=param)


_Mapping: TypeAlias = Callable[[Any, CodecContext], cmd.AnyCommand]
"""The event's type is fixed by the table, which mypy cannot follow."""

_COMMANDS: dict[type[client.ClientEvent], _Mapping] = {
    client.SessionUpdate: _update,
    client.SessionHeartbeat: _heartbeat,
    client.SessionEventAck: _ack,
    client.SessionClose: _close,
    client.CloseSessionAlias: _close,
    client.CloseAlias: _close,
    client.SessionResume: _resume,
    client.AudioAppend: _append,
    client.AudioCommit: _commit,
    client.InputCommit: _input_commit,
    client.AudioClear: _clear,
    client.InputCancel: _input_cancel,
    client.ItemCreate: _item_create,
    client.ResponseCreate: _create,
    client.ResponseCancel: _cancel,
    client.PlaybackAck: _playback,
    client.PlaybackAckAlias: _playback,
    client.TextAppend: _unsupported,
    client.TextAppendAlias: _unsupported,
    client.PushTextAlias: _unsupported,
    client.ItemRetrieve: _unsupported,
    client.ItemDelete: _unsupported,
    client.ItemTruncate: _unsupported,
    client.OutputClear: _unsupported,
    client.BargeIn: _unsupported,
    client.TurnSignal: _unsupported,
    client.TurnSignalAlias: _unsupported,
    client.TranscriptionSessionUpdate: _unsupported,
}
