"""The events of the wire contract, by name: what the suite must cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CLIENT_EVENTS: Final[Mapping[str, int]] = {
    "session.update": 2,
    "session.heartbeat": 3,
    "session.event_ack": 3,
    "session.close": 3,
    "session.resume": 3,
    "input_audio_buffer.append": 2,
    "input_audio_buffer.commit": 2,
    "input.commit": 3,
    "input_audio_buffer.clear": 1,
    "input.cancel": 3,
    "input.text.append": 3,
    "conversation.item.create": 1,
    "conversation.item.retrieve": 1,
    "conversation.item.delete": 1,
    "conversation.item.truncate": 1,
    "response.create": 1,
    "response.cancel": 1,
    "output_audio_buffer.clear": 1,
    "barge_in": 3,
    "turn.signal": 3,
    "playback.ack": 3,
}
"""What a client may send -> its tier."""

SERVER_EVENTS: Final[Mapping[str, int]] = {
    "session.created": 2,
    "session.updated": 2,
    "session.heartbeat_ack": 3,
    "session.closed": 3,
    "session.resumed": 3,
    "session.replaced": 3,
    "session.expired": 3,
    "session.resync_required": 3,
    "input_audio_buffer.speech_started": 1,
    "input_audio_buffer.speech_stopped": 1,
    "input_audio_buffer.cleared": 1,
    "input_audio_buffer.timeout_triggered": 1,
    "input_audio_buffer.committed": 2,
    "conversation.item.added": 1,
    "conversation.item.created": 1,
    "conversation.item.done": 1,
    "conversation.item.deleted": 1,
    "conversation.item.truncated": 1,
    "conversation.item.retrieved": 1,
    "conversation.item.input_audio_transcription.delta": 1,
    "conversation.item.input_audio_transcription.completed": 1,
    "conversation.item.input_audio_transcription.failed": 1,
    "response.created": 2,
    "response.done": 2,
    "response.output_item.added": 1,
    "response.output_item.done": 1,
    "response.content_part.added": 1,
    "response.content_part.done": 1,
    "response.speak": 3,
    "response.output_audio.delta": 2,
    "response.output_audio.done": 1,
    "response.output_audio_transcript.delta": 1,
    "response.output_audio_transcript.done": 1,
    "response.output_text.delta": 1,
    "response.output_text.done": 1,
    "response.listen": 3,
    "response.function_call_arguments.delta": 1,
    "response.function_call_arguments.done": 1,
    "duplex.function_call.done": 3,
    "rate_limits.updated": 1,
    "output_audio_buffer.cleared": 1,
    "playback.acknowledged": 3,
    "overlap.decision": 3,
    "turn.event": 3,
    "error": 2,
}
"""What a server may send -> its tier."""

NEVER_SENT: Final[Mapping[str, str]] = {
    "conversation.created": "OpenAI's servers stopped sending it; the session object has all it said",
    "conversation.item.input_audio_transcription.segment": "no transcription model here tells speakers apart",
    "input_audio_buffer.dtmf_event_received": "telephony is the business of whoever ends the call",
    "output_audio_buffer.started": "only over WebRTC and SIP, where the server plays the audio",
    "output_audio_buffer.stopped": "only over WebRTC and SIP, where the server plays the audio",
    "mcp_list_tools.*, response.mcp_call*": "MCP tools are refused by name",
}
"""Events of OpenAI's that no client of this service receives -> why."""

EXCUSED: Final[Mapping[str, str]] = {}
"""Events of the contract that no test covers -> why."""
