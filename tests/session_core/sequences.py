"""Types of outbound events, in the order in which clients read them."""

ADDED = ["conversation.item.added", "conversation.item.created"]
OPENED = [*ADDED, "response.output_item.added", "response.content_part.added"]
SPOKEN = ["response.output_audio.delta", "response.output_audio_transcript.delta"]
CLOSED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
]
CALLED = [
    *ADDED,
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]
DONE = ["response.done", "rate_limits.updated"]
TEXT_CLOSED = [
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
]
COMMITTED = [*ADDED, "input_audio_buffer.committed", "conversation.item.done"]
