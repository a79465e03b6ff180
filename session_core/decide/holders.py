"""Who holds the session, how it is configured, and when it ends."""

from __future__ import annotations

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.deadlines import Deadline, deadlines
from session_core.decide.common import NOTHING, Changes, end, new_id, refused, respond
from session_core.derive import has_work, received_samples
from session_core.errors import Cause
from session_core.items import Item, Part, Role
from session_core.state import Attachment, EndReason, Phase, Pinned, State


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
    """First, resume or takeover: the next generation with a good token wins, all else changes nothing."""
    held = state.attachment
    if body.attachment_id == held.attachment_id:
        return NOTHING
    if body.generation != held.generation + 1:
        return (
            ch.AttachRefused(body.attachment_id, "session_resume_conflict", "Another client resumed first."),
        )
    if not _token_is_good(held, body.presented_hash):
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


def _token_is_good(held: Attachment, presented_hash: bytes | None) -> bool:
    if held.generation == 0:
        return presented_hash is None
    return presented_hash is not None and presented_hash in (held.offered_hash, held.confirmed_hash)


def client_detached(state: State, body: ev.ClientDetached) -> Changes:
    """Somebody says that this generation's client is gone; true of the one in office only."""
    if state.attachment.attached and body.generation == state.attachment.generation:
        return (ch.Detached(),)
    return NOTHING


def worker_assigned(state: State, body: ev.WorkerAssigned) -> Changes:
    """
    The next generation takes over.

    One that began to work, had work and did none of it counts against the session: poison. One that died
    while the session waited for its turn does not: something else killed it.
    """
    held = state.worker
    if body.generation != held.generation + 1:
        return NOTHING
    barren = held.barren
    if held.worker is not None:
        barren = _barren(state, counts=held.serving and has_work(state))
    if barren >= state.pinned.limits.max_barren_workers:
        return end(state, EndReason.ENGINE_ERROR)
    return (ch.Assigned(body.worker, body.generation, barren),)


def assignment_declined(state: State, body: ev.AssignmentDeclined) -> Changes:
    """
    The worker in office does not want the session, or no longer.

    It is full or leaves; that is no sign of poison.
    """
    held = state.worker
    if held.worker is None or body.generation != held.generation:
        return NOTHING
    return (ch.Unassigned(_barren(state, counts=False)),)


def serving_began(state: State, body: ev.ServingBegan) -> Changes:
    """The worker in office begins."""
    return (ch.ServingBegan(),)


def model_failed(state: State, body: ev.ModelFailed) -> Changes:
    """The worker in office gives up."""
    return (ch.Unassigned(_barren(state, counts=True)),)


def _barren(state: State, *, counts: bool) -> int:
    """The generations in a row without a completed unit, up to the one in office, if that one `counts`."""
    held = state.worker
    if held.completed_units:
        return 0
    return held.barren + 1 if counts else held.barren


def update_session(state: State, body: cmd.UpdateSession) -> Changes:
    """Merge the patch, all or nothing. Naming the model or voice in force is no change."""
    config = state.config
    merged = body.patch.onto(config)
    if merged.model != config.model:
        return refused(
            body, Cause.MODEL_CHANGE, f"This session's model is {config.model!r}.", "session.model"
        )
    if merged.voice != config.voice and state.playback.response_id:
        message = "The voice cannot change once the session has spoken."
        return refused(body, Cause.VOICE_CHANGE, message, "session.audio.output.voice")
    return (ch.ConfigChanged(merged),)


def heartbeat(state: State, body: cmd.Heartbeat) -> Changes:
    """Answer with receipts."""
    return (ch.HeartbeatSeen(),)


def confirm_attachment(state: State, body: cmd.ConfirmAttachment) -> Changes:
    """All that this command means was done when it passed the gate."""
    return NOTHING


def close_session(state: State, body: cmd.CloseSession) -> Changes:
    """End what is in progress, then the session."""
    return end(state, EndReason.CLOSED)


_END_REASONS = {
    ev.DeadlineKind.IDLE: EndReason.IDLE,
    ev.DeadlineKind.GRACE: EndReason.GRACE,
    ev.DeadlineKind.MAXIMUM: EndReason.MAXIMUM,
}


def deadline_passed(state: State, body: ev.DeadlinePassed) -> Changes:
    """Take the deadline if the session has it and the entry is not early: one of any number of repeats."""
    if Deadline(body.due_ms, body.kind) not in deadlines(state) or state.now_ms < body.due_ms:
        return NOTHING
    if body.kind is ev.DeadlineKind.WARNING:
        return (ch.Warned(),)
    if body.kind is ev.DeadlineKind.SILENCE:
        return _silence_passed(state, body)
    return end(state, _END_REASONS[body.kind])


def _silence_passed(state: State, body: ev.DeadlinePassed) -> Changes:
    """The user said nothing: the silence becomes their turn, and the model is asked to respond to it."""
    first, last = state.input.committed_samples, received_samples(state)
    item_id = new_id("item", state)
    part = Part("input_audio", first_sample=first, samples=last - first)
    item = Item(item_id, role=Role.USER, parts=(part,))
    return (ch.SilencePassed(first, last, item_id), ch.AudioCommitted(item, last), *respond(state, body))


def outbound_digest(state: State, body: ev.OutboundDigest) -> Changes:
    """Something for `verify` to compare with; it changes nothing."""
    return NOTHING


def unreadable(state: State) -> Changes:
    """An entry that nobody can fold ends its session, the same way in every process."""
    return NOTHING if state.phase is Phase.ENDED else end(state, EndReason.INTERNAL_ERROR)
