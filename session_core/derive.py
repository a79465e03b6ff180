"""What follows from a state and is needed in more than one place. Nothing here is stored."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from session_core.audio import samples_to_ms
from session_core.config import Clock, CommitPolicy, Modality, OverlapPolicy, Way
from session_core.events import ToolCall
from session_core.items import Item, ItemStatus, ItemType, Part, Role
from session_core.state import Message, Response, State


def received_samples(state: State) -> int:
    """Input received so far, in samples at the model's rate."""
    return state.input.received_samples(state.pinned.profile.input_sample_rate_hz)


def waiting_samples(state: State) -> int:
    """Input that no unit has taken yet."""
    return received_samples(state) - state.clock.consumed_samples


_AHEAD_MS = 2_000
"""Input sent faster than it is spoken counts as still being spoken for so long at most."""


def spoken_ms(state: State, sample: int) -> int:
    """Journal time at which the input before `sample` had come, at the pace of speech from its arrival on."""
    arrivals, rate_hz = state.input.arrivals, state.pinned.profile.input_sample_rate_hz
    if not arrivals:
        return state.now_ms
    first = next((one for one in reversed(arrivals) if one.sample < sample), arrivals[0])
    return first.ms + (sample - first.sample) * 1000 // rate_hz


def input_until_ms(state: State) -> int:
    """Journal time up to which the input covers what the user says; what comes later than that is missing."""
    until_ms = spoken_ms(state, received_samples(state))
    return min([until_ms, *(one.ms + _AHEAD_MS for one in state.input.arrivals[-1:])])


def ms_to_samples(state: State, ms: int) -> int:
    """Input samples at the model's rate that `ms` amount to."""
    return ms * state.pinned.profile.input_sample_rate_hz // 1000


def has_work(state: State) -> bool:
    """Tell whether a worker has something to do right now: a response to give, or a whole unit of input."""
    response, profile = state.response, state.pinned.profile
    if state.side or state.renders or (response is not None and not response.turn_ended):
        return True
    return profile.clock is Clock.UNIT and waiting_samples(state) >= profile.unit_samples


def may_begin(state: State) -> bool:
    """
    Tell whether the model may speak unasked.

    A session without turn detection waits to be asked on OpenAI's way.
    """
    if state.config.turn_detection is not None:
        return state.config.turn_detection.create_response
    return state.pinned.way is Way.DUPLEX and state.config.auto_response


def speech_interrupts(state: State) -> bool:
    """Tell whether the user's speech may stop a response in this session."""
    detection = state.config.turn_detection
    if detection is None or not detection.interrupt_response:
        return False
    return state.pinned.way is Way.OPENAI or state.config.overlap_policy is OverlapPolicy.BARGE_IN_ON_SPEECH


def message_id(response: Response) -> str:
    """The id of the response's next item; the first message's is `item_` + response id, as clients expect."""
    index = len(response.outputs)
    return f"item_{response.response_id}_{index}" if index else f"item_{response.response_id}"


def is_well_formed(call: ToolCall) -> bool:
    """Tell whether an application can make the call: it has a name, and its arguments are a JSON object."""
    try:
        _arguments.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(call.name)


_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])


def call_item(response: Response, call: ToolCall, item_id: str | None = None) -> Item:
    """The finished item of a function call."""
    return Item(
        item_id or message_id(response),
        ItemType.FUNCTION_CALL,
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
    )


def message_item(
    message: Message, response: Response, status: ItemStatus, heard_samples: int | None = None
) -> Item:
    """The item that a message leaves behind, heard as far as `heard_samples` (None: whole)."""
    if message.modality is Modality.TEXT:
        part = Part("output_text", text=message.text)
    else:
        part = Part(
            "output_audio",
            text=message.text,
            samples=message.samples,
            sample_rate_hz=response.output_format.sample_rate_hz,
            marks=message.marks,
            heard_samples=heard_samples,
        )
    return Item(message.item_id, role=Role.ASSISTANT, status=status, parts=(part,))


def closed_message(state: State, status: ItemStatus) -> Item:
    """The item that the open message becomes at this position: whole, or as far as it was heard."""
    response = state.response
    assert response is not None
    assert response.message is not None  # decide closes only what is open
    message = response.message
    whole = (
        status is ItemStatus.COMPLETED
        and state.config.playback_commit_policy is CommitPolicy.COMMIT_ALL_ON_DONE
    )
    if message.modality is Modality.TEXT or (whole and message.heard_samples is None):
        return message_item(message, response, status)
    heard = heard_samples(state, message) if message.heard_samples is None else message.heard_samples
    return message_item(message, response, status, min(heard, message.samples))


def heard_samples(state: State, message: Message) -> int:
    """How much of the message was heard: by the client's acks or, where it sends none, by the time it had."""
    ledger = state.playback
    if ledger.item_id != message.item_id:
        return 0
    heard_ms = (
        ledger.committed_ms if ledger.acknowledged else min(ledger.sent_ms, state.now_ms - ledger.began_ms)
    )
    return heard_ms * ledger.output_format.sample_rate_hz // 1000


def sent_ms(message: Message, response: Response) -> int:
    """Duration of the audio that the message gave out."""
    return samples_to_ms(message.samples, response.output_format.sample_rate_hz)


def find_item(state: State, item_id: str) -> int | None:
    """Where the item stands in the history, newest searched first; None if it does not."""
    for index in range(len(state.history) - 1, -1, -1):
        if state.history[index].item_id == item_id:
            return index
    return None


def item_before(state: State, index: int) -> str | None:
    """The id of the item before `index`; None only for the first."""
    return state.history[index - 1].item_id if index else None


def place_of_output(state: State, call_id: str) -> int | None:
    """Where a call's output belongs: behind its call, before outputs of later calls; None without a call."""
    called, later_calls = False, set()
    for index, item in enumerate(state.history):
        if item.item_type is ItemType.FUNCTION_CALL:
            if called:
                later_calls.add(item.call_id)
            called = called or item.call_id == call_id
        elif item.item_type is ItemType.FUNCTION_CALL_OUTPUT and item.call_id in later_calls:
            return index
    return len(state.history) if called else None


def cut_part(item: Item, content_index: int, heard: int) -> Item:
    """The item with one part heard only up to `heard` samples."""
    parts = list(item.parts)
    parts[content_index] = replace(parts[content_index], heard_samples=heard)
    return replace(item, parts=tuple(parts))
