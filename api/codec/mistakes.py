"""What was wrong with a message that no client event fits: the parameter, and the code for it."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from api.codec.context import CodecContext
from api.errors import CodecError


class _Peek(Struct):
    """As much of a refused message as the error needs. Anything at all may stand in its fields."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    event_id: msgspec.Raw = msgspec.Raw(b"null")


_peek = msgspec.json.Decoder(_Peek)
_string: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_LONGEST_ID = 512
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")


def _text(raw: msgspec.Raw) -> str | None:
    """Give a short text, or None if anything else stands there: errors repeat it."""
    try:
        text = _string.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return text if len(text) <= _LONGEST_ID else None


def explain(text: str, reason: str, context: CodecContext) -> CodecError:
    """Name the parameter that msgspec stumbled over; its own words only steer, they are not passed on."""
    try:
        peek = _peek.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return CodecError(context.code("invalid_value", "bad_event"), "A message must be a JSON object.")
    event_type, event_id = _text(peek.type), _text(peek.event_id)
    place = _PLACE.search(reason)
    param = place[1] if place else ""
    missing = _MISSING.match(reason)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        code = context.code("missing_required_parameter", _duplex_code(event_type, param))
        return CodecError(code, f"Missing required parameter: '{param}'.", param=param, event_id=event_id)
    if param == "type" and event_type is not None:
        code = context.code("invalid_value", "unknown_event")
        return CodecError(
            code, "Invalid value: 'type' names no client event.", param=param, event_id=event_id
        )
    code = context.code("invalid_value", _duplex_code(event_type, param))
    wrong = "it must be standard base64" if param == "audio" else "wrong type or out of range"
    return CodecError(code, f"Invalid value: '{param}', {wrong}.", param=param or None, event_id=event_id)


def _duplex_code(event_type: str | None, param: str) -> str:
    """vLLM-Omni tells the kinds of bad events apart."""
    match event_type:
        case "input_audio_buffer.append" if param == "audio":
            return "bad_audio"
        case "input_audio_buffer.append" if param.startswith("video_frames"):
            return "invalid_video_frames"
        case _ if param == "item_id":
            return "missing_item_id"
        case "session.event_ack":
            return "invalid_event_ack"
        case "session.update" if param.endswith("turn_detection.type"):
            return "unsupported_turn_detection"
        case "session.update" | "transcription_session.update" if param.startswith("session."):
            return "invalid_session_config"
        case "session.resume":
            return "invalid_session_resume"
        case _:
            return "bad_event"
