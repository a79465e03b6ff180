"""Project: what a change tells clients. Reads the states around the change, decides nothing, changes nothing.

Events come out without a number and without an id; the reducer stamps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

from msgspec import UNSET

from session_core import changes as ch
from session_core import views, wire
from session_core.audio import samples_to_ms
from session_core.config import Way
from session_core.evolve import finished_item
from session_core.items import Item, ItemStatus
from session_core.state import EndReason, Response, State

Events: TypeAlias = Sequence[wire.ServerEvent]
SILENT: Events = ()


def project(before: State, change: ch.Change, after: State) -> Events:
    """Give the outbound events of one change, in order."""
    return _PROJECT[type(change)](before, change, after)


# --- attachments --------------------------------------------------------------------------------------------------


def _attached(before: State, change: ch.Attached, after: State) -> Events:
    session, generation = views.session(after), change.attachment.generation
    if change.received_seq is None:
        duplex = after.pinned.way is Way.DUPLEX
        return (wire.SessionCreated(session=session, attachment_generation=generation if duplex else UNSET),)
    resumed = wire.SessionResumed(
        session=session,
        session_id=after.pinned.session_id,
        attachment_generation=generation,
        last_received_server_event_seq=change.received_seq,
        **views.receipts(after),
    )
    if change.replaced is None:
        return (resumed,)
    replaced = wire.SessionReplaced(session_id=after.pinned.session_id, attachment_generation=generation)
    return (replaced, resumed)


def _attach_refused(before: State, change: ch.AttachRefused, after: State) -> Events:
    return (wire.ResumeRefused(error=wire.ErrorDetail(code=change.code, message=change.message)),)


# --- configuration, life signs, refusals --------------------------------------------------------------------------


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


def _warned(before: State, change: ch.Warned, after: State) -> Events:
    return (wire.TurnEvent(event="session_expiring", expires_at=views.expires_at(after)),)


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


# --- input and history --------------------------------------------------------------------------------------------


def _speech_began(before: State, change: ch.SpeechBegan, after: State) -> Events:
    return (wire.InputSpeechStarted(audio_start_ms=_input_ms(after, change.sample), item_id=change.item_id),)


def _speech_ended(before: State, change: ch.SpeechEnded, after: State) -> Events:
    return (wire.InputSpeechStopped(audio_end_ms=_input_ms(after, change.sample), item_id=change.item_id),)


def _audio_committed(before: State, change: ch.AudioCommitted, after: State) -> Events:
    previous = before.history[-1].item_id if before.history else None
    added, created, done = _item_events(change.item, previous)
    committed = wire.InputCommitted(item_id=change.item.item_id, previous_item_id=previous)
    return (added, created, committed, done)


def _input_dropped(before: State, change: ch.InputDropped, after: State) -> Events:
    return (wire.InputCleared(),)


def _item_inserted(before: State, change: ch.ItemInserted, after: State) -> Events:
    previous = before.history[change.index - 1].item_id if change.index else None
    return _item_events(change.item, previous)


def _item_events(item: Item, previous: str | None) -> tuple[wire.ItemAdded, wire.ItemCreated, wire.ItemDone]:
    view = views.item(item)
    return (
        wire.ItemAdded(previous_item_id=previous, item=view),
        wire.ItemCreated(previous_item_id=previous, item=view),
        wire.ItemDone(previous_item_id=previous, item=view),
    )


# --- responses ----------------------------------------------------------------------------------------------------


def _response_began(before: State, change: ch.ResponseBegan, after: State) -> Events:
    response = change.response
    view = views.response(after, response, status="in_progress")
    return (wire.ResponseCreated(response_id=response.response_id, response=view),)


class _Ids(TypedDict):
    response_id: str
    item_id: str


def _spoken(before: State, change: ch.Spoken, after: State) -> Events:
    """Open the output where this is its first, then the deltas. The common case, audio alone, comes first."""
    response = after.response
    assert response is not None and before.response is not None
    deltas: list[wire.ServerEvent] = [] if before.response.speaking else _output_opened(before, response)
    if change.audio:
        deltas.append(_audio_delta(after, response, change))
    if change.text:
        deltas.append(
            wire.TranscriptDelta(
                response_id=response.response_id, item_id=response.item_id, delta=change.text
            )
        )
    return deltas


def _audio_delta(after: State, response: Response, change: ch.Spoken) -> wire.AudioDelta:
    audio, audio_format = change.audio or b"", response.output_format
    return wire.AudioDelta(
        response_id=response.response_id,
        item_id=response.item_id,
        delta=audio,
        format=audio_format.encoding,
        sample_rate_hz=audio_format.sample_rate_hz,
        metadata=wire.DeltaMetadata(after.epoch, change.end_of_turn, audio_format.ms(len(audio))),
    )


def _output_opened(before: State, response: Response) -> list[wire.ServerEvent]:
    previous = before.history[-1].item_id if before.history else None
    item = wire.ItemView(
        id=response.item_id, type="message", status=ItemStatus.IN_PROGRESS, role="assistant", content=()
    )
    ids = _Ids(response_id=response.response_id, item_id=response.item_id)
    return [
        wire.ItemAdded(previous_item_id=previous, item=item),
        wire.ItemCreated(previous_item_id=previous, item=item),
        wire.OutputItemAdded(response_id=response.response_id, item=item),
        wire.ContentPartAdded(**ids, part=wire.PartView(type="audio", transcript="")),
        wire.ResponseSpeak(response_id=response.response_id),
    ]


def _listened(before: State, change: ch.Listened, after: State) -> Events:
    return (wire.ResponseListen(response_id=change.response_id or UNSET),)


def _response_ended(before: State, change: ch.ResponseEnded, after: State) -> Events:
    """Close what was opened, innermost first: interrupted responses send their `.done` events too."""
    response = before.response
    assert response is not None
    details = None
    if change.status != "completed":
        details = wire.StatusDetails(
            type=change.status, reason=change.reason or UNSET, cause=change.cause or UNSET
        )
    closing: list[wire.ServerEvent] = []
    output: tuple[wire.ItemView, ...] = ()
    if response.speaking:
        status = ItemStatus.COMPLETED if change.status == "completed" else ItemStatus.INCOMPLETE
        view = views.item(finished_item(response, status))
        output = (view,)
        closing.extend(_output_closed(before, response, view))
    done = views.response(after, response, status=change.status, details=details, output=output)
    closing.append(wire.ResponseDone(response_id=response.response_id, response=done))
    closing.append(wire.RateLimitsUpdated())
    return closing


def _output_closed(before: State, response: Response, view: wire.ItemView) -> list[wire.ServerEvent]:
    ids = _Ids(response_id=response.response_id, item_id=response.item_id)
    order = [item.item_id for item in before.history]
    at = order.index(response.item_id) if response.item_id in order else 0
    return [
        wire.AudioDone(**ids),
        wire.TranscriptDone(**ids, transcript=response.transcript),
        wire.ContentPartDone(**ids, part=wire.PartView(type="audio", transcript=response.transcript)),
        wire.OutputItemDone(response_id=response.response_id, item=view),
        wire.ItemDone(previous_item_id=order[at - 1] if at else None, item=view),
    ]


def _silent(before: State, change: ch.Change, after: State) -> Events:
    return SILENT


def _input_ms(state: State, sample: int) -> int:
    return samples_to_ms(sample, state.pinned.profile.input_sample_rate_hz)


_PROJECT: dict[type[ch.Change], Callable[[State, Any, State], Events]] = {
    ch.Opened: _silent,
    ch.Attached: _attached,
    ch.AttachRefused: _attach_refused,
    ch.Detached: _silent,
    ch.Assigned: _silent,
    ch.Unassigned: _silent,
    ch.ConfigChanged: _config_changed,
    ch.AudioReceived: _silent,
    ch.AudioCommitted: _audio_committed,
    ch.InputDropped: _input_dropped,
    ch.ItemInserted: _item_inserted,
    ch.SpeechBegan: _speech_began,
    ch.SpeechEnded: _speech_ended,
    ch.UnitTaken: _silent,
    ch.ResponseBegan: _response_began,
    ch.Spoken: _spoken,
    ch.Listened: _listened,
    ch.ResponseEnded: _response_ended,
    ch.EpochAdvanced: _silent,
    ch.PlaybackMoved: _playback_moved,
    ch.HeartbeatSeen: _heartbeat_seen,
    ch.Refused: _refused,
    ch.Warned: _warned,
    ch.Ended: _ended,
}
