"""From a client event to its command: one function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from api.codec import client
from api.codec.context import CodecContext
from api.codec.formats import ENCODINGS
from api.codec.items import item
from api.codec.patch import session_patch
from api.codec.response import response_options
from api.codec.values import invalid
from api.errors import CodecError
from session_core import commands as cmd
from session_core.audio import Encoding
from session_core.config import Dialect, Way

MAX_AUDIO_BYTES = 15 << 20
"""Of one append, decoded: OpenAI's limit."""


def to_command(event: client.AnyClientEvent, context: CodecContext) -> cmd.AnyCommand:
    """
    Give the command that an event asks for.

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


def _transcription_update(event: client.TranscriptionSessionUpdate, context: CodecContext) -> cmd.AnyCommand:
    """Beta's second name of an update; GA clients have no such event."""
    if context.way is Way.OPENAI and context.dialect is Dialect.GA:
        raise invalid(context, "unknown_event", "Invalid value: 'type' names no client event.", "type")
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
    return cmd.AckPlayback(int(event.played_ms), committed_ms, response_id, event.event_id, event.truncate)


# --- input --------------------------------------------------------------------------------------------------


def _append(event: client.AudioAppend, context: CodecContext) -> cmd.AnyCommand:
    audio, audio_format = event.audio, context.config.input_format
    if event.format or event.sample_rate_hz:
        _check_format(event, context)
    if event.video_frames:
        raise invalid(context, "invalid_video_frames", "No served model takes video.", "video_frames")
    if not audio or len(audio) % audio_format.sample_bytes:
        message = f"Invalid value: 'audio' is no whole number of {audio_format.encoding} samples."
        raise invalid(context, "bad_audio", message, "audio")
    if len(audio) > MAX_AUDIO_BYTES:
        message = f"Invalid value: 'audio' is longer than {MAX_AUDIO_BYTES} bytes."
        raise invalid(context, "event_too_large", message, "audio")
    if audio_format.encoding is Encoding.PCM_F32LE and not np.isfinite(np.frombuffer(audio, "<f4")).all():
        raise invalid(
            context, "bad_audio", "Invalid value: 'audio' holds samples that are not finite.", "audio"
        )
    return cmd.AppendAudio(audio, event.event_id)


def _check_format(event: client.AudioAppend, context: CodecContext) -> None:
    """An append may repeat the session's format; to change it takes an update."""
    audio_format = context.config.input_format
    if event.format and ENCODINGS.get(event.format.lower()) is not audio_format.encoding:
        message = f"The session's input format is {audio_format.encoding}; change it by session.update."
        raise invalid(context, "unsupported_audio_format", message, "format")
    if event.sample_rate_hz and event.sample_rate_hz != audio_format.sample_rate_hz:
        message = (
            f"The session's input rate is {audio_format.sample_rate_hz} Hz; change it by session.update."
        )
        raise invalid(context, "unsupported_audio_format", message, "sample_rate_hz")


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


def _text(event: client.TextAppend, context: CodecContext) -> cmd.AnyCommand:
    return cmd.AppendText(event.text, event.event_id)


def _item_create(event: client.ItemCreate, context: CodecContext) -> cmd.AnyCommand:
    return cmd.CreateItem(item(event.item, context, "item"), event.previous_item_id, event.event_id)


def _item_retrieve(event: client.ItemRetrieve, context: CodecContext) -> cmd.AnyCommand:
    return cmd.RetrieveItem(event.item_id, event.event_id)


def _item_delete(event: client.ItemDelete, context: CodecContext) -> cmd.AnyCommand:
    return cmd.DeleteItem(event.item_id, event.event_id)


def _item_truncate(event: client.ItemTruncate, context: CodecContext) -> cmd.AnyCommand:
    return cmd.TruncateItem(event.item_id, event.content_index, int(event.audio_end_ms), event.event_id)


# --- responses ----------------------------------------------------------------------------------------------


def _create(event: client.ResponseCreate, context: CodecContext) -> cmd.AnyCommand:
    options = cmd.ResponseOptions()
    if event.response is not None:
        options = response_options(event.response, context)
    return cmd.CreateResponse(options, event.event_id)


def _cancel(event: client.ResponseCancel, context: CodecContext) -> cmd.AnyCommand:
    return cmd.CancelResponse(event.response_id, event.event_id)


def _output_clear(event: client.OutputClear, context: CodecContext) -> cmd.AnyCommand:
    return cmd.ClearOutput(event.event_id)


# --- turns --------------------------------------------------------------------------------------------------


def _barge_in(event: client.BargeIn, context: CodecContext) -> cmd.AnyCommand:
    return cmd.BargeIn(event.event_id)


_SIGNALS: dict[str, Callable[[str | None], cmd.AnyCommand]] = {
    "barge_in": cmd.BargeIn,
    "input.cancel": lambda event_id: cmd.ClearInput(cancel_turn=True, event_id=event_id),
    "input.commit": lambda event_id: cmd.CommitInput(respond=True, event_id=event_id),
    "input_audio_buffer.clear": lambda event_id: cmd.ClearInput(event_id=event_id),
    "input_audio_buffer.commit": lambda event_id: cmd.CommitInput(event_id=event_id),
    "output_audio_buffer.clear": cmd.ClearOutput,
    "response.cancel": lambda event_id: cmd.CancelResponse(event_id=event_id),
    "response.create": lambda event_id: cmd.CreateResponse(event_id=event_id),
}
"""Signals that ask for what another event asks for."""


def _signal(event: client.TurnSignal, context: CodecContext) -> cmd.AnyCommand:
    named = _SIGNALS.get(event.event)
    return cmd.SignalTurn(event.event, event.event_id) if named is None else named(event.event_id)


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
    client.TextAppend: _text,
    client.TextAppendAlias: _text,
    client.PushTextAlias: _text,
    client.ItemRetrieve: _item_retrieve,
    client.ItemDelete: _item_delete,
    client.ItemTruncate: _item_truncate,
    client.OutputClear: _output_clear,
    client.BargeIn: _barge_in,
    client.TurnSignal: _signal,
    client.TurnSignalAlias: _signal,
    client.TranscriptionSessionUpdate: _transcription_update,
}
