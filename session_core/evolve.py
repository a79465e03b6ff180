"""Evolve: the state after a change. No decisions here, only consequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from session_core import changes as ch
from session_core.audio import samples_to_ms
from session_core.events import Decision, ModelUnitCompleted
from session_core.items import Item, ItemStatus, Part, Role
from session_core.state import (
    Attachment,
    Phase,
    Playback,
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
        active_ms=state.now_ms,
    )


def _attached(state: State, change: ch.Attached) -> State:
    return replace(state, attachment=change.attachment, active_ms=state.now_ms)


def _detached(state: State, change: ch.Detached) -> State:
    return replace(state, attachment=replace(state.attachment, attached=False, since_ms=state.now_ms))


def _assigned(state: State, change: ch.Assigned) -> State:
    return replace(state, worker=WorkerHold(change.generation, change.worker, barren=change.barren))


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
        ),
    )


def _audio_committed(state: State, change: ch.AudioCommitted) -> State:
    buffer = state.input
    speech_from = None if buffer.speech_from is None else change.upto_samples
    buffer = replace(
        buffer, committed_samples=change.upto_samples, speech_from=speech_from, speech_item_id=None
    )
    return replace(
        state, input=buffer, turn=state.turn + 1, history=_remember(state, change.item, len(state.history))
    )


def _input_dropped(state: State, change: ch.InputDropped) -> State:
    upto = change.upto_samples
    buffer = replace(
        state.input, committed_samples=upto, pending_bytes=0, speech_from=None, speech_item_id=None
    )
    return replace(state, input=buffer, clock=replace(state.clock, consumed_samples=upto))


def _item_inserted(state: State, change: ch.ItemInserted) -> State:
    return replace(state, history=_remember(state, change.item, change.index))


def _speech_began(state: State, change: ch.SpeechBegan) -> State:
    return replace(
        state, input=replace(state.input, speech_from=change.sample, speech_item_id=change.item_id)
    )


def _speech_ended(state: State, change: ch.SpeechEnded) -> State:
    return replace(state, input=replace(state.input, speech_from=None))


def _unit_taken(state: State, change: ch.UnitTaken) -> State:
    worker, clock = state.worker, _clock_after(state, change.unit)
    return replace(
        state,
        clock=clock,
        input=replace(state.input, pending_bytes=_pending_after(state, clock.consumed_samples)),
        worker=replace(worker, completed_units=worker.completed_units + 1),
    )


def _clock_after(state: State, unit: ModelUnitCompleted) -> UnitClock:
    """One unit further.

    `covered_ms` moves on by one unit. It never runs ahead of the session's time by more than that: input sent faster
    than real time buys no time without silence. It never falls behind: with a unit of nothing but input the user has
    caught up, and gets the whole grace again; with silence it keeps the pace, but time in which nobody could work is
    not made up for.
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
    """Bytes that still wait: what waits in samples, as its share of what came in. Exact at one format, fair at several."""
    buffer = state.input
    received = buffer.received_samples(state.pinned.profile.input_sample_rate_hz)
    waited = received - state.clock.consumed_samples
    return buffer.pending_bytes * (received - consumed_samples) // waited if waited else 0


def _response_began(state: State, change: ch.ResponseBegan) -> State:
    turn = state.turn if change.response.requested else state.turn + 1
    return replace(state, response=change.response, turn=turn)


def _spoken(state: State, change: ch.Spoken) -> State:
    response = _active(state)
    history, playback = state.history, state.playback
    if not response.speaking:
        item = Item(response.item_id, role=Role.ASSISTANT, status=ItemStatus.IN_PROGRESS)
        history, playback = (
            _remember(state, item, len(history)),
            Playback(response.response_id, response.item_id),
        )
    samples = response.samples + response.output_format.samples(len(change.audio or b""))
    sent_ms = samples_to_ms(samples, response.output_format.sample_rate_hz)
    return replace(
        state,
        history=history,
        playback=replace(playback, sent_ms=sent_ms),
        renders=_renders_after(state, change),
        response=replace(
            response,
            speaking=True,
            turn_ended=response.turn_ended or change.end_of_turn,
            transcript=response.transcript + change.text,
            output_tokens=response.output_tokens + change.tokens,
            samples=samples,
        ),
    )


def _renders_after(state: State, change: ch.Spoken) -> tuple[Render, ...]:
    if change.unit is not None:
        return (*state.renders, Render(change.unit)) if change.audio is None else state.renders
    due, *later = state.renders
    if change.last_part:
        return tuple(later)
    samples = _active(state).output_format.samples(len(change.audio or b""))
    return (replace(due, next_part=due.next_part + 1, next_sample=due.next_sample + samples), *later)


def _response_ended(state: State, change: ch.ResponseEnded) -> State:
    response = _active(state)
    status = ItemStatus.COMPLETED if change.status == "completed" else ItemStatus.INCOMPLETE
    history = tuple(
        finished_item(response, status) if item.item_id == response.item_id else item
        for item in state.history
    )
    return replace(state, response=None, renders=(), history=history)


def finished_item(response: Response, status: ItemStatus) -> Item:
    """The assistant item that a response leaves behind."""
    part = Part("output_audio", text=response.transcript, samples=response.samples)
    return Item(response.item_id, role=Role.ASSISTANT, status=status, parts=(part,))


def _epoch_advanced(state: State, change: ch.EpochAdvanced) -> State:
    return replace(state, epoch=state.epoch + 1)


def _playback_moved(state: State, change: ch.PlaybackMoved) -> State:
    ledger = replace(state.playback, played_ms=change.played_ms, committed_ms=change.committed_ms)
    return replace(state, playback=ledger)


def _warned(state: State, change: ch.Warned) -> State:
    return replace(state, warned=True)


def _ended(state: State, change: ch.Ended) -> State:
    return replace(state, phase=Phase.ENDED, end_reason=change.reason)


def _same(state: State, change: ch.Change) -> State:
    return state


def _active(state: State) -> Response:
    assert state.response is not None
    return state.response


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
    ch.Unassigned: _unassigned,
    ch.ConfigChanged: _config_changed,
    ch.AudioReceived: _audio_received,
    ch.AudioCommitted: _audio_committed,
    ch.InputDropped: _input_dropped,
    ch.ItemInserted: _item_inserted,
    ch.SpeechBegan: _speech_began,
    ch.SpeechEnded: _speech_ended,
    ch.UnitTaken: _unit_taken,
    ch.ResponseBegan: _response_began,
    ch.Spoken: _spoken,
    ch.Listened: _same,
    ch.ResponseEnded: _response_ended,
    ch.EpochAdvanced: _epoch_advanced,
    ch.PlaybackMoved: _playback_moved,
    ch.HeartbeatSeen: _same,
    ch.Refused: _same,
    ch.Warned: _warned,
    ch.Ended: _ended,
}
