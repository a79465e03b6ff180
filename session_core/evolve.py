"""Evolve: the state after a change. No decisions here, only consequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from session_core import changes as ch
from session_core.config import Clock, CommitPolicy
from session_core.derive import (
    call_item,
    closed_message,
    cut_part,
    message_id,
    received_samples,
    sent_ms,
    spoken_ms,
)
from session_core.events import Decision, ModelUnitCompleted
from session_core.items import Item, ItemStatus, Mark, Role
from session_core.state import (
    Arrival,
    Attachment,
    Message,
    Phase,
    Playback,
    Rate,
    Render,
    Response,
    State,
    UnitClock,
    WorkerHold,
)


def evolve(state: State, change: ch.Change) -> State:
    """Apply one change."""
    return _EVOLVE[type(change)](state, change)


def _opened(state: State, change: ch.Opened) -> State:
    return replace(
        state,
        phase=Phase.OPEN,
        pinned=change.pinned,
        config=change.config,
        attachment=Attachment(since_ms=state.now_ms),
        rates=tuple(Rate(state.now_ms) for _ in change.pinned.limits.rate_limits),
        active_ms=state.now_ms,
    )


def _attached(state: State, change: ch.Attached) -> State:
    return replace(state, attachment=change.attachment, active_ms=state.now_ms)


def _detached(state: State, change: ch.Detached) -> State:
    return replace(state, attachment=replace(state.attachment, attached=False, since_ms=state.now_ms))


def _assigned(state: State, change: ch.Assigned) -> State:
    return replace(state, worker=WorkerHold(change.generation, change.worker, barren=change.barren))


def _serving_began(state: State, change: ch.ServingBegan) -> State:
    return replace(state, worker=replace(state.worker, serving=True))


def _unassigned(state: State, change: ch.Unassigned) -> State:
    return replace(state, worker=replace(state.worker, worker=None, barren=change.barren))


def _config_changed(state: State, change: ch.ConfigChanged) -> State:
    return replace(state, config=change.config)


def _audio_received(state: State, change: ch.AudioReceived) -> State:
    size, buffer, clock = len(change.audio), state.input, state.clock
    if not buffer.received_bytes:
        clock = replace(clock, covered_ms=state.now_ms)
    return replace(
        state,
        clock=clock,
        input=replace(
            buffer,
            received_bytes=buffer.received_bytes + size,
            received_ticks=buffer.received_ticks + change.ticks,
            pending_bytes=buffer.pending_bytes + size,
            arrivals=_arrivals_with(state),
        ),
    )


_PACE_SLACK_MS = 100
"""How far input may fall behind the pace of speech before a new arrival is noted."""
_MOST_ARRIVALS = 16


def _arrivals_with(state: State) -> tuple[Arrival, ...]:
    """
    The arrivals, with input that comes now.

    While the model keeps up there is one. At the bound the oldest but one goes: the input that it marked
    then seems to have come earlier, and is late in any case.
    """
    arrivals, received = state.input.arrivals, received_samples(state)
    now = Arrival(received, state.now_ms)
    profile = state.pinned.profile
    waiting = received - state.clock.consumed_samples
    if profile.clock is Clock.COMMIT or waiting < profile.unit_samples:
        return (now,)
    if arrivals and state.now_ms <= spoken_ms(state, received) + _PACE_SLACK_MS:
        return arrivals
    return (*(arrivals if len(arrivals) < _MOST_ARRIVALS else arrivals[:1] + arrivals[2:]), now)


def _text_received(state: State, change: ch.TextReceived) -> State:
    return replace(state, input=replace(state.input, text=state.input.text + change.text))


def _audio_committed(state: State, change: ch.AudioCommitted) -> State:
    """Speech that runs over a commit goes on from there, as an item of its own."""
    buffer = replace(
        state.input,
        committed_samples=change.upto_samples,
        speech_from=None if state.input.speech_from is None else change.upto_samples,
        speech_item_id=None,
        text="",
    )
    transcribing = state.transcribing
    if state.config.transcription is not None and change.item.parts[0].kind == "input_audio":
        transcribing = (*transcribing, change.item.item_id)[-state.pinned.limits.max_history_items :]
    history = _remember(state, change.item, len(state.history))
    return replace(state, input=buffer, turn=state.turn + 1, history=history, transcribing=transcribing)


def _input_dropped(state: State, change: ch.InputDropped) -> State:
    upto = change.upto_samples
    buffer = replace(
        state.input, committed_samples=upto, pending_bytes=0, speech_from=None, speech_item_id=None, text=""
    )
    return replace(state, input=buffer, clock=replace(state.clock, consumed_samples=upto))


def _item_inserted(state: State, change: ch.ItemInserted) -> State:
    return replace(state, history=_remember(state, change.item, change.index))


def _item_deleted(state: State, change: ch.ItemDeleted) -> State:
    history = tuple(item for item in state.history if item.item_id != change.item_id)
    transcribing = tuple(item_id for item_id in state.transcribing if item_id != change.item_id)
    return replace(state, history=history, transcribing=transcribing)


def _item_truncated(state: State, change: ch.ItemTruncated) -> State:
    """
    Cut the item in the history; of one that is being said note the cut for when it closes.

    Acks move it no more.
    """
    settled = (
        replace(state.playback, settled=True) if state.playback.item_id == change.item_id else state.playback
    )
    response = state.response
    if response is not None and response.message is not None and response.message.item_id == change.item_id:
        message = replace(response.message, heard_samples=change.heard_samples)
        return replace(state, playback=settled, response=replace(response, message=message))
    history = tuple(
        cut_part(item, change.content_index, change.heard_samples) if item.item_id == change.item_id else item
        for item in state.history
    )
    return replace(state, playback=settled, history=history)


def _transcribed(state: State, change: ch.Transcribed) -> State:
    """The transcript stands in the item's audio part; None if it failed."""
    transcribing = tuple(item_id for item_id in state.transcribing if item_id != change.item_id)
    history = tuple(
        _with_transcript(item, change) if item.item_id == change.item_id else item for item in state.history
    )
    return replace(state, transcribing=transcribing, history=history)


def _with_transcript(item: Item, change: ch.Transcribed) -> Item:
    text = change.text if change.error is None else None
    return replace(item, parts=(replace(item.parts[0], text=text), *item.parts[1:]))


def _speech_began(state: State, change: ch.SpeechBegan) -> State:
    return replace(
        state, input=replace(state.input, speech_from=change.sample, speech_item_id=change.item_id)
    )


def _speech_ended(state: State, change: ch.SpeechEnded) -> State:
    return replace(state, input=replace(state.input, speech_from=None, speech_item_id=None))


def _unit_taken(state: State, change: ch.UnitTaken) -> State:
    """Move the clock. What the unit says counts for the response, and may settle a heard point."""
    unit, response, worker = change.unit, state.response, state.worker
    clock = _clock_after(state, unit)
    if response is not None and not change.muted and unit.decision is not Decision.LISTEN:
        response = replace(response, output_tokens=response.output_tokens + len(unit.token_ids))
    return replace(
        state,
        clock=clock,
        input=replace(state.input, pending_bytes=_pending_after(state, clock.consumed_samples)),
        worker=replace(worker, completed_units=worker.completed_units + 1),
        response=response,
        playback=_settle(state.playback) if unit.epoch == state.epoch else state.playback,
    )


def _clock_after(state: State, unit: ModelUnitCompleted) -> UnitClock:
    """
    One unit further.

    `covered_ms` moves on by one unit. It never runs ahead of the session's time by more than that: input sent
    faster than real time buys no time without silence. It never falls behind: with a unit of nothing but
    input the user has caught up, and gets the whole grace again; with silence it keeps the pace, but time in
    which nobody could work is not made up for.
    """
    clock, profile = state.clock, state.pinned.profile
    behind_ms = profile.silence_grace_ms if unit.silence_samples else 0
    quiet = unit.input_samples == 0 and unit.decision is Decision.LISTEN
    return UnitClock(
        next_unit=unit.unit + 1,
        consumed_samples=max(clock.consumed_samples, unit.first_sample + unit.input_samples),
        covered_ms=max(min(clock.covered_ms, state.now_ms) + profile.unit_ms, state.now_ms - behind_ms),
        silent_units=clock.silent_units + 1 if quiet else 0,
    )


def _pending_after(state: State, consumed_samples: int) -> int:
    """
    Bytes that still wait: what waits in samples, as its share of what came in.

    Exact at one format, fair at several.
    """
    received = received_samples(state)
    waited = received - state.clock.consumed_samples
    return state.input.pending_bytes * (received - consumed_samples) // waited if waited else 0


def _response_began(state: State, change: ch.ResponseBegan) -> State:
    response = change.response
    state = replace(state, rates=_used(state, "requests", 1))
    if response.options.outside:
        return replace(state, side=(*state.side, response))
    turn = state.turn if response.requested else state.turn + 1
    return replace(state, response=response, turn=turn, playback=_settle(state.playback))


def _settle(ledger: Playback) -> Playback:
    """Something newer is about to use the heard point of an interrupted message: it is fixed from here on."""
    return replace(ledger, settled=True) if ledger.interrupted and not ledger.settled else ledger


def _message_opened(state: State, change: ch.MessageOpened) -> State:
    response, message = _active(state), change.message
    item = Item(message.item_id, role=Role.ASSISTANT, status=ItemStatus.IN_PROGRESS)
    history = _remember(state, item, len(state.history))
    return replace(state, history=history, response=replace(response, message=message))


def _spoken(state: State, change: ch.Spoken) -> State:
    """More of the message; audio that comes later leaves a `Render` behind."""
    response, message = _saying(state)
    renders, playback = state.renders, state.playback
    if change.text:
        message = replace(message, text=message.text + change.text)
    if change.audio is None:
        renders = (*renders, Render(change.unit, len(message.text)))
    elif change.audio:
        message = _voiced(response, message, change.audio, len(message.text))
        playback = _sent(state, response, message)
    return replace(state, response=replace(response, message=message), renders=renders, playback=playback)


def _part_rendered(state: State, change: ch.PartRendered) -> State:
    """Audio of the oldest unit that waits for it."""
    response, message = _saying(state)
    (due, *later), playback = state.renders, state.playback
    if not change.last_part:
        samples = response.output_format.samples(len(change.audio))
        later = [replace(due, next_part=due.next_part + 1, next_sample=due.next_sample + samples), *later]
    if change.audio:
        message = _voiced(response, message, change.audio, due.chars)
        playback = _sent(state, response, message)
    return replace(
        state, response=replace(response, message=message), renders=tuple(later), playback=playback
    )


def _voiced(response: Response, message: Message, audio: bytes, chars: int) -> Message:
    """The message with more audio; where that begins to say new text, up to `chars`, stands a mark."""
    marks = message.marks
    if chars > (marks[-1].chars if marks else 0):
        marks = (*marks, Mark(message.samples, chars))
    samples = message.samples + response.output_format.samples(len(audio))
    return replace(message, samples=samples, marks=marks)


def _sent(state: State, response: Response, message: Message) -> Playback:
    """The ledger with the audio given out so far; a message's first audio opens a new one."""
    ledger, sent = state.playback, sent_ms(message, response)
    if ledger.item_id == message.item_id:
        return replace(ledger, sent_ms=sent)
    return Playback(
        response.response_id,
        message.item_id,
        response.output_format,
        began_ms=state.now_ms,
        earlier_ms=ledger.earlier_ms + ledger.sent_ms if ledger.response_id == response.response_id else 0,
        sent_ms=sent,
    )


def _message_closed(state: State, change: ch.MessageClosed) -> State:
    response, item = _active(state), closed_message(state, change.status)
    history = tuple(item if old.item_id == item.item_id else old for old in state.history)
    ledger = state.playback
    if ledger.item_id == item.item_id:
        whole = change.status is ItemStatus.COMPLETED
        cut = ledger.settled or (
            whole and state.config.playback_commit_policy is CommitPolicy.COMMIT_ALL_ON_DONE
        )
        ledger = replace(ledger, interrupted=not whole, settled=cut)
    outputs = (*response.outputs, item)
    return replace(
        state, history=history, playback=ledger, response=replace(response, message=None, outputs=outputs)
    )


def _call_malformed(state: State, change: ch.CallMalformed) -> State:
    """One that waited for audio waits no more."""
    response = state.response
    if response is None or change.call not in response.calls:
        return state
    return replace(state, response=replace(response, calls=response.calls[1:]))


def _tool_called(state: State, change: ch.ToolCalled) -> State:
    response = _active(state)
    item = call_item(response, change.call)
    history = _remember(state, item, len(state.history))
    response = replace(response, outputs=(*response.outputs, item), calls=response.calls[1:])
    return replace(state, history=history, response=response)


def _calls_delayed(state: State, change: ch.CallsDelayed) -> State:
    response = _active(state)
    return replace(state, response=replace(response, calls=(*response.calls, *change.calls)))


def _turn_ended(state: State, change: ch.TurnEnded) -> State:
    return replace(state, response=replace(_active(state), turn_ended=True))


def _response_ended(state: State, change: ch.ResponseEnded) -> State:
    rates = _used(state, "tokens", _active(state).output_tokens)
    return replace(state, response=None, renders=(), rates=rates)


def _side_spoken(state: State, change: ch.SideSpoken) -> State:
    return replace(state, side=tuple(_side_after(one, change) for one in state.side))


def _side_after(response: Response, change: ch.SideSpoken) -> Response:
    if response.response_id != change.response_id:
        return response
    message = response.message
    if change.text or change.audio:
        message = message or Message(message_id(response), 0, response.modality)
        message = replace(
            message,
            text=message.text + change.text,
            samples=message.samples + response.output_format.samples(len(change.audio)),
        )
    return replace(response, message=message, output_tokens=response.output_tokens + change.tokens)


def _side_ended(state: State, change: ch.SideEnded) -> State:
    tokens = sum(one.output_tokens for one in state.side if one.response_id == change.response_id)
    side = tuple(one for one in state.side if one.response_id != change.response_id)
    return replace(state, side=side, rates=_used(state, "tokens", tokens))


def _used(state: State, name: str, amount: int) -> tuple[Rate, ...]:
    """Count use against the rate limits of this name; a window that is over starts anew."""
    return tuple(
        _rate_after(rate, state.now_ms, limit.window_s * 1000, amount if limit.name == name else 0)
        for limit, rate in zip(state.pinned.limits.rate_limits, state.rates, strict=True)
    )


def _rate_after(rate: Rate, now_ms: int, window_ms: int, amount: int) -> Rate:
    if now_ms >= rate.window_from_ms + window_ms:
        rate = Rate(now_ms)
    return replace(rate, used=rate.used + amount)


def _epoch_advanced(state: State, change: ch.EpochAdvanced) -> State:
    return replace(state, epoch=state.epoch + 1)


def _playback_moved(state: State, change: ch.PlaybackMoved) -> State:
    """Move the ledger and, while the heard point is open, the end of the item in the history."""
    ledger = replace(
        state.playback, played_ms=change.played_ms, committed_ms=change.committed_ms, acknowledged=True
    )
    history = state.history
    if not ledger.settled:
        heard = change.committed_ms * ledger.output_format.sample_rate_hz // 1000
        history = tuple(
            cut_part(item, 0, heard) if item.item_id == ledger.item_id and item.parts else item
            for item in history
        )
    return replace(state, playback=ledger, history=history)


def _warned(state: State, change: ch.Warned) -> State:
    return replace(state, warned=True)


def _ended(state: State, change: ch.Ended) -> State:
    return replace(state, phase=Phase.ENDED, end_reason=change.reason)


def _same(state: State, change: ch.Change) -> State:
    return state


def _active(state: State) -> Response:
    assert state.response is not None
    return state.response


def _saying(state: State) -> tuple[Response, Message]:
    response = _active(state)
    assert response.message is not None  # decide opens a message before it says something
    return response, response.message


def _remember(state: State, item: Item, index: int) -> tuple[Item, ...]:
    """Insert, and let the oldest go beyond the bound."""
    history = (*state.history[:index], item, *state.history[index:])
    return history[-state.pinned.limits.max_history_items :]


_EVOLVE: dict[type[ch.Change], Callable[[State, Any], State]] = {
    ch.Opened: _opened,
    ch.Attached: _attached,
    ch.AttachRefused: _same,
    ch.Detached: _detached,
    ch.Assigned: _assigned,
    ch.ServingBegan: _serving_began,
    ch.Unassigned: _unassigned,
    ch.ConfigChanged: _config_changed,
    ch.AudioReceived: _audio_received,
    ch.AudioCommitted: _audio_committed,
    ch.InputDropped: _input_dropped,
    ch.ItemInserted: _item_inserted,
    ch.ItemRetrieved: _same,
    ch.ItemDeleted: _item_deleted,
    ch.ItemTruncated: _item_truncated,
    ch.TextReceived: _text_received,
    ch.SpeechBegan: _speech_began,
    ch.SpeechEnded: _speech_ended,
    ch.UnitTaken: _unit_taken,
    ch.ResponseBegan: _response_began,
    ch.MessageOpened: _message_opened,
    ch.Spoken: _spoken,
    ch.PartRendered: _part_rendered,
    ch.MessageClosed: _message_closed,
    ch.CallMalformed: _call_malformed,
    ch.ToolCalled: _tool_called,
    ch.CallsDelayed: _calls_delayed,
    ch.TurnEnded: _turn_ended,
    ch.Listened: _same,
    ch.ResponseEnded: _response_ended,
    ch.SideSpoken: _side_spoken,
    ch.SideEnded: _side_ended,
    ch.OutputCleared: _same,
    ch.OverlapDecided: _same,
    ch.Signalled: _same,
    ch.Transcribed: _transcribed,
    ch.SilencePassed: _same,
    ch.EpochAdvanced: _epoch_advanced,
    ch.PlaybackMoved: _playback_moved,
    ch.HeartbeatSeen: _same,
    ch.Refused: _same,
    ch.Warned: _warned,
    ch.Ended: _ended,
}
