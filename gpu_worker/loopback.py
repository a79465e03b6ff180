"""
`loopback`: a duplex model without weights, which says the user's own words back when the user stops.

It behaves as real duplex models do: it hears and speaks at the same time in units of 80 ms, decides by itself
when to begin, and stops when it is talked over. What it says is the input, sample for sample, so a test or a
load generator can check every sample that comes back. All that it decides by is in `_Control`, which each
unit records; so another owner goes on from any unit exactly.

Where the client has turn detection, that decides for it: it speaks when it is asked, and stops when it is
interrupted. Asked after a text, it echoes that, in tones where it is to be heard, or makes the function calls
that the text dictates (`loopback_script`).

`loopback_parts` is the same model with its audio rendered later, in two parts of 40 ms: a test double for
models whose renderer is a stage of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gpu_worker.errors import ModelError
from gpu_worker.hearing import Edge, HearingSettings, HearingState, SpeechDetector
from gpu_worker.loopback_script import Line, answer, voice, voice_samples
from gpu_worker.plugin import (
    Context,
    ModelPlugin,
    ModelSession,
    Pcm,
    RenderedPart,
    SidePiece,
    SideRequest,
    Spoken,
    UnitInput,
    UnitOutput,
)
from session_core.config import Modality, ModelProfile
from session_core.events import Decision, ModelUnitCompleted
from session_core.units import UnitPlan

RATE_HZ = 24_000
UNIT_SAMPLES = 1_920
PART_SAMPLES = 960
LONGEST_SAMPLES = 30 * RATE_HZ
"""Nothing that lies further back is said."""
PAD_SAMPLES = RATE_HZ // 10
"""Said before the onset and after the end: words begin and fade softly."""
LEAST_SAMPLES = 60 * RATE_HZ // 1000
"""What is shorter is no utterance."""
_PIECE_CHARACTERS = 16
"""Text of a response outside the conversation that is given at once."""
_RECENT_SAMPLES = RATE_HZ
"""How far back an edge may lie when it becomes certain, with the pad."""

Range: TypeAlias = tuple[int, int]
"""Input samples [start, end), counted from the session's start."""

_HEARING = HearingSettings(RATE_HZ, silence_ms=400)


class _Splice(NamedTuple):
    """
    From sample `heard` of all that the model heard on, it hears input from sample `input` on.

    Silence that stood in for input is heard too, but is no input: after it the two counts are further apart.
    """

    heard: int
    input: int


class _Control(msgspec.Struct, frozen=True, array_like=True):
    """
    All that the model decides by, after a unit; recorded as the unit's codes.

    Attributes:
        hearing: the detector.
        heard: samples heard, silence included.
        consumed: input samples heard up to.
        splices: how the two counts map over the last second or more.
        open_from: where the speech begins that is not over; None while nobody speaks.
        pending: speech that is over and was not said yet.
        saying: what is still to be said of the speech being said; None while it only listens.
        began: where the speech began that is being said, or was said last.
        said_until: input before this is said, or begun to be said, and is not said again.
        said: what the unit said of the input.
        lines: what is still to be said that is no speech of the user's.
        line_samples: how much of the first line was said in tones.
    """

    hearing: HearingState = HearingState(_HEARING)
    heard: int = 0
    consumed: int = 0
    splices: tuple[_Splice, ...] = (_Splice(0, 0),)
    open_from: int | None = None
    pending: Range | None = None
    saying: Range | None = None
    began: int = 0
    said_until: int = 0
    said: Range | None = None
    lines: tuple[Line, ...] = ()
    line_samples: int = 0


_NO_AUDIO: Pcm = np.zeros(0, np.float32)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Control)


def _decode(codes: bytes) -> _Control:
    try:
        return _decoder.decode(codes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"a unit's codes are not this model's: {error}") from error


class _Tape:
    """The input that may still be said, by its sample numbers."""

    def __init__(self, first: int, pcm: Pcm) -> None:
        self._pieces: deque[tuple[int, Pcm]] = deque()
        self._end = first
        self.append(first, pcm)

    def append(self, first: int, pcm: Pcm) -> None:
        """Put input at its place; input that was dropped before it is silence."""
        if first > self._end + LONGEST_SAMPLES:
            self._pieces.clear()
        elif first > self._end:
            self._pieces.append((self._end, np.zeros(first - self._end, np.float32)))
        if len(pcm):
            self._pieces.append((first, pcm))
        self._end = first + len(pcm)

    def read(self, start: int, end: int) -> Pcm:
        """
        Give samples [start, end).

        Raises:
            ModelError: they are no longer held.
        """
        found = []
        at = start
        for first, pcm in self._pieces:
            if at >= end:
                break
            if first <= at < first + len(pcm):
                found.append(pcm[at - first : end - first])
                at = min(end, first + len(pcm))
        if at < end:
            raise ModelError(f"input samples {at} to {end} are not held")
        return found[0] if len(found) == 1 else np.concatenate(found or [np.zeros(0, np.float32)])

    def forget(self, before: int) -> None:
        """Give up whole pieces before a sample."""
        pieces = self._pieces
        while pieces and pieces[0][0] + len(pieces[0][1]) <= before:
            pieces.popleft()


class LoopbackSession(ModelSession):
    """One session's place in the model; lives from `LoopbackPlugin.open` to `aclose`."""

    def __init__(self, context: Context) -> None:
        control = _decode(context.units[-1].completed.codes) if context.units else _Control()
        self._tape = _Tape(context.first_sample, context.pcm)
        self._detector = SpeechDetector.resume(control.hearing)
        self._heard = control.heard
        self._consumed = control.consumed
        self._splices = list(control.splices)
        self._open_from = control.open_from
        self._pending = control.pending
        self._saying = control.saying
        self._began = control.began
        self._said_until = control.said_until
        self._lines = control.lines
        self._line_samples = control.line_samples

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Hear a unit, decide, and say the next 80 ms of what is to be said."""
        if unit.interrupted:
            self._stop()
        hears_itself = unit.config.turn_detection is None
        for edge in self._hear(unit.plan, unit.pcm):
            if edge.kind == "started" and hears_itself:
                self._stop()
            self._mark(edge)
        self._bound()
        if unit.plan.late:
            return UnitOutput(Decision.LISTEN, codes=_encoder.encode(self._control(None)))
        text = self._decide(unit, hears_itself=hears_itself)
        output = self._say_line(_modality(unit)) if self._lines else self._say_speech(text, _modality(unit))
        self._tape.forget(self._oldest())
        return output

    def spoken(self, samples: int) -> Spoken | None:
        """Tell what was said of the speech that is being said."""
        if self._lines:
            said, text = self._line_samples, self._lines[0].text
            return Spoken(said, voice(text, max(0, said - samples), said, RATE_HZ)) if said else None
        if self._saying is None:
            return None
        said_until = self._saying[0]
        tail = self._tape.read(max(self._began, said_until - samples), said_until)
        return Spoken(said_until - self._began, tail)

    async def aclose(self) -> None:
        """Nothing to give up."""

    def _voice(self, said: Range) -> Pcm | None:
        """Give a unit's audio; None leaves it to `render`."""
        return self._tape.read(*said)

    def _oldest(self) -> int:
        """Give the first input sample that may still be said."""
        starts = [self._consumed - _RECENT_SAMPLES]
        starts += [span[0] for span in (self._pending, self._saying) if span is not None]
        if self._open_from is not None:
            starts.append(self._open_from)
        return min(starts)

    def _stop(self) -> None:
        self._saying, self._lines, self._line_samples = None, (), 0

    def _hear(self, plan: UnitPlan, pcm: Pcm) -> list[Edge]:
        first, end = plan.first_sample, plan.first_sample + plan.input_samples
        if first != self._consumed:
            self._splices.append(_Splice(self._heard, first))
        self._tape.append(first, pcm[: plan.input_samples])
        self._heard += len(pcm)
        self._consumed = end
        if plan.silence_samples:
            self._splices.append(_Splice(self._heard, end))
        while len(self._splices) > 1 and self._splices[1].heard <= self._heard - _RECENT_SAMPLES:
            del self._splices[0]
        edges = self._detector.feed(pcm)
        return [Edge(edge.kind, self._input_sample(edge.sample)) for edge in edges]

    def _input_sample(self, heard: int) -> int:
        """Map a place in what was heard to the input."""
        limit = self._consumed
        for splice in reversed(self._splices):
            if splice.heard <= heard:
                return min(splice.input + heard - splice.heard, limit)
            limit = splice.input
        return self._splices[0].input

    def _mark(self, edge: Edge) -> None:
        if edge.kind == "started":
            self._open_from = max(edge.sample - PAD_SAMPLES, self._said_until, 0)
            return
        if self._open_from is not None and edge.sample - self._open_from >= LEAST_SAMPLES:
            start = self._pending[0] if self._pending else self._open_from
            self._pending = (start, min(edge.sample + PAD_SAMPLES, self._consumed))
        self._open_from = None

    def _bound(self) -> None:
        """Let go of speech that lies too far back."""
        oldest = self._consumed - LONGEST_SAMPLES
        if self._pending is not None:
            start, end = max(self._pending[0], oldest), self._pending[1]
            self._pending = (start, end) if end - start >= LEAST_SAMPLES else None
        if self._open_from is not None:
            self._open_from = max(self._open_from, oldest)

    def _decide(self, unit: UnitInput, *, hears_itself: bool) -> str:
        """
        Begin to say something, if there is something and it may; give the transcript of speech that begins.
        """
        plan = unit.plan
        if not plan.may_speak:
            self._stop()
            return ""
        if self._saying is not None or self._lines:
            return ""
        if plan.answers is not None:
            assert unit.response is not None
            self._lines = answer(unit.response, unit.history, unit.config)
            if self._lines:
                self._drop_speech()
                return ""
            self._close_open_speech()
        elif self._detector.speaking or not hears_itself:
            return ""
        if self._pending is None:
            return ""
        self._saying, self._pending = self._pending, None
        start, end = self._saying
        self._began, self._said_until = start, end
        return f"[echo of {(end - start) / RATE_HZ:.1f} s of speech]"

    def _drop_speech(self) -> None:
        """What was heard so far is answered by something else."""
        self._pending, self._said_until = None, self._consumed
        if self._open_from is not None:
            self._open_from = self._consumed

    def _close_open_speech(self) -> None:
        """
        Take what was said so far of speech that is not over.

        Should it go on, the rest is an utterance of its own.
        """
        if self._open_from is None:
            return
        spoken_until = self._input_sample(self._heard - self._detector.silence_samples)
        start = self._pending[0] if self._pending else self._open_from
        end = min(spoken_until + PAD_SAMPLES, self._consumed)
        if end - start >= LEAST_SAMPLES:
            self._pending = (start, end)
            self._open_from = end

    def _say_speech(self, text: str, modality: Modality) -> UnitOutput:
        """Say the next 80 ms of the user's speech; in text the transcript is all there is to say."""
        if self._saying is None:
            return UnitOutput(Decision.LISTEN, codes=_encoder.encode(self._control(None)))
        start, end = self._saying
        if modality is Modality.TEXT:
            self._saying = None
            codes = _encoder.encode(self._control(None))
            return UnitOutput(Decision.TURN_END, codes=codes, text=text, audio=_NO_AUDIO)
        stop = min(start + UNIT_SAMPLES, end)
        self._saying = (stop, end) if stop < end else None
        codes = _encoder.encode(self._control((start, stop)))
        decision = Decision.SPEAK if self._saying else Decision.TURN_END
        return UnitOutput(decision, codes=codes, text=text, audio=self._voice((start, stop)))

    def _say_line(self, modality: Modality) -> UnitOutput:
        """Say a whole line as text, or its next 80 ms in tones; its calls come with the end of it."""
        line, start = self._lines[0], self._line_samples
        total = voice_samples(line.text, RATE_HZ) if modality is Modality.AUDIO else 0
        stop = min(start + UNIT_SAMPLES, total)
        text, audio, calls = line.text, _NO_AUDIO, line.calls
        if total:
            text = text[-(-len(text) * start // total) : -(-len(text) * stop // total)]
            audio = voice(line.text, start, stop, RATE_HZ)
        self._line_samples = stop
        if stop < total:
            calls = ()
        else:
            self._lines, self._line_samples = self._lines[1:], 0
        decision = Decision.SPEAK if self._lines else Decision.TURN_END
        codes = _encoder.encode(self._control(None))
        return UnitOutput(decision, codes=codes, text=text, audio=audio, calls=calls)

    def _control(self, said: Range | None) -> _Control:
        return _Control(
            self._detector.state(),
            self._heard,
            self._consumed,
            tuple(self._splices),
            self._open_from,
            self._pending,
            self._saying,
            self._began,
            self._said_until,
            said,
            self._lines,
            self._line_samples,
        )


def _modality(unit: UnitInput) -> Modality:
    return unit.config.output_modality if unit.response is None else unit.response.modality


class LoopbackPartsSession(LoopbackSession):
    """A session whose audio is rendered later; keeps the input for it as long as a context does."""

    async def render(self, unit: ModelUnitCompleted, first_sample: int) -> AsyncGenerator[RenderedPart, None]:
        """Give what the unit's codes say was said, in parts that end at multiples of 40 ms."""
        said = _decode(unit.codes).said
        if said is None:
            raise ModelError(f"unit {unit.unit} says nothing")
        start, end = said
        at = start + first_sample
        while True:
            stop = min(end, at + PART_SAMPLES - (at - start) % PART_SAMPLES)
            yield RenderedPart(self._tape.read(at, stop), last=stop >= end)
            if stop >= end:
                return
            at = stop

    def _voice(self, said: Range) -> Pcm | None:  # noqa: ARG002 - `render` finds it in the codes
        return None

    def _oldest(self) -> int:
        return min(super()._oldest(), self._consumed - LoopbackPlugin.window_samples)


class LoopbackPlugin(ModelPlugin):
    """The model; holds nothing but its profile."""

    profile = ModelProfile(
        model="loopback",
        input_sample_rate_hz=RATE_HZ,
        output_sample_rate_hz=RATE_HZ,
        unit_samples=UNIT_SAMPLES,
        silence_grace_ms=200,
        max_silent_units=75,
        supports_text=True,
        supports_tools=True,
    )
    window_units = 1
    window_samples = LONGEST_SAMPLES + RATE_HZ

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        if options:
            raise ModelError(f"{self.profile.model} takes no options, not {', '.join(options)}")

    async def open(self, context: Context) -> ModelSession:
        """Go on after the context's last unit."""
        return LoopbackSession(context)

    async def respond(self, request: SideRequest) -> AsyncGenerator[SidePiece, None]:
        """Answer as in a conversation, a few words at a time; what was said already is not said again."""
        lines = answer(request.response, request.items, request.config)
        text = " ".join(line.text for line in lines if line.text)
        calls = tuple(call for line in lines for call in line.calls)
        total = voice_samples(text, RATE_HZ)
        for start in range(len(request.said), len(text), _PIECE_CHARACTERS):
            end = min(start + _PIECE_CHARACTERS, len(text))
            audio = voice(text, total * start // len(text), total * end // len(text), RATE_HZ)
            yield SidePiece(text[start:end], audio, last=False)
        yield SidePiece(calls=calls)


class LoopbackPartsPlugin(LoopbackPlugin):
    """The test double with a renderer of its own."""

    profile = msgspec.structs.replace(LoopbackPlugin.profile, model="loopback_parts")

    async def open(self, context: Context) -> ModelSession:
        """Go on after the context's last unit."""
        return LoopbackPartsSession(context)
