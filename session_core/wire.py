"""
Outbound events: the canonical wire vocabulary, defined once.

Each class is one server event of the Realtime protocol. Encoded with msgspec's JSON encoder an event *is*
what a client reads: bytes become base64, UNSET fields stay away. Encoded with msgpack it is what the fold's
digest hashes. `tier` says who may see it: 1 OpenAI's own, 2 OpenAI's with keys that stock clients ignore, 3
only sessions opened the duplex way.

Session events carry `server_event_seq`, gapless, the replay cursor. An `AddressedEvent` goes to one
attachment, carries no number and is never replayed. Field names and shapes: OpenAI Realtime API reference,
and vLLM-Omni's duplex extension. Long because the vocabulary is: one small class for each event.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from session_core.config import JsonObject


class ServerEvent(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Base of all outbound events."""

    tier: ClassVar[int] = 1
    event_id: str = ""
    server_event_seq: int | UnsetType = UNSET
    epoch: int | UnsetType = UNSET


# --- the session object ---------------------------------------------------------------------------------


class AudioFormatView(Struct, frozen=True):
    """GA's format object; `rate` only where strict clients allow one (24 kHz PCM)."""

    type: str
    rate: int | UnsetType = UNSET


class TurnDetectionView(Struct, frozen=True, kw_only=True):
    """Effective turn detection; which of the middle fields there are depends on `type`."""

    type: str
    threshold: float | UnsetType = UNSET
    prefix_padding_ms: int | UnsetType = UNSET
    silence_duration_ms: int | UnsetType = UNSET
    idle_timeout_ms: int | UnsetType | None = UNSET
    eagerness: str | UnsetType = UNSET
    create_response: bool
    interrupt_response: bool


class TranscriptionView(Struct, frozen=True):
    """Effective input transcription."""

    model: str
    language: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET


class ToolView(Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    name: str
    description: str
    parameters: JsonObject


class AudioInputView(Struct, frozen=True):
    """Effective input settings."""

    format: AudioFormatView | UnsetType
    sample_rate_hz: int
    turn_detection: TurnDetectionView | None
    transcription: TranscriptionView | None
    noise_reduction: JsonObject | None


class AudioOutputView(Struct, frozen=True):
    """Effective output settings."""

    format: AudioFormatView | UnsetType
    sample_rate_hz: int
    voice: str
    speed: float


class AudioView(Struct, frozen=True):
    """Both directions."""

    input: AudioInputView
    output: AudioOutputView


class PlaybackView(Struct, frozen=True):
    """The playback ledger in ms of the newest response: generated >= sent >= played >= committed."""

    generated_ms: int
    sent_ms: int
    played_ms: int
    committed_ms: int


class SessionView(Struct, frozen=True, kw_only=True):
    """The session as clients see it; the fields after `expires_at` only on the duplex way."""

    type: Literal["realtime"] = "realtime"
    object: Literal["realtime.session"] = "realtime.session"
    id: str
    model: str
    output_modalities: tuple[str, ...] = ("audio",)
    instructions: str
    audio: AudioView
    tools: tuple[ToolView, ...] = ()
    tool_choice: str | JsonObject = "auto"
    max_output_tokens: int | Literal["inf"] = "inf"
    truncation: str | JsonObject = "auto"
    tracing: str | JsonObject | None = None
    expires_at: int
    session_id: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    turn_state: str | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    turn_id: int | UnsetType = UNSET
    active_response_id: str | UnsetType | None = UNSET
    overlap_policy: str | UnsetType = UNSET
    overlap_barge_in_ms: int | UnsetType = UNSET
    playback_commit_policy: str | UnsetType = UNSET
    playback: PlaybackView | UnsetType = UNSET
    idle_timeout_s: int | UnsetType = UNSET
    extra_body: dict[str, bool] | UnsetType = UNSET
    capabilities: dict[str, bool | int | str] | UnsetType = UNSET


# --- session events -------------------------------------------------------------------------------------


class AddressedEvent(ServerEvent, frozen=True, kw_only=True, gc=False):
    """An event for one attachment. The gateway that made the attachment delivers it; nobody replays it."""


class SessionCreated(AddressedEvent, tag="session.created", frozen=True, kw_only=True):
    """The first attachment is accepted. The gateway puts the token in."""

    session: SessionView
    attachment_generation: int | UnsetType = UNSET
    resume_token: str | UnsetType = UNSET


class SessionResumed(AddressedEvent, tag="session.resumed", frozen=True, kw_only=True):
    """A resume or takeover is accepted; the events after `last_received_server_event_seq` follow."""

    tier: ClassVar[int] = 3
    session: SessionView
    session_id: str
    attachment_generation: int
    last_received_server_event_seq: int
    input_audio_received_ms: int
    input_audio_received_bytes: int
    last_client_event_id: str | None
    resume_token: str | UnsetType = UNSET


class SessionReplaced(AddressedEvent, tag="session.replaced", frozen=True, kw_only=True):
    """Another attachment holds the session now."""

    tier: ClassVar[int] = 3
    session_id: str
    attachment_generation: int


class ResyncRequired(AddressedEvent, tag="session.resync_required", frozen=True, kw_only=True):
    """
    What the client has cannot be continued from the journal: it was trimmed, or the store lost entries.

    The one event that no fold gives: the gateway says it of a journal that cannot be folded from where the
    client is.
    """

    tier: ClassVar[int] = 3
    reason: str


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """OpenAI's nested error object; `event_id` is the client's."""

    type: str = "invalid_request_error"
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


class ResumeRefused(AddressedEvent, tag="error", frozen=True, kw_only=True):
    """A `ClientAttached` that the fold does not accept."""

    error: ErrorDetail


class SessionUpdated(ServerEvent, tag="session.updated", frozen=True, kw_only=True):
    """The configuration in force after an update."""

    session: SessionView


class HeartbeatAck(ServerEvent, tag="session.heartbeat_ack", frozen=True, kw_only=True):
    """Answer to a heartbeat, with receipts for the input."""

    tier: ClassVar[int] = 3
    session_id: str
    input_audio_received_ms: int
    input_audio_received_bytes: int
    last_client_event_id: str | None


class SessionClosed(ServerEvent, tag="session.closed", frozen=True, kw_only=True):
    """The last event of a session that was closed."""

    tier: ClassVar[int] = 3
    session_id: str
    reason: str


class SessionExpired(ServerEvent, tag="session.expired", frozen=True, kw_only=True):
    """The last event of a session that ran out of time."""

    tier: ClassVar[int] = 3
    session_id: str
    reason: str


class TurnEvent(ServerEvent, tag="turn.event", frozen=True, kw_only=True):
    """A turn transition that the client signalled, or something it may want to know, as a near maximum."""

    tier: ClassVar[int] = 3
    session_id: str
    event: str
    turn_state: str
    expires_at: int | UnsetType = UNSET


class OverlapDecision(ServerEvent, tag="overlap.decision", frozen=True, kw_only=True):
    """What the user's speech does to the response in progress."""

    tier: ClassVar[int] = 3
    session_id: str
    policy: str
    action: str
    reason: str


class ErrorEvent(ServerEvent, tag="error", frozen=True, kw_only=True):
    """A command was refused, or the session failed."""

    error: ErrorDetail


# --- input ----------------------------------------------------------------------------------------------


class InputSpeechStarted(ServerEvent, tag="input_audio_buffer.speech_started", frozen=True, kw_only=True):
    """The user began to speak; `item_id` is that of the item to come."""

    audio_start_ms: int
    item_id: str


class InputSpeechStopped(ServerEvent, tag="input_audio_buffer.speech_stopped", frozen=True, kw_only=True):
    """The user stopped."""

    audio_end_ms: int
    item_id: str


class InputTimeoutTriggered(
    ServerEvent, tag="input_audio_buffer.timeout_triggered", frozen=True, kw_only=True
):
    """The user said nothing for turn detection's idle timeout; the silence is committed and answered."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class CommitFacts(Struct, frozen=True, kw_only=True):
    """What a duplex client learns of a commit besides."""

    turn_id: int
    epoch: int
    response_create_deferred: bool


class InputCommitted(ServerEvent, tag="input_audio_buffer.committed", frozen=True, kw_only=True):
    """The buffer became a user item."""

    tier: ClassVar[int] = 2
    item_id: str
    previous_item_id: str | None
    event: CommitFacts | UnsetType = UNSET


class InputCleared(ServerEvent, tag="input_audio_buffer.cleared", frozen=True, kw_only=True):
    """What was not committed is gone."""


# --- conversation ---------------------------------------------------------------------------------------


class ContentView(Struct, frozen=True, kw_only=True):
    """A content part of an item."""

    type: str
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET


class ItemView(Struct, frozen=True, kw_only=True):
    """A conversation item."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: str
    status: str
    role: str | UnsetType = UNSET
    content: tuple[ContentView, ...] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    output: str | UnsetType = UNSET


class ItemAdded(ServerEvent, tag="conversation.item.added", frozen=True, kw_only=True):
    """An item is in the history (GA and duplex)."""

    previous_item_id: str | None
    item: ItemView


class ItemCreated(ServerEvent, tag="conversation.item.created", frozen=True, kw_only=True):
    """An item is in the history (beta and duplex)."""

    previous_item_id: str | None
    item: ItemView


class ItemDone(ServerEvent, tag="conversation.item.done", frozen=True, kw_only=True):
    """An item will not change any more (GA and duplex)."""

    previous_item_id: str | None
    item: ItemView


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved", frozen=True, kw_only=True):
    """An item as the history holds it, without its audio."""

    item: ItemView


class ItemDeleted(ServerEvent, tag="conversation.item.deleted", frozen=True, kw_only=True):
    """An item is out of the history."""

    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated", frozen=True, kw_only=True):
    """An item's audio and transcript end at `audio_end_ms`."""

    item_id: str
    content_index: int
    audio_end_ms: int


class DurationUsage(Struct, frozen=True, kw_only=True):
    """What a transcription cost, by duration."""

    type: Literal["duration"] = "duration"
    seconds: float


class TranscriptionDelta(
    ServerEvent, tag="conversation.item.input_audio_transcription.delta", frozen=True, kw_only=True
):
    """More of a user item's transcript."""

    item_id: str
    content_index: int = 0
    delta: str


class TranscriptionCompleted(
    ServerEvent, tag="conversation.item.input_audio_transcription.completed", frozen=True, kw_only=True
):
    """A user item's transcript."""

    item_id: str
    content_index: int = 0
    transcript: str
    usage: DurationUsage


class TranscriptionError(Struct, frozen=True, kw_only=True):
    """Why there is no transcript."""

    type: str = "transcription_error"
    code: str = "transcription_failed"
    message: str


class TranscriptionFailed(
    ServerEvent, tag="conversation.item.input_audio_transcription.failed", frozen=True, kw_only=True
):
    """A user item will have no transcript."""

    item_id: str
    content_index: int = 0
    error: TranscriptionError


# --- responses ------------------------------------------------------------------------------------------


class StatusDetails(Struct, frozen=True, kw_only=True):
    """Why a response ended as it did: `reason` is OpenAI's closed vocabulary, `cause` is ours."""

    type: str
    reason: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET


class Usage(Struct, frozen=True):
    """Tokens of a response."""

    total_tokens: int
    input_tokens: int
    output_tokens: int


class ResponseView(Struct, frozen=True, kw_only=True):
    """A response; `conversation_id` is None for one outside the conversation."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: str
    status_details: StatusDetails | None = None
    output: tuple[ItemView, ...] = ()
    conversation_id: str | None
    output_modalities: tuple[str, ...] = ("audio",)
    metadata: dict[str, str] | None = None
    usage: Usage | None = None


class ResponseCreated(ServerEvent, tag="response.created", frozen=True, kw_only=True):
    """A response exists, asked for or not."""

    tier: ClassVar[int] = 2
    response_id: str
    response: ResponseView


class ResponseDone(ServerEvent, tag="response.done", frozen=True, kw_only=True):
    """A response is over; nothing of it comes after, except `rate_limits.updated`."""

    tier: ClassVar[int] = 2
    response_id: str
    response: ResponseView


class OutputItemAdded(ServerEvent, tag="response.output_item.added", frozen=True, kw_only=True):
    """A response begins an item."""

    response_id: str
    output_index: int = 0
    item: ItemView


class OutputItemDone(ServerEvent, tag="response.output_item.done", frozen=True, kw_only=True):
    """A response's item is finished."""

    response_id: str
    output_index: int = 0
    item: ItemView


class PartView(Struct, frozen=True, kw_only=True):
    """A part of a response; says `audio` and `text` where items say `output_audio` and `output_text`."""

    type: str
    transcript: str | UnsetType = UNSET
    text: str | UnsetType = UNSET


class ContentPartAdded(ServerEvent, tag="response.content_part.added", frozen=True, kw_only=True):
    """A response's item begins a part."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: PartView


class ContentPartDone(ServerEvent, tag="response.content_part.done", frozen=True, kw_only=True):
    """A part is finished."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: PartView


class ResponseSpeak(ServerEvent, tag="response.speak", frozen=True, kw_only=True):
    """The model decided to speak: once, before the first audio delta."""

    tier: ClassVar[int] = 3
    response_id: str


class ResponseListen(ServerEvent, tag="response.listen", frozen=True, kw_only=True):
    """The model goes on listening; with `response_id` when that answers a response that was asked for."""

    tier: ClassVar[int] = 3
    response_id: str | UnsetType = UNSET


class AudioTextMark(Struct, frozen=True):
    """From `audio_ms` of the item's audio on, its transcript up to `text_chars` characters is being said."""

    audio_ms: int
    text_chars: int


class DeltaMetadata(Struct, frozen=True, gc=False):
    """What a duplex client reads beside the audio."""

    epoch: int
    end_of_turn: bool
    audio_duration_ms: int
    audio_text_marks: tuple[AudioTextMark, ...] | UnsetType = UNSET
    discarded: bool | UnsetType = UNSET


class AudioDelta(ServerEvent, tag="response.output_audio.delta", frozen=True, kw_only=True, gc=False):
    """Audio of a response in the session's output format."""

    tier: ClassVar[int] = 2
    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: bytes
    format: str
    sample_rate_hz: int
    metadata: DeltaMetadata


class TranscriptDelta(ServerEvent, tag="response.output_audio_transcript.delta", frozen=True, kw_only=True):
    """What the audio says."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str


class AudioDone(ServerEvent, tag="response.output_audio.done", frozen=True, kw_only=True):
    """No more audio."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class TranscriptDone(ServerEvent, tag="response.output_audio_transcript.done", frozen=True, kw_only=True):
    """The whole transcript: the deltas joined."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    transcript: str


class TextDelta(ServerEvent, tag="response.output_text.delta", frozen=True, kw_only=True):
    """Text of a response without audio."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str


class TextDone(ServerEvent, tag="response.output_text.done", frozen=True, kw_only=True):
    """The whole text: the deltas joined."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0
    text: str


class CallArgumentsDelta(
    ServerEvent, tag="response.function_call_arguments.delta", frozen=True, kw_only=True
):
    """Arguments of a function call."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


class CallArgumentsDone(ServerEvent, tag="response.function_call_arguments.done", frozen=True, kw_only=True):
    """A function call is whole."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


class MalformedCall(ServerEvent, tag="duplex.function_call.done", frozen=True, kw_only=True):
    """The model wrote a call that cannot be made, as it wrote it; no item and no other event tells of it."""

    tier: ClassVar[int] = 3
    status: Literal["malformed"] = "malformed"
    response_id: str
    call_id: str
    name: str
    arguments: str


class RateLimitView(Struct, frozen=True, kw_only=True):
    """What is left of a rate limit."""

    name: str
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerEvent, tag="rate_limits.updated", frozen=True, kw_only=True):
    """Follows every `response.done`; empty where no limits are configured."""

    rate_limits: tuple[RateLimitView, ...] = ()


class OutputAudioCleared(ServerEvent, tag="output_audio_buffer.cleared", frozen=True, kw_only=True):
    """Output audio that was not heard is void; the client drops what it has queued."""

    response_id: str


class PlaybackAcknowledged(ServerEvent, tag="playback.acknowledged", frozen=True, kw_only=True):
    """The playback ledger after an ack."""

    tier: ClassVar[int] = 3
    response_id: str
    item_id: str
    playback: PlaybackView


class Outbound(NamedTuple):
    """An outbound event, and the attachment it is for; None: the session's, for all that come."""

    event: ServerEvent
    attachment_id: str | None = None
