"""
`loopback` with two lines more, for conformance tests, and a transcriber that fails when it is told to.

`loopback` shows nothing of its context. Asked to repeat its instructions, or its last answer, this one says
them as it has them. Language models do so as well; so the same tests run against real ones.
"""

from __future__ import annotations

from threading import Event

from msgspec.structs import replace

from gpu_worker.errors import TranscriptionFailed
from gpu_worker.loopback import LoopbackPlugin, LoopbackSession
from gpu_worker.plugin import Context, ModelSession, UnitInput, UnitOutput
from gpu_worker.transcription import LoopbackTranscriber, Utterance
from session_core.items import Item, Part, Role

UNINTELLIGIBLE = "this cannot be understood"
"""A transcription prompt: with it every utterance fails."""
LONG_S = 2.0
PATIENCE_S = 10.0


class PerformerSession(LoopbackSession):
    """One session on stage."""

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Do as `loopback`, after a look at what is to be repeated."""
        return await super().step(unit._replace(history=_prompted(unit)))


class Performer(LoopbackPlugin):
    """The model; goes by the name of `loopback`."""

    async def open(self, context: Context) -> ModelSession:
        """Go on after the context's last unit."""
        return PerformerSession(context)


def _prompted(unit: UnitInput) -> tuple[Item, ...]:
    """Give the history, with what is to be repeated in the place of a text that asks for it."""
    if unit.plan.answers is None or not unit.history:
        return unit.history
    *before, newest = unit.history
    asked = _text(newest) if newest.role is Role.USER else ""
    if "Repeat your instructions" in asked:
        said = unit.config.instructions
    elif "Repeat your last answer" in asked:
        said = next((_text(item) for item in reversed(before) if item.role is Role.ASSISTANT), "nothing")
    else:
        return unit.history
    return (*before, replace(newest, parts=(Part("input_text", said),)))


def _text(item: Item) -> str:
    return "".join(part.heard_text or "" for part in item.parts)


class Transcriber(LoopbackTranscriber):
    """
    Fails where the client's prompt asks for it; long utterances wait until one has failed.

    With two at a time, the one before that is done then, and its result on its way.
    """

    def __init__(self) -> None:
        self._has_failed = Event()

    def transcribe(self, utterance: Utterance) -> str:
        """Give a text such as "[1.1 s of speech]"."""
        if utterance.prompt == UNINTELLIGIBLE:
            self._has_failed.set()
            raise TranscriptionFailed("as it was asked to")
        if len(utterance.pcm) > LONG_S * utterance.sample_rate_hz:
            self._has_failed.wait(PATIENCE_S)
        return super().transcribe(utterance)
