"""Decide: what an entry that passed the reducer's gate means in the present state. Pure functions, one per entry type.

Each takes the state, with position and writer already moved on, and the entry's body, and gives the changes in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.audio import samples_to_ms
from session_core.config import Clock, Way
from session_core.deadlines import Deadline, deadlines
from session_core.errors import BrokenInvariant, Cause, Refusal
from session_core.items import Item, ItemStatus, Part, Role
from session_core.state import Attachment, EndReason, Phase, Pinned, Response, State

Changes: TypeAlias = Sequence[ch.Change]
NOTHING: Changes = ()


# --- opening, attachments, workers --------------------------------------------------------------------------------


def opened(state: State, body: ev.SessionOpened) -> Changes:
    """The first entry fixes everything that never changes."""
    pinned = Pinned(
        session_id=body.session_id,
        opened_ms=state.now_ms,
        profile=body.profile,
        limits=body.limits,
        way=body.way,
        dialect=body.dialect,
        reducer_version=body.reducer_version,
    )
    return (ch.Opened(pinned, body.config),)


def client_attached(state: State, body: ev.ClientAttached) -> Changes:
    """First, resume or takeover: the next generation with a good token wins, everything else changes nothing."""
    held = state.attachment
    if body.attachment_id == held.attachment_id:
        return NOTHING
    if held.generation == 0:
        good = body.presented_hash is None
    else:
        good = body.presented_hash is not None and body.presented_hash in (
            held.offered_hash,
            held.confirmed_hash,
        )
    if body.generation != held.generation + 1:
        return (
            ch.AttachRefused(body.attachment_id, "session_resume_conflict", "Another client resumed first."),
        )
    if not good:
        return (
            ch.AttachRefused(body.attachment_id, "invalid_resume_token", "The resume token is not valid."),
        )
    attachment = Attachment(
        generation=body.generation,
        attachment_id=body.attachment_id,
        gateway=body.gateway,
        attached=True,
        since_ms=state.now_ms,
        offered_hash=body.new_hash,
        confirmed_hash=body.presented_hash,
    )
    return (ch.Attached(attachment, body.received_seq, held.attachment_id if held.attached else None),)


def client_detached(state: State, body: ev.ClientDetached) -> Changes:
    """Somebody says that this generation's client is gone; true of the one in office only."""
    if state.attachment.attached and body.generation == state.attachment.generation:
        return (ch.Detached(),)
    return NOTHING


def worker_assigned(state: State, body: ev.WorkerAssigned) -> Changes:
    """The next generation takes over. One that had work and did none of it counts against the session: poison."""
    held = state.worker
    if body.generation != held.generation + 1:
        return NOTHING
    barren = held.barren if held.worker is None else _barren(state)
    if barren >= state.pinned.limits.max_barren_workers:
        return _end(state, EndReason.ENGINE_ERROR)
    return (ch.Assigned(body.worker, body.generation, barren),)


def assignment_declined(state: State, body: ev.AssignmentDeclined) -> Changes:
    """The worker in office does not want the session, or no longer. It is full or leaves; that is no sign of poison."""
    held = state.worker
    if held.worker is None or body.generation != held.generation:
        return NOTHING
    return (ch.Unassigned(0 if held.completed_units else held.barren),)


def model_failed(state: State, body: ev.ModelFailed) -> Changes:
    """The worker in office gives up."""
    return (ch.Unassigned(_barren(state)),)


def _barren(state: State) -> int:
    """Count the generations in a row, up to the one in office, that had work and did none of it."""
    held = state.worker
    if held.completed_units:
        return 0
    return held.barren + 1 if has_work(state) else held.barren


def has_work(state: State) -> bool:
    """Tell whether a worker has something to do right now: a response to give, or a unit of input that is whole."""
    profile, response = state.pinned.profile, state.response
    if response is not None and not response.turn_ended:
        return True
    waiting = _received(state) - state.clock.consumed_samples
    return profile.clock is Clock.UNIT and waiting >= profile.unit_samples


# --- configuration ------------------------------------------------------------------------------------------------


def update_session(state: State, body: cmd.UpdateSession) -> Changes:
    """Merge the patch, all or nothing. Naming the model or voice in force is no change."""
    config = state.config
    merged = body.patch.onto(config)
    if merged.model != config.model:
        return _refused(
            body, Cause.MODEL_CHANGE, f"This session's model is {config.model!r}.", "session.model"
        )
    if merged.voice != config.voice and state.playback.response_id:
        return _refused(
            body,
            Cause.VOICE_CHANGE,
            "The voice cannot change once the session has spoken.",
            "session.audio.output.voice",
        )
    return (ch.ConfigChanged(merged),)


# --- input --------------------------------------------------------------------------------------------------------


def append_audio(state: State, body: cmd.AppendAudio) -> Changes:
    """Take whole samples, up to the bound on input that no unit has taken yet."""
    audio_format = state.config.input_format
    size = len(body.audio)
    if size % audio_format.sample_bytes:
        message = f"{size} bytes are no whole number of {audio_format.encoding} samples."
        return _refused(body, Cause.BAD_AUDIO, message, "audio")
    if state.input.pending_bytes + size > state.pinned.limits.max_pending_input_bytes:
        return _refused(body, Cause.BACKPRESSURE, "Input comes faster than the model takes it.", "audio")
    return (ch.AudioReceived(body.audio, audio_format.ticks(size)),)


def commit_input(state: State, body: cmd.CommitInput) -> Changes:
    """Seal the buffer into a user item and, where that was asked for, begin a response."""
    pinned, buffer = state.pinned, state.input
    received = _received(state)
    buffered_ms = samples_to_ms(received - buffer.committed_samples, pinned.profile.input_sample_rate_hz)
    if buffered_ms < max(1, pinned.limits.min_commit_ms):
        message = (
            f"Error committing input audio buffer: buffer too small. Expected at least {pinned.limits.min_commit_ms} ms "
            f"of audio, but buffer only has {buffered_ms} ms of audio."
        )
        return _refused(body, Cause.BUFFER_EMPTY, message)
    committed = ch.AudioCommitted(_user_item(state, buffer.committed_samples, received), received)
    respond = body.respond
    if respond is None:
        respond = pinned.way is Way.DUPLEX and state.config.auto_response
    if not body.speech:
        return (committed, ch.Listened(None))
    if respond and state.response is None:
        return (committed, ch.ResponseBegan(_response(state, requested=True)))
    return (committed,)


def clear_input(state: State, body: cmd.ClearInput) -> Changes:
    """Drop what is not committed; with `cancel_turn` start a new epoch as well."""
    dropped = ch.InputDropped(_received(state))
    if not body.cancel_turn:
        return (dropped,)
    return (*_interrupt(state, "client_cancelled", "input_cancel"), dropped)


def speech_started(state: State, body: ev.SpeechStarted) -> Changes:
    """The user speaks: announced, and an interruption where the session wants it so."""
    detection = state.config.turn_detection
    if (
        detection is None
        or state.input.speech_from is not None
        or body.sample < state.input.committed_samples
    ):
        return NOTHING
    began = ch.SpeechBegan(min(body.sample, _received(state)), _new_id("item", state))
    if state.response is not None and detection.interrupt_response:
        return (began, *_interrupt(state, "turn_detected", "speech"))
    return (began,)


def speech_stopped(state: State, body: ev.SpeechStopped) -> Changes:
    """The user stopped: the speech becomes an item, unless a manual commit already took it."""
    detection, buffer = state.config.turn_detection, state.input
    if buffer.speech_from is None:
        return NOTHING
    end = min(body.sample, _received(state))
    ended = ch.SpeechEnded(end, _user_item_id(state))
    if detection is None or end <= buffer.speech_from:
        return (ended,)
    first = max(buffer.committed_samples, buffer.speech_from - _samples(state, detection.prefix_padding_ms))
    committed = ch.AudioCommitted(_user_item(state, first, end), end)
    if detection.create_response and state.response is None:
        return (ended, committed, ch.ResponseBegan(_response(state, requested=True)))
    return (ended, committed)


def create_item(state: State, body: cmd.CreateItem) -> Changes:
    """Insert an item where the client wants it."""
    ids = [item.item_id for item in state.history]
    item = body.item if body.item.item_id else replace(body.item, item_id=_new_id("item", state))
    if item.item_id in ids:
        message = f"Error adding item: an item with id {item.item_id!r} already exists."
        return _refused(body, Cause.DUPLICATE_ITEM, message, "item.id")
    if body.previous_item_id is None:
        return (ch.ItemInserted(item, len(ids)),)
    if body.previous_item_id == "root":
        return (ch.ItemInserted(item, 0),)
    if body.previous_item_id not in ids:
        message = f"Error adding item: there is no item {body.previous_item_id!r} to put it after."
        return _refused(body, Cause.UNKNOWN_PREVIOUS_ITEM, message, "previous_item_id")
    return (ch.ItemInserted(item, ids.index(body.previous_item_id) + 1),)


# --- responses ----------------------------------------------------------------------------------------------------


def create_response(state: State, body: cmd.CreateResponse) -> Changes:
    """Begin a response unless one is in progress."""
    if state.response is not None:
        message = f"Conversation already has an active response in progress: {state.response.response_id}."
        return _refused(body, Cause.RESPONSE_ACTIVE, message)
    return (ch.ResponseBegan(_response(state, requested=True, options=body.options)),)


def cancel_response(state: State, body: cmd.CancelResponse) -> Changes:
    """Stop the response in progress."""
    active = state.response
    if active is None or body.response_id not in (None, active.response_id):
        return _refused(
            body, Cause.NOTHING_TO_CANCEL, "Cancellation failed: no active response found", "response_id"
        )
    return _interrupt(state, "client_cancelled", "response_cancel")


def unit_completed(state: State, body: ev.ModelUnitCompleted) -> Changes:
    """Count the unit; then, if its epoch is not over, let the response begin, go on, or end by it."""
    if body.unit != state.clock.next_unit:
        raise BrokenInvariant(f"unit {body.unit} where unit {state.clock.next_unit} was due")
    if body.first_sample + body.input_samples > _received(state):
        raise BrokenInvariant(f"unit {body.unit} holds input that has not come")
    if body.epoch != state.epoch:
        return (ch.UnitTaken(body, muted=True),)
    active = state.response
    if body.decision is ev.Decision.LISTEN:
        return (ch.UnitTaken(body, muted=False), *_listened(active, body))
    begins: Changes = NOTHING
    if active is None:
        if not may_begin(state):
            return (ch.UnitTaken(body, muted=True),)
        begins = (ch.ResponseBegan(_response(state, requested=False)),)
    ends_turn = body.decision is ev.Decision.TURN_END
    spoken = ch.Spoken(body.audio, body.text, len(body.token_ids), ends_turn, body.unit)
    taken = ch.UnitTaken(body, muted=False)
    if ends_turn and body.audio is not None and not state.renders:
        return (taken, *begins, spoken, ch.ResponseEnded("completed"))
    return (taken, *begins, spoken)


def may_begin(state: State) -> bool:
    """Tell whether the model may speak unasked. A session without turn detection waits to be asked on OpenAI's way."""
    pinned, config = state.pinned, state.config
    if config.turn_detection is not None:
        return config.turn_detection.create_response
    return pinned.way is Way.DUPLEX and config.auto_response


def output_rendered(state: State, body: ev.OutputRendered) -> Changes:
    """Take the next part of the oldest unit that waits for its audio; any other part changes nothing."""
    if not state.renders:
        return NOTHING
    due = state.renders[0]
    if (body.unit, body.part, body.first_sample) != (due.unit, due.next_part, due.next_sample):
        return NOTHING
    finished = (
        body.last and len(state.renders) == 1 and state.response is not None and state.response.turn_ended
    )
    spoken = ch.Spoken(body.audio, end_of_turn=finished, last_part=body.last)
    return (spoken, ch.ResponseEnded("completed")) if finished else (spoken,)


def _listened(active: Response | None, body: ev.ModelUnitCompleted) -> Changes:
    """A unit of listening ends what the model was saying, and answers what it was asked."""
    if active is not None and active.speaking and not active.turn_ended:
        return (ch.ResponseEnded("cancelled", "turn_detected", "model_yielded"), ch.EpochAdvanced())
    if active is not None and not active.speaking and body.answers == active.response_id:
        return (ch.Listened(active.response_id), ch.ResponseEnded("completed"))
    return NOTHING


# --- the client's life signs --------------------------------------------------------------------------------------


def ack_playback(state: State, body: cmd.AckPlayback) -> Changes:
    """Move the ledger; it never goes back and never beyond what was sent. Acks of older responses are harmless."""
    ledger = state.playback
    if not ledger.response_id or body.response_id not in (None, ledger.response_id):
        return NOTHING
    played = max(ledger.played_ms, min(body.played_ms, ledger.sent_ms))
    committed = played if body.committed_ms is None else min(body.committed_ms, played)
    return (ch.PlaybackMoved(played, max(ledger.committed_ms, committed)),)


def heartbeat(state: State, body: cmd.Heartbeat) -> Changes:
    """Answer with receipts."""
    return (ch.HeartbeatSeen(),)


def confirm_attachment(state: State, body: cmd.ConfirmAttachment) -> Changes:
    """All that this command means was done when it passed the gate."""
    return NOTHING


def close_session(state: State, body: cmd.CloseSession) -> Changes:
    """End what is in progress, then the session."""
    return _end(state, EndReason.CLOSED)


_END_REASONS = {
    ev.DeadlineKind.IDLE: EndReason.IDLE,
    ev.DeadlineKind.GRACE: EndReason.GRACE,
    ev.DeadlineKind.MAXIMUM: EndReason.MAXIMUM,
}


def deadline_passed(state: State, body: ev.DeadlinePassed) -> Changes:
    """Take the deadline if the session really has it and the entry is not early: one of any number of repeats."""
    if Deadline(body.due_ms, body.kind) not in deadlines(state) or state.now_ms < body.due_ms:
        return NOTHING
    if body.kind is ev.DeadlineKind.WARNING:
        return (ch.Warned(body.kind),)
    return _end(state, _END_REASONS[body.kind])


def outbound_digest(state: State, body: ev.OutboundDigest) -> Changes:
    """Something for `verify` to compare with; it changes nothing."""
    return NOTHING


def unreadable(state: State) -> Changes:
    """An entry that nobody can fold ends its session, the same way in every process."""
    return NOTHING if state.phase is Phase.ENDED else _end(state, EndReason.INTERNAL_ERROR)


# --- shared -------------------------------------------------------------------------------------------------------


def _received(state: State) -> int:
    return state.input.received_samples(state.pinned.profile.input_sample_rate_hz)


def _samples(state: State, ms: int) -> int:
    return ms * state.pinned.profile.input_sample_rate_hz // 1000


def _new_id(prefix: str, state: State) -> str:
    """An id that every process derives alike: one entry gives at most one id of a kind."""
    return f"{prefix}_{state.position[0]}_{state.position[1]}"


def _refused(body: Any, cause: Cause, message: str, param: str | None = None) -> Changes:
    return (ch.Refused(Refusal(cause, message, param), body.event_id),)


def _user_item(state: State, first: int, end: int) -> Item:
    part = Part("input_audio", first_sample=first, samples=end - first)
    return Item(_user_item_id(state), role=Role.USER, status=ItemStatus.COMPLETED, parts=(part,))


def _user_item_id(state: State) -> str:
    """The id that was promised when the speech began; a new one without speech, or for what follows a manual commit."""
    return state.input.speech_item_id or _new_id("item", state)


def _response(state: State, *, requested: bool, options: cmd.ResponseOptions | None = None) -> Response:
    response_id = _new_id("resp", state)
    return Response(
        response_id=response_id,
        item_id=f"item_{response_id}",
        output_format=state.config.output_format,
        options=options or cmd.ResponseOptions(),
        requested=requested,
    )


def _interrupt(state: State, reason: str, cause: str) -> Changes:
    """A new epoch; the response in progress, if any, ends with its last epoch before it."""
    if state.response is None:
        return (ch.EpochAdvanced(),)
    return (ch.ResponseEnded("cancelled", reason, cause), ch.EpochAdvanced())


def _end(state: State, reason: EndReason) -> Changes:
    """End the session, and before it the response in progress."""
    if state.response is None:
        return (ch.Ended(reason),)
    if reason in (EndReason.ENGINE_ERROR, EndReason.INTERNAL_ERROR):
        return (ch.ResponseEnded("failed", None, reason), ch.Ended(reason))
    return (ch.ResponseEnded("cancelled", "client_cancelled", reason), ch.Ended(reason))


Decide: TypeAlias = Callable[[State, Any], Changes]
"""The form of every function above. The body's type is fixed by the reducer's table, which mypy cannot follow."""
