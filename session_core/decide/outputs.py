"""What the model says, and what the client does to it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Modality
from session_core.decide.common import NOTHING, Changes, interrupt, new_response, rate_exhausted, refused
from session_core.decide.inputs import long_overlap
from session_core.derive import find_item, is_well_formed, may_begin, message_id, received_samples
from session_core.errors import BrokenInvariant, Cause
from session_core.items import Item, ItemStatus, ItemType
from session_core.state import Message, Response, State

# --- responses ------------------------------------------------------------------------------------------


def create_response(state: State, body: cmd.CreateResponse) -> Changes:
    """Begin a response: one in the conversation at a time, a few beside it."""
    exhausted = rate_exhausted(state)
    if exhausted is not None:
        return refused(body, Cause.LIMIT_REACHED, f"Rate limit reached for {exhausted}.")
    unknown = [item.item_id for item in _references(body.options) if find_item(state, item.item_id) is None]
    if unknown:
        message = f"Item with item_id not found: {unknown[0]!r}."
        return refused(body, Cause.UNKNOWN_ITEM, message, "response.input")
    response = new_response(state, requested=True, options=_resolved(state, body.options))
    if body.options.outside:
        if len(state.side) >= state.pinned.limits.max_side_responses:
            message = "Too many responses outside the conversation are in progress."
            return refused(body, Cause.LIMIT_REACHED, message)
    elif state.response is not None:
        message = f"Conversation already has an active response in progress: {state.response.response_id}."
        return refused(body, Cause.RESPONSE_ACTIVE, message)
    return (ch.ResponseBegan(response),)


def _references(options: cmd.ResponseOptions) -> list[Item]:
    return [item for item in options.input or () if item.item_type is ItemType.REFERENCE]


def _resolved(state: State, options: cmd.ResponseOptions) -> cmd.ResponseOptions:
    """The options with each reference replaced by the item as the history holds it here."""
    if not _references(options):
        return options
    items = {item.item_id: item for item in state.history}
    given = tuple(
        items[item.item_id] if item.item_type is ItemType.REFERENCE else item for item in options.input or ()
    )
    return replace(options, input=given)


def cancel_response(state: State, body: cmd.CancelResponse) -> Changes:
    """Stop the response in progress, or the named one."""
    active = state.response
    if active is not None and body.response_id in (None, active.response_id):
        return interrupt(state, "client_cancelled", "response_cancel")
    for response in state.side:
        if response.response_id == body.response_id:
            return (ch.SideEnded(response.response_id, "cancelled", "client_cancelled", "response_cancel"),)
    return refused(
        body, Cause.NOTHING_TO_CANCEL, "Cancellation failed: no active response found", "response_id"
    )


def clear_output(state: State, body: cmd.ClearOutput) -> Changes:
    """
    Drop what was not heard.

    Audio that is out already can only be dropped by the client, which is told to.
    """
    if state.response is not None:
        response_id = state.response.response_id
        return (*interrupt(state, "client_cancelled", "output_clear"), ch.OutputCleared(response_id))
    if not state.playback.response_id:
        return refused(body, Cause.NOTHING_TO_CLEAR, "There is no output audio to clear.")
    return (ch.EpochAdvanced(), ch.OutputCleared(state.playback.response_id))


def barge_in(state: State, body: cmd.BargeIn) -> Changes:
    """Interrupt as if the user's speech had been heard here."""
    if not state.pinned.profile.supports_barge_in:
        return refused(body, Cause.BARGE_IN_UNSUPPORTED, "This model cannot be interrupted.")
    if state.response is None:
        return NOTHING
    return (ch.OverlapDecided("barge_in", "client"), *interrupt(state, "turn_detected", "barge_in"))


def signal_turn(state: State, body: cmd.SignalTurn) -> Changes:
    """Tell the transition back."""
    return (ch.Signalled(body.signal),)


# --- units ----------------------------------------------------------------------------------------------


def unit_completed(state: State, body: ev.ModelUnitCompleted) -> Changes:
    """Count the unit; then, if its epoch is not over, let the response begin, go on, or end by it."""
    if body.unit != state.clock.next_unit:
        raise BrokenInvariant(f"unit {body.unit} where unit {state.clock.next_unit} was due")
    if body.first_sample + body.input_samples > received_samples(state):
        raise BrokenInvariant(f"unit {body.unit} holds input that has not come")
    if body.epoch != state.epoch:
        return (ch.UnitTaken(body, muted=True),)
    if body.late:
        return (ch.UnitTaken(body, muted=body.decision is not ev.Decision.LISTEN),)
    overlap = long_overlap(state, body.first_sample + body.input_samples)
    if overlap:
        return (ch.UnitTaken(body, muted=True), *overlap)
    if body.decision is ev.Decision.LISTEN:
        return (ch.UnitTaken(body, muted=False), *_listened(state.response, body))
    if state.response is not None:
        muted = state.response.turn_ended
        return (ch.UnitTaken(body, muted), *(NOTHING if muted else _said(state, state.response, body)))
    if not may_begin(state) or rate_exhausted(state) is not None:
        return (ch.UnitTaken(body, muted=True),)
    response = new_response(state, requested=False, first=body)
    return (ch.UnitTaken(body, muted=False), ch.ResponseBegan(response), *_said(state, response, body))


def _said(state: State, response: Response, body: ev.ModelUnitCompleted) -> Changes:
    """A unit of speaking: the message opens or goes on, calls close it, the turn's end ends the response."""
    out: list[ch.Change] = []
    audio = body.audio if response.modality is Modality.AUDIO else b""
    ends_turn, is_open = body.decision is ev.Decision.TURN_END, response.message is not None
    if is_open or audio is None or audio or body.text or not (body.calls or response.outputs):
        if not is_open:
            message = Message(message_id(response), len(response.outputs), response.modality)
            out.append(ch.MessageOpened(message))
        out.append(ch.Spoken(body.unit, audio, body.text, ends_turn))
        is_open = True
    if audio is None or state.renders:
        delayed = (ch.CallsDelayed(body.calls),) if body.calls else NOTHING
        return (*out, *delayed, *((ch.TurnEnded(),) if ends_turn else NOTHING))
    if is_open and (body.calls or ends_turn):
        out.append(ch.MessageClosed(ItemStatus.COMPLETED))
    out.extend(_called(response, body.calls))
    if ends_turn:
        out.append(ch.ResponseEnded("completed"))
    return out


def _listened(active: Response | None, body: ev.ModelUnitCompleted) -> Changes:
    """A unit of listening ends what the model was saying, and answers what it was asked."""
    if active is None or active.turn_ended:
        return NOTHING
    if active.begun:
        yielded = ch.ResponseEnded("cancelled", "turn_detected", "model_yielded")
        closed = (ch.MessageClosed(ItemStatus.INCOMPLETE),) if active.message is not None else ()
        return (*closed, yielded, ch.EpochAdvanced())
    if body.answers == active.response_id:
        return (ch.Listened(active.response_id), ch.ResponseEnded("completed"))
    return NOTHING


def output_rendered(state: State, body: ev.OutputRendered) -> Changes:
    """Take the next part of the oldest unit that waits for its audio; any other part changes nothing."""
    response = state.response
    if response is None or not state.renders:
        return NOTHING
    due = state.renders[0]
    if (body.unit, body.part, body.first_sample) != (due.unit, due.next_part, due.next_sample):
        return NOTHING
    is_whole = body.last and len(state.renders) == 1
    rendered = ch.PartRendered(body.audio, body.last, end_of_turn=is_whole and response.turn_ended)
    if not is_whole or not (response.calls or response.turn_ended):
        return (rendered,)
    ended = (ch.ResponseEnded("completed"),) if response.turn_ended else NOTHING
    called = _called(response, response.calls)
    return (rendered, ch.MessageClosed(ItemStatus.COMPLETED), *called, *ended)


def _called(response: Response, calls: Sequence[ev.ToolCall]) -> Changes:
    """Calls in their order; one without a name, or with arguments that are no JSON object, is not made."""
    return [
        ch.ToolCalled(call) if is_well_formed(call) else ch.CallMalformed(response.response_id, call)
        for call in calls
    ]


def side_output(state: State, body: ev.SideOutput) -> Changes:
    """A response outside the conversation goes on, and may end."""
    response = next((one for one in state.side if one.response_id == body.response_id), None)
    if response is None:
        return NOTHING
    audio = body.audio if response.modality is Modality.AUDIO else b""
    out: list[ch.Change] = []
    if body.text or audio or body.tokens:
        out.append(ch.SideSpoken(body.response_id, body.text, audio, body.tokens))
    if body.last:
        status = "failed" if body.failed else "completed"
        calls = tuple(call for call in body.calls if is_well_formed(call))
        out.extend(ch.CallMalformed(body.response_id, call) for call in body.calls if call not in calls)
        out.append(ch.SideEnded(body.response_id, status, calls=calls))
    return out


# --- playback -------------------------------------------------------------------------------------------


def ack_playback(state: State, body: cmd.AckPlayback) -> Changes:
    """
    Move the ledger; it never goes back and never beyond what was sent.

    Acks of older responses are harmless.
    """
    ledger = state.playback
    if not ledger.response_id or body.response_id not in (None, ledger.response_id):
        return NOTHING
    played = max(ledger.played_ms, min(body.played_ms - ledger.earlier_ms, ledger.sent_ms))
    committed = played if body.committed_ms is None else min(body.committed_ms - ledger.earlier_ms, played)
    moved = ch.PlaybackMoved(played, max(ledger.committed_ms, committed))
    if not body.truncate or find_item(state, ledger.item_id) is None:
        return (moved,)
    heard = played * ledger.output_format.sample_rate_hz // 1000
    return (moved, ch.ItemTruncated(ledger.item_id, 0, played, heard))
