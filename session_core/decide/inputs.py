"""What the user says, and the conversation's items."""

from __future__ import annotations

from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.audio import samples_to_ms
from session_core.config import Way
from session_core.decide.common import NOTHING, Changes, interrupt, new_id, refused, respond
from session_core.derive import (
    find_item,
    message_item,
    ms_to_samples,
    place_of_output,
    received_samples,
    speech_interrupts,
)
from session_core.errors import Cause
from session_core.items import Item, ItemStatus, ItemType, Part, Role
from session_core.state import State

# --- the buffer -----------------------------------------------------------------------------------------


def append_audio(state: State, body: cmd.AppendAudio) -> Changes:
    """Take whole samples, up to the bound on input that no unit has taken yet."""
    audio_format = state.config.input_format
    size = len(body.audio)
    if size % audio_format.sample_bytes:
        message = f"{size} bytes are no whole number of {audio_format.encoding} samples."
        return refused(body, Cause.BAD_AUDIO, message, "audio")
    if state.input.pending_bytes + size > state.pinned.limits.max_pending_input_bytes:
        return refused(body, Cause.BACKPRESSURE, "Input comes faster than the model takes it.", "audio")
    return (ch.AudioReceived(body.audio, audio_format.ticks(size)),)


def append_text(state: State, body: cmd.AppendText) -> Changes:
    """Take text into the turn that is being spoken, where the model can, up to the bound on input."""
    if not state.pinned.profile.supports_text:
        return refused(body, Cause.LIVE_TEXT_UNSUPPORTED, "This model takes no text in a live turn.", "text")
    if len(state.input.text) + len(body.text) > state.pinned.limits.max_pending_input_bytes:
        return refused(body, Cause.BACKPRESSURE, "Too much text waits for a commit.", "text")
    return (ch.TextReceived(body.text),)


def commit_input(state: State, body: cmd.CommitInput) -> Changes:
    """Seal the buffer into a user item and, where that was asked for, begin a response."""
    limits, rate_hz = state.pinned.limits, state.pinned.profile.input_sample_rate_hz
    received, committed = received_samples(state), state.input.committed_samples
    buffered_ms = samples_to_ms(received - committed, rate_hz)
    if buffered_ms < max(1, limits.min_commit_ms) and not state.input.text:
        message = (
            "Error committing input audio buffer: buffer too small. "
            f"Expected at least {limits.min_commit_ms} ms of audio, "
            f"but buffer only has {buffered_ms} ms of audio."
        )
        return refused(body, Cause.BUFFER_EMPTY, message)
    change = ch.AudioCommitted(_user_item(state, committed, received), received)
    if not body.speech:
        return (change, ch.Listened(None))
    wanted = body.respond
    if wanted is None:
        wanted = state.pinned.way is Way.DUPLEX and state.config.auto_response
    return (change, *respond(state, body)) if wanted else (change,)


def clear_input(state: State, body: cmd.ClearInput) -> Changes:
    """Drop what is not committed; with `cancel_turn` start a new epoch as well."""
    dropped = ch.InputDropped(received_samples(state))
    if body.cancel_turn:
        return (*interrupt(state, "client_cancelled", "input_cancel"), dropped)
    return (dropped,)


# --- turn detection -------------------------------------------------------------------------------------


def speech_started(state: State, body: ev.SpeechStarted) -> Changes:
    """The user speaks: announced, and an interruption where the session wants it so."""
    if state.config.turn_detection is None or state.input.speech_from is not None:
        return NOTHING
    if body.sample < state.input.committed_samples:
        return NOTHING
    began = ch.SpeechBegan(min(body.sample, received_samples(state)), new_id("item", state))
    if state.response is None:
        return (began,)
    if not speech_interrupts(state):
        return (began, ch.OverlapDecided("listen", "policy_listen_only"))
    if state.config.overlap_barge_in_ms:
        return (began, ch.OverlapDecided("listen", "accumulating_overlap_speech"))
    return (
        began,
        ch.OverlapDecided("barge_in", "speech_started"),
        *interrupt(state, "turn_detected", "speech"),
    )


def long_overlap(state: State, heard_to_sample: int) -> Changes:
    """
    Interrupt a response that the user has talked over for long enough to be no acknowledgement.

    That speech is over is told only after turn detection's silence, so until then it may be over.
    """
    wait_ms, began, detection = (
        state.config.overlap_barge_in_ms,
        state.input.speech_from,
        state.config.turn_detection,
    )
    if state.response is None or began is None or detection is None or not wait_ms:
        return NOTHING
    certain = ms_to_samples(state, wait_ms + detection.silence_duration_ms)
    if not speech_interrupts(state) or heard_to_sample - max(began, state.response.after_sample) < certain:
        return NOTHING
    return (
        ch.OverlapDecided("barge_in", "long_overlap_speech"),
        *interrupt(state, "turn_detected", "speech"),
    )


def speech_stopped(state: State, body: ev.SpeechStopped) -> Changes:
    """The user stopped: the speech becomes an item, unless a manual commit already took it."""
    detection, buffer = state.config.turn_detection, state.input
    if buffer.speech_from is None:
        return NOTHING
    end = min(body.sample, received_samples(state))
    ended = ch.SpeechEnded(end, _user_item_id(state))
    if detection is None or end <= buffer.speech_from:
        return (ended,)
    first = max(
        buffer.committed_samples, buffer.speech_from - ms_to_samples(state, detection.prefix_padding_ms)
    )
    committed = ch.AudioCommitted(_user_item(state, first, end), end)
    if not detection.create_response:
        return (ended, committed)
    return (ended, committed, *respond(state, body))


def input_transcribed(state: State, body: ev.InputTranscribed) -> Changes:
    """A user item has its transcript, in whatever order the transcripts come."""
    if body.item_id not in state.transcribing:
        return NOTHING
    return (ch.Transcribed(body.item_id, body.text, body.duration_ms, body.error),)


# --- items ----------------------------------------------------------------------------------------------


def create_item(state: State, body: cmd.CreateItem) -> Changes:
    """Insert an item where the client wants it; a call's output without a wish goes behind its call."""
    item = body.item if body.item.item_id else replace(body.item, item_id=new_id("item", state))
    if find_item(state, item.item_id) is not None:
        message = f"Error adding item: an item with id {item.item_id!r} already exists."
        return refused(body, Cause.DUPLICATE_ITEM, message, "item.id")
    place = len(state.history)
    if item.item_type is ItemType.FUNCTION_CALL_OUTPUT:
        behind_call = place_of_output(state, item.call_id or "")
        if behind_call is None:
            message = f"Error adding item: there is no function call {item.call_id!r}."
            return refused(body, Cause.UNKNOWN_CALL, message, "item.call_id")
        place = behind_call
    if body.previous_item_id == "root":
        place = 0
    elif body.previous_item_id is not None:
        before = find_item(state, body.previous_item_id)
        if before is None:
            message = f"Error adding item: there is no item {body.previous_item_id!r} to put it after."
            return refused(body, Cause.UNKNOWN_ITEM, message, "previous_item_id")
        place = before + 1
    return (ch.ItemInserted(item, place),)


def retrieve_item(state: State, body: cmd.RetrieveItem) -> Changes:
    """Show the item."""
    index = find_item(state, body.item_id)
    if index is None:
        return refused(body, Cause.UNKNOWN_ITEM_RETRIEVE, _no_item(body.item_id), "item_id")
    return (ch.ItemRetrieved(state.history[index]),)


def delete_item(state: State, body: cmd.DeleteItem) -> Changes:
    """Take the item out."""
    if find_item(state, body.item_id) is None:
        return refused(body, Cause.UNKNOWN_ITEM_DELETE, _no_item(body.item_id), "item_id")
    return (ch.ItemDeleted(body.item_id),)


def truncate_item(state: State, body: cmd.TruncateItem) -> Changes:
    """Cut an assistant's audio where the user stopped hearing it, up to all that was sent."""
    index = find_item(state, body.item_id)
    if index is None:
        return refused(body, Cause.UNKNOWN_ITEM_TRUNCATE, _no_item(body.item_id), "item_id")
    part = _part_to_cut(state, index, body.content_index)
    if part is None or part.kind != "output_audio" or not part.sample_rate_hz:
        text = "Only audio that the model gave in this session can be truncated."
        return refused(body, Cause.NOT_AUDIO, text, "content_index")
    sent = samples_to_ms(part.samples, part.sample_rate_hz)
    if body.audio_end_ms > sent:
        text = f"Audio content of {sent}ms is already shorter than {body.audio_end_ms}ms"
        return refused(body, Cause.BEYOND_AUDIO, text, "audio_end_ms")
    heard = body.audio_end_ms * part.sample_rate_hz // 1000
    return (ch.ItemTruncated(body.item_id, body.content_index, body.audio_end_ms, heard),)


def _part_to_cut(state: State, index: int, content_index: int) -> Part | None:
    """The part as it stands, also of the message that is being said right now."""
    item, response = state.history[index], state.response
    if response is not None and response.message is not None and response.message.item_id == item.item_id:
        item = message_item(response.message, response, ItemStatus.IN_PROGRESS)
    return item.parts[content_index] if content_index < len(item.parts) else None


def _no_item(item_id: str) -> str:
    return f"Item with item_id not found: {item_id!r}."


def _user_item(state: State, first: int, end: int) -> Item:
    parts = [Part("input_audio", first_sample=first, samples=end - first)] if end > first else []
    if state.input.text:
        parts.append(Part("input_text", text=state.input.text))
    return Item(_user_item_id(state), role=Role.USER, parts=tuple(parts))


def _user_item_id(state: State) -> str:
    """The id promised when the speech began; a new one without speech or for what follows a manual commit."""
    return state.input.speech_item_id or new_id("item", state)
