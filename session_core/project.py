"""
Project: what a change tells clients. Reads the states around the change, decides nothing, changes nothing.

Events come out without a number and without an id; the reducer stamps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

from msgspec import UNSET

from session_core import changes as ch
from session_core import views, wire
from session_core.audio import samples_to_ms
from session_core.config import Modality, Way
from session_core.derive import (
    call_item,
    closed_message,
    find_item,
    item_before,
    message_id,
    message_item,
)
from session_core.items import Item, ItemStatus, ItemType, Mark
from session_core.state import EndReason, Message, Response, State

Events: TypeAlias = Sequence[wire.ServerEvent | wire.Outbound]
SILENT: Events = ()


def project(before: State, change: ch.Change, after: State) -> Events:
    """Give the outbound events of one change, in order; those for one attachment alone say for which."""
    return _PROJECT[type(change)](before, change, after)


# --- attachments ----------------------------------------------------------------------------------------


def _attached(before: State, change: ch.Attached, after: State) -> Events:
    attachment, pinned, session = change.attachment, after.pinned, views.session(after)
    if attachment.generation == 1:
        generation = attachment.generation if pinned.way is Way.DUPLEX else UNSET
        created = wire.SessionCreated(session=session, attachment_generation=generation)
        return (wire.Outbound(created, attachment.attachment_id),)
    resumed = wire.SessionResumed(
        session=session,
        session_id=pinned.session_id,
        attachment_generation=attachment.generation,
        last_received_server_event_seq=change.received_seq or 0,
        **views.receipts(after),
    )
    told = wire.Outbound(resumed, attachment.attachment_id)
    if change.replaced is None:
        return (told,)
    replaced = wire.SessionReplaced(session_id=pinned.session_id, attachment_generation=attachment.generation)
    return (wire.Outbound(replaced, change.replaced), told)


def _attach_refused(before: State, change: ch.AttachRefused, after: State) -> Events:
    refused = wire.ResumeRefused(error=wire.ErrorDetail(code=change.code, message=change.message))
    return (wire.Outbound(refused, change.attachment_id),)


# --- configuration, life signs, refusals ----------------------------------------------------------------


def _config_changed(before: State, change: ch.ConfigChanged, after: State) -> Events:
    return (wire.SessionUpdated(session=views.session(after)),)


def _heartbeat_seen(before: State, change: ch.HeartbeatSeen, after: State) -> Events:
    return (wire.HeartbeatAck(session_id=after.pinned.session_id, **views.receipts(after)),)


def _playback_moved(before: State, change: ch.PlaybackMoved, after: State) -> Events:
    ledger = after.playback
    acknowledged = wire.PlaybackAcknowledged(
        response_id=ledger.response_id, item_id=ledger.item_id, playback=views.playback(after)
    )
    return (acknowledged,)


def _refused(before: State, change: ch.Refused, after: State) -> Events:
    cause, message, param = change.refusal
    detail = wire.ErrorDetail(
        code=cause.code(after.pinned.way), message=message, param=param, event_id=change.event_id
    )
    return (wire.ErrorEvent(error=detail),)


def _signalled(before: State, change: ch.Signalled, after: State) -> Events:
    return (_turn_event(after, change.signal),)


def _warned(before: State, change: ch.Warned, after: State) -> Events:
    return (_turn_event(after, "session_expiring", views.expires_at(after)),)


def _turn_event(state: State, event: str, expires_at: int | None = None) -> wire.TurnEvent:
    return wire.TurnEvent(
        session_id=state.pinned.session_id,
        event=event,
        turn_state=views.turn_state(state),
        expires_at=UNSET if expires_at is None else expires_at,
    )


_END_ERRORS = {
    EndReason.IDLE: ("invalid_request_error", "session_expired", "The session was idle for too long."),
    EndReason.MAXIMUM: ("invalid_request_error", "session_expired", "The session hit its maximum duration."),
    EndReason.ENGINE_ERROR: ("server_error", "engine_error", "The model failed repeatedly on this session."),
    EndReason.INTERNAL_ERROR: ("server_error", "internal_error", "The session cannot go on."),
}
_EXPIRIES = (EndReason.IDLE, EndReason.GRACE, EndReason.MAXIMUM)


def _ended(before: State, change: ch.Ended, after: State) -> Events:
    session_id = after.pinned.session_id
    last: wire.ServerEvent
    if change.reason in _EXPIRIES:
        last = wire.SessionExpired(session_id=session_id, reason=change.reason)
    else:
        last = wire.SessionClosed(session_id=session_id, reason=change.reason)
    if change.reason not in _END_ERRORS:
        return (last,)
    kind, code, message = _END_ERRORS[change.reason]
    return (wire.ErrorEvent(error=wire.ErrorDetail(type=kind, code=code, message=message)), last)


# --- input ----------------------------------------------------------------------------------------------


def _speech_began(before: State, change: ch.SpeechBegan, after: State) -> Events:
    return (wire.InputSpeechStarted(audio_start_ms=_input_ms(after, change.sample), item_id=change.item_id),)


def _speech_ended(before: State, change: ch.SpeechEnded, after: State) -> Events:
    return (wire.InputSpeechStopped(audio_end_ms=_input_ms(after, change.sample), item_id=change.item_id),)


def _silence_passed(before: State, change: ch.SilencePassed, after: State) -> Events:
    triggered = wire.InputTimeoutTriggered(
        item_id=change.item_id,
        audio_start_ms=_input_ms(after, change.first_sample),
        audio_end_ms=_input_ms(after, change.end_sample),
    )
    return (triggered,)


def _overlap_decided(before: State, change: ch.OverlapDecided, after: State) -> Events:
    decision = wire.OverlapDecision(
        session_id=after.pinned.session_id,
        policy=after.config.overlap_policy,
        action=change.action,
        reason=change.reason,
    )
    return (decision,)


def _audio_committed(before: State, change: ch.AudioCommitted, after: State) -> Events:
    """Added, committed, and done unless a transcript is still due."""
    previous = item_before(before, len(before.history))
    added, created, done = _item_events(change.item, previous)
    facts = wire.CommitFacts(
        turn_id=after.turn, epoch=after.epoch, response_create_deferred=after.response is not None
    )
    committed = wire.InputCommitted(
        item_id=change.item.item_id,
        previous_item_id=previous,
        event=facts if after.pinned.way is Way.DUPLEX else UNSET,
    )
    if change.item.item_id in after.transcribing:
        return (added, created, committed)
    return (added, created, committed, done)


def _transcribed(before: State, change: ch.Transcribed, after: State) -> Events:
    index = find_item(after, change.item_id)
    if index is None:
        return SILENT
    done = wire.ItemDone(previous_item_id=item_before(after, index), item=views.item(after.history[index]))
    if change.error is not None:
        error = wire.TranscriptionError(message=change.error)
        return (wire.TranscriptionFailed(item_id=change.item_id, error=error), done)
    completed = wire.TranscriptionCompleted(
        item_id=change.item_id,
        transcript=change.text,
        usage=wire.DurationUsage(seconds=change.duration_ms / 1000),
    )
    return (wire.TranscriptionDelta(item_id=change.item_id, delta=change.text), completed, done)


def _input_dropped(before: State, change: ch.InputDropped, after: State) -> Events:
    return (wire.InputCleared(),)


# --- history --------------------------------------------------------------------------------------------


def _item_inserted(before: State, change: ch.ItemInserted, after: State) -> Events:
    return _item_events(change.item, item_before(before, change.index))


def _item_retrieved(before: State, change: ch.ItemRetrieved, after: State) -> Events:
    return (wire.ItemRetrieved(item=views.item(change.item)),)


def _item_deleted(before: State, change: ch.ItemDeleted, after: State) -> Events:
    return (wire.ItemDeleted(item_id=change.item_id),)


def _item_truncated(before: State, change: ch.ItemTruncated, after: State) -> Events:
    truncated = wire.ItemTruncated(
        item_id=change.item_id, content_index=change.content_index, audio_end_ms=change.audio_end_ms
    )
    return (truncated,)


def _item_events(item: Item, previous: str | None) -> tuple[wire.ItemAdded, wire.ItemCreated, wire.ItemDone]:
    view = views.item(item)
    return (
        wire.ItemAdded(previous_item_id=previous, item=view),
        wire.ItemCreated(previous_item_id=previous, item=view),
        wire.ItemDone(previous_item_id=previous, item=view),
    )


# --- responses ------------------------------------------------------------------------------------------


class _Place(TypedDict):
    response_id: str
    item_id: str
    output_index: int


def _response_began(before: State, change: ch.ResponseBegan, after: State) -> Events:
    response = change.response
    view = views.response(after, response, status="in_progress")
    return (wire.ResponseCreated(response_id=response.response_id, response=view),)


def _message_opened(before: State, change: ch.MessageOpened, after: State) -> Events:
    response, message = _active(after), change.message
    previous = item_before(before, len(before.history))
    view = _opening_view(message)
    return (
        wire.ItemAdded(previous_item_id=previous, item=view),
        wire.ItemCreated(previous_item_id=previous, item=view),
        *_opened(response, message, view),
    )


def _opening_view(message: Message) -> wire.ItemView:
    return wire.ItemView(
        id=message.item_id, type="message", status=ItemStatus.IN_PROGRESS, role="assistant", content=()
    )


def _opened(response: Response, message: Message, view: wire.ItemView) -> list[wire.ServerEvent]:
    """The response's side of a new message; `response.speak` comes once, before the first audio."""
    events: list[wire.ServerEvent] = [
        wire.OutputItemAdded(response_id=response.response_id, output_index=message.index, item=view),
        wire.ContentPartAdded(**_place(response, message), part=_part(message.modality, "")),
    ]
    is_first = all(item.item_type is not ItemType.MESSAGE for item in response.outputs)
    if message.modality is Modality.AUDIO and is_first:
        events.append(wire.ResponseSpeak(response_id=response.response_id))
    return events


def _spoken(before: State, change: ch.Spoken, after: State) -> Events:
    """The deltas. Audio alone is the common case."""
    response, message = _saying(after)
    events: list[wire.ServerEvent] = []
    if change.audio:
        events.append(_audio_delta(before, after, change.audio, change.end_of_turn))
    if change.text:
        events.append(_text_delta(response, message, change.text))
    return events


def _part_rendered(before: State, change: ch.PartRendered, after: State) -> Events:
    return (_audio_delta(before, after, change.audio, change.end_of_turn),) if change.audio else SILENT


def _audio_delta(before: State, after: State, audio: bytes, end_of_turn: bool) -> wire.AudioDelta:
    response, message = _saying(after)
    new_marks = message.marks[len(_saying(before)[1].marks) :]
    return _delta(response, message, audio, after.epoch, end_of_turn=end_of_turn, new_marks=new_marks)


def _delta(
    response: Response,
    message: Message,
    audio: bytes,
    epoch: int,
    *,
    end_of_turn: bool = False,
    new_marks: tuple[Mark, ...] = (),
) -> wire.AudioDelta:
    audio_format = response.output_format
    marks = [
        wire.AudioTextMark(samples_to_ms(mark.sample, audio_format.sample_rate_hz), mark.chars)
        for mark in new_marks
    ]
    return wire.AudioDelta(
        **_place(response, message),
        delta=audio,
        format=audio_format.encoding,
        sample_rate_hz=audio_format.sample_rate_hz,
        metadata=wire.DeltaMetadata(epoch, end_of_turn, audio_format.ms(len(audio)), tuple(marks) or UNSET),
    )


def _text_delta(response: Response, message: Message, text: str) -> wire.ServerEvent:
    if message.modality is Modality.TEXT:
        return wire.TextDelta(**_place(response, message), delta=text)
    return wire.TranscriptDelta(**_place(response, message), delta=text)


def _message_closed(before: State, change: ch.MessageClosed, after: State) -> Events:
    """Innermost first: interrupted messages send their `.done` events too."""
    response = _active(before)
    item = closed_message(before, change.status)
    index = find_item(after, item.item_id)
    view = views.item(item)
    done = wire.ItemDone(previous_item_id=item_before(after, index) if index is not None else None, item=view)
    return (*_closed(response, view), done)


def _closed(response: Response, view: wire.ItemView) -> list[wire.ServerEvent]:
    """
    The response's side of a message that ends.

    What was sent stays sent: the `.done` texts are the deltas joined.
    """
    message = response.message
    assert message is not None  # decide closes only what is open
    place = _place(response, message)
    done: list[wire.ServerEvent]
    if message.modality is Modality.TEXT:
        done = [wire.TextDone(**place, text=message.text)]
    else:
        done = [wire.AudioDone(**place), wire.TranscriptDone(**place, transcript=message.text)]
    return [
        *done,
        wire.ContentPartDone(**place, part=_part(message.modality, message.text)),
        wire.OutputItemDone(response_id=response.response_id, output_index=message.index, item=view),
    ]


def _call_malformed(before: State, change: ch.CallMalformed, after: State) -> Events:
    call = change.call
    return (
        wire.MalformedCall(
            response_id=change.response_id, call_id=call.call_id, name=call.name, arguments=call.arguments
        ),
    )


def _tool_called(before: State, change: ch.ToolCalled, after: State) -> Events:
    response = _active(before)
    item = call_item(response, change.call)
    previous = item_before(before, len(before.history))
    opening = views.item(_in_progress(item))
    return (
        wire.ItemAdded(previous_item_id=previous, item=opening),
        wire.ItemCreated(previous_item_id=previous, item=opening),
        *_call_events(response, item, len(response.outputs)),
        wire.ItemDone(previous_item_id=previous, item=views.item(item)),
    )


def _in_progress(item: Item) -> Item:
    """The call before its arguments."""
    return Item(
        item.item_id,
        item.item_type,
        status=ItemStatus.IN_PROGRESS,
        call_id=item.call_id,
        name=item.name,
        arguments="",
    )


def _call_events(response: Response, item: Item, index: int) -> list[wire.ServerEvent]:
    call_id, arguments = item.call_id or "", item.arguments or ""
    place = _Place(response_id=response.response_id, item_id=item.item_id, output_index=index)
    return [
        wire.OutputItemAdded(
            response_id=response.response_id, output_index=index, item=views.item(_in_progress(item))
        ),
        wire.CallArgumentsDelta(**place, call_id=call_id, delta=arguments),
        wire.CallArgumentsDone(**place, call_id=call_id, name=item.name or "", arguments=arguments),
        wire.OutputItemDone(response_id=response.response_id, output_index=index, item=views.item(item)),
    ]


def _listened(before: State, change: ch.Listened, after: State) -> Events:
    return (wire.ResponseListen(response_id=change.response_id or UNSET),)


def _response_ended(before: State, change: ch.ResponseEnded, after: State) -> Events:
    response = _active(before)
    return _done(after, response, change, tuple(views.item(item) for item in response.outputs))


def _done(
    state: State,
    response: Response,
    change: ch.ResponseEnded | ch.SideEnded,
    output: tuple[wire.ItemView, ...],
) -> Events:
    details = None
    if change.status != "completed":
        details = wire.StatusDetails(
            type=change.status, reason=change.reason or UNSET, cause=change.cause or UNSET
        )
    done = views.response(state, response, status=change.status, details=details, output=output)
    return (
        wire.ResponseDone(response_id=response.response_id, response=done),
        wire.RateLimitsUpdated(rate_limits=views.rate_limits(state)),
    )


def _output_cleared(before: State, change: ch.OutputCleared, after: State) -> Events:
    return (wire.OutputAudioCleared(response_id=change.response_id),)


# --- responses outside the conversation -----------------------------------------------------------------


def _side_spoken(before: State, change: ch.SideSpoken, after: State) -> Events:
    was, response = _side(before, change.response_id), _side(after, change.response_id)
    message = response.message
    if message is None:
        return SILENT
    events = [] if was.message is not None else _opened(response, message, _opening_view(message))
    if change.audio:
        events.append(_delta(response, message, change.audio, after.epoch))
    if change.text:
        events.append(_text_delta(response, message, change.text))
    return events


def _side_ended(before: State, change: ch.SideEnded, after: State) -> Events:
    response = _side(before, change.response_id)
    events: list[wire.ServerEvent] = []
    outputs: list[wire.ItemView] = []
    status = ItemStatus.COMPLETED if change.status == "completed" else ItemStatus.INCOMPLETE
    if response.message is not None:
        outputs.append(views.item(message_item(response.message, response, status)))
        events.extend(_closed(response, outputs[0]))
    for number, call in enumerate(change.calls, len(outputs)):
        item = call_item(response, call, f"{message_id(response)}_{number}")
        events.extend(_call_events(response, item, number))
        outputs.append(views.item(item))
    return (*events, *_done(after, response, change, tuple(outputs)))


# --- shared ---------------------------------------------------------------------------------------------


def _active(state: State) -> Response:
    assert state.response is not None  # decide tells nothing of a response that is not in progress
    return state.response


def _saying(state: State) -> tuple[Response, Message]:
    response = _active(state)
    assert response.message is not None  # decide opens a message before it says something
    return response, response.message


def _side(state: State, response_id: str) -> Response:
    return next(response for response in state.side if response.response_id == response_id)


def _place(response: Response, message: Message) -> _Place:
    return _Place(response_id=response.response_id, item_id=message.item_id, output_index=message.index)


def _part(modality: Modality, text: str) -> wire.PartView:
    if modality is Modality.TEXT:
        return wire.PartView(type="text", text=text)
    return wire.PartView(type="audio", transcript=text)


def _input_ms(state: State, sample: int) -> int:
    return samples_to_ms(sample, state.pinned.profile.input_sample_rate_hz)


def _silent(before: State, change: ch.Change, after: State) -> Events:
    return SILENT


_PROJECT: dict[type[ch.Change], Callable[[State, Any, State], Events]] = {
    ch.Opened: _silent,
    ch.Attached: _attached,
    ch.AttachRefused: _attach_refused,
    ch.Detached: _silent,
    ch.Assigned: _silent,
    ch.ServingBegan: _silent,
    ch.Unassigned: _silent,
    ch.ConfigChanged: _config_changed,
    ch.AudioReceived: _silent,
    ch.AudioCommitted: _audio_committed,
    ch.InputDropped: _input_dropped,
    ch.ItemInserted: _item_inserted,
    ch.ItemRetrieved: _item_retrieved,
    ch.ItemDeleted: _item_deleted,
    ch.ItemTruncated: _item_truncated,
    ch.TextReceived: _silent,
    ch.SpeechBegan: _speech_began,
    ch.SpeechEnded: _speech_ended,
    ch.UnitTaken: _silent,
    ch.ResponseBegan: _response_began,
    ch.MessageOpened: _message_opened,
    ch.Spoken: _spoken,
    ch.PartRendered: _part_rendered,
    ch.MessageClosed: _message_closed,
    ch.CallMalformed: _call_malformed,
    ch.ToolCalled: _tool_called,
    ch.CallsDelayed: _silent,
    ch.TurnEnded: _silent,
    ch.Listened: _listened,
    ch.ResponseEnded: _response_ended,
    ch.SideSpoken: _side_spoken,
    ch.SideEnded: _side_ended,
    ch.OutputCleared: _output_cleared,
    ch.OverlapDecided: _overlap_decided,
    ch.Signalled: _signalled,
    ch.Transcribed: _transcribed,
    ch.SilencePassed: _silence_passed,
    ch.EpochAdvanced: _silent,
    ch.PlaybackMoved: _playback_moved,
    ch.HeartbeatSeen: _heartbeat_seen,
    ch.Refused: _refused,
    ch.Warned: _warned,
    ch.Ended: _ended,
}
