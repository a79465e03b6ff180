"""
What `loopback` answers to text: an echo, or the function calls that the text dictates.

A test double for language models. A text such as `say Let me look; call get_weather {"city": "Oslo"}` gives,
in one response, the words, then the call. Only functions that the client offered are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from gpu_worker.audio import Pcm
from session_core.commands import ResponseOptions
from session_core.config import JsonObject, SessionConfig
from session_core.events import ToolCall
from session_core.items import Item, ItemType, Role
from session_core.state import Response

CHARACTER_MS = 60
"""How long the tone of a character lasts."""
LONGEST_MS = 3_000
"""A longer text is said faster."""

_CALL = re.compile(r"\bcall\s+([\w-]{1,64})\s*(?=\{)")
_SAY = re.compile(r"\s*;?\s*say\s+(.*?)\s*;?\s*", re.DOTALL)
_json = json.JSONDecoder()


class Line(msgspec.Struct, frozen=True, array_like=True):
    """Something to be said, if it has a text, and the function calls after it."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def answer(response: Response, history: Sequence[Item], config: SessionConfig) -> tuple[Line, ...]:
    """
    Give what a response says; nothing where there is no text to answer to.

    The newest of the client's items decides: outputs of functions are told back, a text is echoed or does
    what it dictates. With neither, the response's own instructions are echoed. Audio is not answered here.
    """
    options = response.options
    newest = _unanswered(history if options.input is None else options.input)
    told = _outputs(newest, history if options.input is None else options.input)
    if told:
        return (Line(told),)
    users = [item for item in newest if item.item_type is ItemType.MESSAGE and item.role is Role.USER]
    text = _text(users[-1]) if users else ""
    instructions = "" if options.instructions is UNSET else options.instructions
    called = _dictated(response.response_id, (text, instructions), options, config)
    if called:
        return called
    echoed = text or ("" if users else instructions)
    return (Line(f"[echo] {echoed}"),) if echoed else ()


def _unanswered(items: Sequence[Item]) -> list[Item]:
    """Give the items after the model's last words or calls."""
    for index in range(len(items) - 1, -1, -1):
        if items[index].role is Role.ASSISTANT or items[index].item_type is ItemType.FUNCTION_CALL:
            return list(items[index + 1 :])
    return list(items)


def _outputs(newest: Sequence[Item], items: Sequence[Item]) -> str:
    names = {item.call_id: item.name for item in items if item.item_type is ItemType.FUNCTION_CALL}
    told: list[str] = []
    for item in reversed(newest):
        if item.item_type is not ItemType.FUNCTION_CALL_OUTPUT:
            break
        told.append(f"[echo of {names.get(item.call_id) or item.call_id}: {item.output}]")
    return " ".join(reversed(told))


def _text(item: Item) -> str:
    """Give what the client wrote: not the transcript of what the user said."""
    return " ".join(part.text for part in item.parts if part.kind == "input_text" and part.text)


# --- function calls -----------------------------------------------------------------------------------------


def _dictated(
    response_id: str, sources: Sequence[str], options: ResponseOptions, config: SessionConfig
) -> tuple[Line, ...]:
    """Give the lines with the calls that a text dictates, or that the client's tool choice forces."""
    tools = config.tools if options.tools is UNSET else options.tools
    choice = config.tool_choice if options.tool_choice is UNSET else options.tool_choice
    names = [tool.name for tool in tools]
    forced = _forced(choice, names)
    if choice == "none" or not names:
        return ()
    allowed = names if forced is None or choice == "required" else [forced]
    for source in sources:
        lines = _lines(source, allowed)
        if any(line.calls for line in lines):
            break
    else:
        lines = [] if forced is None else [Line("", (ToolCall("", forced, "{}"),))]
    numbers = iter(range(len(sources[0]) + len(sources[1]) + 1))
    return tuple(
        Line(line.text, tuple(_named(call, response_id, next(numbers)) for call in line.calls))
        for line in lines
    )


def _forced(choice: str | JsonObject, names: Sequence[str]) -> str | None:
    if choice == "required" and names:
        return names[0]
    name = choice.get("name") if isinstance(choice, dict) else None
    return name if name in names else None


def _lines(source: str, names: Sequence[str]) -> list[Line]:
    lines: list[Line] = []
    for part in _parts(source, names):
        if isinstance(part, str):
            lines.append(Line(part))
        elif lines:
            lines[-1] = Line(lines[-1].text, (*lines[-1].calls, part))
        else:
            lines.append(Line("", (part,)))
    return lines


def _parts(source: str, names: Sequence[str]) -> Iterator[str | ToolCall]:
    """Give, in order, what is to be said and what is to be called."""
    at = 0
    for found in _CALL.finditer(source):
        if found.start() < at or found[1] not in names:
            continue
        try:
            _, end = _json.raw_decode(source, found.end())
        except ValueError:
            # As models do it now and then: a call that nobody can make.
            end = len(source)
        yield from _said(source[at : found.start()])
        yield ToolCall("", found[1], source[found.end() : end])
        at = end
    yield from _said(source[at:])


def _said(source: str) -> Iterator[str]:
    found = _SAY.fullmatch(source)
    if found is not None and found[1]:
        yield found[1]


def _named(call: ToolCall, response_id: str, number: int) -> ToolCall:
    return ToolCall(f"call_{response_id.removeprefix('resp_')}_{number}", call.name, call.arguments)


# --- voice --------------------------------------------------------------------------------------------------


def voice_samples(text: str, rate_hz: int) -> int:
    """Tell how long a text's tones last."""
    return min(CHARACTER_MS * len(text), LONGEST_MS) * rate_hz // 1000


def voice(text: str, start: int, end: int, rate_hz: int) -> Pcm:
    """Give samples [start, end) of a text's tones, one tone a character: a pure function of the text."""
    total = voice_samples(text, rate_hz)
    at = np.arange(start, end)
    character = at * len(text) // total
    hz = 300.0 + 15.0 * (np.frombuffer(text.encode("utf-32-le"), "<u4")[character] % 64)
    swell = np.sin(np.pi * (at * len(text) / total - character))
    return (0.1 * swell * np.sin(2 * np.pi * hz * at / rate_hz)).astype(np.float32)
