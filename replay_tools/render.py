"""Steps of a fold as lines of text: one line an entry, or one line a run of entries that are all alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.audio import AudioFormat
from session_core.journal import Body, Stamp
from session_core.state import Phase, State

from .reader import Step

NUMBER_WIDTH = 6
_QUIET_CHANGES = frozenset(
    {
        ch.AudioReceived,
        ch.UnitTaken,
        ch.Spoken,
        ch.PartRendered,
        ch.Listened,
        ch.PlaybackMoved,
        ch.HeartbeatSeen,
    }
)
"""What an entry of a run may do: the steady state of a conversation."""
_SAID = frozenset({"unit", "decision", "first_sample", "input_samples", "silence_samples"})
"""Fields of a unit that `what` says in one word, or not at all."""


class Style(NamedTuple):
    """What the lines show."""

    full: bool = False
    """One line an entry, always."""
    events: bool = False
    """The outbound events below their entry, with their numbers."""
    audio: bool = False
    """A level beside each piece of audio."""
    run_ms: int | None = None
    """
    Longest run in journal time, so that a live listing does not hold one back for ever. None: any length.
    """


class Renderer:
    """Turns steps into lines; lives as long as one listing. `flush` at the end gives what is held back."""

    def __init__(self, style: Style, start_ms: int) -> None:
        self._style = style
        self._start_ms = start_ms
        self._run: list[Step] = []
        self._kinds: dict[type[Body], _Kind] = {}

    def feed(self, step: Step) -> Iterator[str]:
        """Take the next step; gives the lines that are complete now."""
        kind = None if self._style.full else _kind(step)
        if kind is None or self._kinds.get(kind.body, kind) != kind or self._is_long(step):
            yield from self.flush()
        if kind is None:
            yield from self._lines(step)
        else:
            self._kinds[kind.body] = kind
            self._run.append(step)

    def flush(self) -> Iterator[str]:
        """Give the lines of the run in progress."""
        run, self._run, self._kinds = self._run, [], {}
        if len(run) <= 2:
            for step in run:
                yield from self._lines(step)
            return
        yield f"{self._head(run[0])}  …       {_run_text(run)}"
        if self._style.events and (summary := _run_events(run)):
            yield " " * (NUMBER_WIDTH + 2) + summary

    def _is_long(self, step: Step) -> bool:
        limit_ms = self._style.run_ms
        return limit_ms is not None and bool(self._run) and step.id.ms - self._run[0].id.ms >= limit_ms

    def _head(self, step: Step) -> str:
        elapsed_s = (step.id.ms - self._start_ms) / 1000
        return f"{step.number:>{NUMBER_WIDTH}}  {step.id}  {elapsed_s:+10.3f}s"

    def _lines(self, step: Step) -> Iterator[str]:
        stamp = stamp_text(step.entry.stamp) if step.entry else "?"
        yield f"{self._head(step)}  {stamp:<7} {what(step, audio=self._style.audio)}  {did(step)}"
        if self._style.events:
            for event, attachment_id in step.reduction.outbound:
                number = event.server_event_seq if attachment_id is None else f"to {attachment_id}"
                yield " " * (NUMBER_WIDTH + 2) + f"{number}: {event.__struct_config__.tag}"


def stamp_text(stamp: Stamp | None) -> str:
    """A writer's mark: "c1#12" is append 12 of client generation 1; "-": anybody's fact."""
    return "-" if stamp is None else f"{stamp.role}{stamp.generation}#{stamp.n}"


def what(step: Step, *, audio: bool = False) -> str:
    """The entry's type and its fields, bytes as sizes, defaults left out."""
    if step.entry is None:
        return f"unreadable ({len(step.data)} B)"
    body = step.entry.body
    words = [type(body).__name__]
    if isinstance(body, ev.ModelUnitCompleted):
        words += [f"#{body.unit}", body.decision, f"{body.input_samples}+{body.silence_samples} samples"]
    for info in msgspec.structs.fields(body):
        value = getattr(body, info.name)
        if value != info.default and info.name not in _SAID:
            words.append(_field(step, info.name, value, audio=audio))
    return " ".join(words)


def did(step: Step) -> str:
    """What the entry did: its changes, or that it was refused."""
    if step.refused:
        phase = step.before.state.phase
        return "refused (stale)" if phase is Phase.OPEN else f"refused (session {phase})"
    names = [type(change).__name__ for change in step.reduction.changes]
    refusals = [c.refusal.cause.name for c in step.reduction.changes if isinstance(c, ch.Refused)]
    text = f"-> {', '.join(names)}" if names else "no effect"
    return f"{text} ({', '.join(refusals)})" if refusals else text


def state_json(state: State) -> bytes:
    """A state as indented JSON, bytes shown as their lengths."""
    return msgspec.json.format(
        msgspec.json.encode(_plain(msgspec.to_builtins(state, builtin_types=(bytes,))))
    )


def _plain(value: object) -> object:
    match value:
        case bytes():
            return f"<{len(value)} B>"
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value


def _field(step: Step, name: str, value: object, *, audio: bool) -> str:
    match value:
        case bytes() if name == "audio":
            return _audio_text(value, _format_of(step), level=audio)
        case bytes() if name in ("sha256", "presented_hash", "new_hash"):
            return f"{name}={value[:4].hex()}…"
        case bytes():
            return f"{name}={len(value)} B"
        case tuple() if name == "token_ids":
            return f"token_ids={len(value)}"
        case tuple() if name == "upto":
            return f"upto={value[0]}-{value[1]}"
        case str():
            return f"{name}={value!r}" if name in ("text", "reason") else f"{name}={value}"
        case msgspec.Struct():
            return f"{name}={_brief(value)}"
    return f"{name}={value}"


def _brief(value: msgspec.Struct) -> str:
    """A nested struct: only what differs from its defaults."""
    shown = []
    for info in msgspec.structs.fields(value):
        field = getattr(value, info.name)
        if field != info.default:
            shown.append(
                f"{info.name}={_brief(field) if isinstance(field, msgspec.Struct) else f'{field!s:.60}'}"
            )
    return "{" + " ".join(shown) + "}"


def _format_of(step: Step) -> AudioFormat:
    if isinstance(step.entry and step.entry.body, cmd.AppendAudio):
        return step.before.state.config.input_format
    response = step.after.state.response or step.before.state.response
    return response.output_format if response is not None else step.before.state.config.output_format


def _audio_text(audio: bytes, audio_format: AudioFormat, *, level: bool) -> str:
    text = f"{len(audio)} B {audio_format.ms(len(audio))} ms"
    if level and audio_format.encoding == "pcm16":
        samples = memoryview(audio[: len(audio) // 2 * 2]).cast("h")
        text += f" peak {max(map(abs, samples), default=0) / 32768:.3f}"
    return text


# --- runs ---------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """What the entries of one type in a run have in common."""

    body: type[Body]
    label: str
    writer: str
    changes: tuple[str, ...]


def _kind(step: Step) -> _Kind | None:
    """The run that a step may belong to; None: it stands alone."""
    if step.entry is None or step.refused or not step.reduction.changes:
        return None
    body, stamp = step.entry.body, step.entry.stamp
    if stamp is None or any(type(change) not in _QUIET_CHANGES for change in step.reduction.changes):
        return None
    match body:
        case cmd.AppendAudio() | cmd.AckPlayback() | cmd.Heartbeat() | ev.OutputRendered():
            label = ""
        case ev.ModelUnitCompleted(decision=ev.Decision.LISTEN | ev.Decision.SPEAK):
            label = f" {body.decision}"
        case _:
            return None
    changes = tuple(type(change).__name__ for change in step.reduction.changes)
    return _Kind(type(body), label, f"{stamp.role}{stamp.generation}", changes)


def _run_text(run: list[Step]) -> str:
    """
    "37 x AppendAudio 2.96 s, 37 x ModelUnitCompleted listen 2.96 s, to entry 80".
    """
    counts: Counter[str] = Counter()
    durations_ms: Counter[str] = Counter()
    for step in run:
        kind = _kind(step)
        assert kind is not None
        name = f"{kind.body.__name__}{kind.label}"
        counts[name] += 1
        durations_ms[name] += _duration_ms(step)
    parts = []
    for name, count in counts.items():
        duration = f" {durations_ms[name] / 1000:.2f} s" if durations_ms[name] else ""
        parts.append(f"{count} x {name}{duration}")
    return f"{', '.join(parts)}  (to {run[-1].number})"


def _duration_ms(step: Step) -> int:
    body = step.entry.body if step.entry else None
    match body:
        case cmd.AppendAudio(audio=audio) | ev.OutputRendered(audio=audio):
            return _format_of(step).ms(len(audio))
        case ev.ModelUnitCompleted(input_samples=heard, silence_samples=silence):
            return (heard + silence) * 1000 // step.before.state.pinned.profile.input_sample_rate_hz
    return 0


def _run_events(run: list[Step]) -> str:
    events = [event for step in run for event, to in step.reduction.outbound if to is None]
    if not events:
        return ""
    names = Counter(str(event.__struct_config__.tag) for event in events)
    total = ", ".join(f"{count} x {name}" for name, count in names.items())
    return f"{events[0].server_event_seq}..{events[-1].server_event_seq}: {total}"
