"""
The contract of model plugins, as tests: what it takes that a worker goes on where another one stopped.

A plugin's own test module gives a plugin and a script of what happens to a session, records one uninterrupted
run with `record`, and calls the `check_...` functions. No store and no clock: the harness folds entries that
it makes itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple

from gpu_worker.audio import encode
from gpu_worker.context import ContextLedger
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, Pcm, UnitInput, UnitOutput
from session_core import commands as cmd
from session_core import events as ev
from session_core.audio import AudioFormat
from session_core.commands import AnyCommand
from session_core.config import Dialect, Limits, SessionConfig, Way
from session_core.journal import Body, Role, Stamp, encode_entry
from session_core.reducer import REDUCER_VERSION, reduce_bytes
from session_core.state import State
from session_core.units import UnitPlan, next_unit

Position = tuple[int, int]

OPENED_MS = 1_000
WORKER = "worker-a"


class Act(NamedTuple):
    """
    What a client does `at_ms` after the session opened.

    `within_unit`: it is journaled while the model works on a unit, after the unit was planned.
    """

    at_ms: int
    command: AnyCommand
    within_unit: bool = False


class Journal:
    """The journal of one session and its fold, with the ledger of a worker that follows it."""

    def __init__(self, plugin: ModelPlugin) -> None:
        self.plugin = plugin
        self.entries: list[tuple[Position, bytes]] = []
        self.state = State()
        self.ledger = ContextLedger(plugin.window_units, plugin.window_samples)
        self._numbers = {Role.CLIENT: 0, Role.WORKER: 0}

    def fold(self, position: Position, data: bytes) -> None:
        """Fold an entry as it lies in a journal."""
        self.entries.append((position, data))
        reduction = reduce_bytes(self.state, position, data)
        self.state = reduction.state
        self.ledger.take(reduction.changes, self.state)

    def append(self, now_ms: int, body: Body, role: Role | None = None) -> None:
        """Make an entry and fold it."""
        stamp = None
        if role is not None:
            self._numbers[role] += 1
            stamp = Stamp(role, 1, self._numbers[role])
        last = self.entries[-1][0] if self.entries else (0, 0)
        position = (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
        self.fold(position, encode_entry(body, stamp))

    def unit_input(self, plan: UnitPlan, pcm: Pcm, *, is_interrupted: bool) -> UnitInput:
        """Give what the model gets for a unit."""
        state = self.state
        return UnitInput(plan, pcm, is_interrupted, state.history, state.config, state.response)


class Step(NamedTuple):
    """
    One unit of a recorded run. `folded`: how many entries the worker had folded when it planned the unit.
    """

    plan: UnitPlan
    folded: int
    is_interrupted: bool
    pcm: Pcm
    output: UnitOutput


class Recording(NamedTuple):
    """An uninterrupted run: the journal and every unit."""

    plugin: ModelPlugin
    entries: tuple[tuple[Position, bytes], ...]
    steps: tuple[Step, ...]

    def folded_after(self, unit: int) -> int:
        """
        Give how many entries lead up to the end of a unit; of all of them for unit -1: none was worked on.
        """
        if unit + 1 < len(self.steps):
            return self.steps[unit + 1].folded
        return len(self.entries)


def session_config(
    plugin: ModelPlugin, *, input_format: AudioFormat | None = None, auto_response: bool = True
) -> SessionConfig:
    """Give the configuration of a duplex session with this model."""
    return SessionConfig(
        model=plugin.profile.model,
        input_format=input_format or AudioFormat(sample_rate_hz=plugin.profile.input_sample_rate_hz),
        output_format=AudioFormat(sample_rate_hz=plugin.profile.output_sample_rate_hz),
        auto_response=auto_response,
    )


def opening(plugin: ModelPlugin, config: SessionConfig, session_id: str) -> Iterator[Body]:
    """Give the entries that open a session with a client and a first worker."""
    yield ev.SessionOpened(
        session_id, plugin.profile, config, Limits(), Way.DUPLEX, Dialect.GA, REDUCER_VERSION
    )
    yield ev.WorkerAssigned(WORKER, 1)
    yield ev.ClientAttached("attachment-1", "gateway-a", 1, None, b"hash")


def audio_acts(pcm: Pcm, audio_format: AudioFormat, *, at_ms: int = 0, chunk_ms: int = 80) -> list[Act]:
    """Send float32 [samples] at the format's rate, in real time."""
    data = encode(pcm, audio_format.encoding)
    size = audio_format.sample_rate_hz * chunk_ms // 1000 * audio_format.sample_bytes
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    return [Act(at_ms + (i + 1) * chunk_ms, cmd.AppendAudio(chunk)) for i, chunk in enumerate(chunks)]


async def record(
    plugin: ModelPlugin, acts: Iterable[Act], *, config: SessionConfig | None = None, until_ms: int = 0
) -> Recording:
    """
    Run a session from its beginning, without an interruption of the worker.

    Args:
        plugin: the model.
        acts: what the client does; sorted by time here.
        config: the session's; by default that of `session_config`.
        until_ms: how long the session goes on at least, after it opened.
    """
    journal = Journal(plugin)
    for body in opening(plugin, config or session_config(plugin), "sess_00_contract"):
        journal.append(OPENED_MS, body)
    session = await plugin.open(journal.ledger.context(journal.state))
    steps: list[Step] = []
    pending = sorted(acts, key=lambda act: act.at_ms)
    end_ms = max([until_ms, *(act.at_ms for act in pending)])
    for now_ms in range(OPENED_MS, OPENED_MS + end_ms + 1, 20):
        due = [act for act in pending if OPENED_MS + act.at_ms <= now_ms]
        pending = pending[len(due) :]
        for act in due:
            if not act.within_unit:
                journal.append(now_ms, act.command, Role.CLIENT)
        late = [act.command for act in due if act.within_unit]
        while (plan := next_unit(journal.state, now_ms)) is not None:
            steps.append(await _live_step(journal, session, plan, now_ms, late))
            late = []
        for command in late:
            journal.append(now_ms, command, Role.CLIENT)
    await session.aclose()
    return Recording(plugin, tuple(journal.entries), tuple(steps))


async def _live_step(
    journal: Journal, session: ModelSession, plan: UnitPlan, now_ms: int, late: Iterable[Body]
) -> Step:
    folded = len(journal.entries)
    is_interrupted = plan.epoch != journal.ledger.last_epoch
    pcm = journal.ledger.unit_input(plan)
    output = await session.step(journal.unit_input(plan, pcm, is_interrupted=is_interrupted))
    for body in late:
        journal.append(now_ms, body, Role.CLIENT)
    unit = completed(plan, output)
    journal.append(now_ms, unit, Role.WORKER)
    if journal.state.renders:
        await _render(journal, session, unit, now_ms)
    return Step(plan, folded, is_interrupted, pcm, output)


async def _render(journal: Journal, session: ModelSession, unit: ev.ModelUnitCompleted, now_ms: int) -> None:
    number = at = 0
    async with aclosing(session.render(unit, 0)) as parts:
        async for part in parts:
            audio = encode(part.audio, "pcm16")
            journal.append(now_ms, ev.OutputRendered(unit.unit, number, at, audio, part.last), Role.WORKER)
            number, at = number + 1, at + len(part.audio)


def completed(plan: UnitPlan, output: UnitOutput) -> ev.ModelUnitCompleted:
    """Give the entry of a unit; its audio, if ready, as PCM16 at the model's rate."""
    audio: bytes | None = b""
    if output.decision is not ev.Decision.LISTEN:
        audio = None if output.audio is None else encode(output.audio, "pcm16")
    return ev.ModelUnitCompleted(
        unit=plan.unit,
        epoch=plan.epoch,
        first_sample=plan.first_sample,
        input_samples=plan.input_samples,
        silence_samples=plan.silence_samples,
        decision=output.decision,
        token_ids=output.token_ids,
        codes=output.codes,
        text=output.text,
        audio=audio,
        answers=plan.answers,
        calls=output.calls,
        late=plan.late,
    )


class _Plain(NamedTuple):
    """A unit's outcome in a form that compares and prints well."""

    decision: ev.Decision
    token_ids: tuple[int, ...]
    codes: bytes
    text: str
    audio: bytes | None
    calls: tuple[ev.ToolCall, ...]


def plain(output: UnitOutput) -> _Plain:
    """Give an outcome as plain values."""
    audio = None if output.audio is None else output.audio.tobytes()
    return _Plain(output.decision, output.token_ids, output.codes, output.text, audio, output.calls)


def rebuilt(recording: Recording, unit: int) -> tuple[Journal, Context]:
    """Fold a recorded journal up to the end of a unit, as a new owner does, and give the context there."""
    journal = Journal(recording.plugin)
    for position, data in recording.entries[: recording.folded_after(unit)]:
        journal.fold(position, data)
    return journal, journal.ledger.context(journal.state)


async def check_rebuilt_session_goes_on(recording: Recording, unit: int, *, steps: int | None = None) -> None:
    """A session opened from the journal after `unit` goes on exactly as the first owner did."""
    journal, context = rebuilt(recording, unit)
    session = await recording.plugin.open(context)
    journal.ledger.narrow()
    last = None if steps is None else unit + 1 + steps
    for step in recording.steps[unit + 1 : last]:
        for position, data in recording.entries[len(journal.entries) : step.folded]:
            journal.fold(position, data)
        pcm = journal.ledger.unit_input(step.plan)
        assert step.pcm.tobytes() == pcm.tobytes(), f"input of unit {step.plan.unit}, rebuilt after {unit}"
        output = await session.step(journal.unit_input(step.plan, pcm, is_interrupted=step.is_interrupted))
        assert plain(step.output) == plain(output), f"unit {step.plan.unit}, rebuilt after {unit}"
    await session.aclose()


async def check_window_is_enough_and_bounded(recording: Recording) -> None:
    """The context at the end holds no more than the plugin's window, and its audio is what was fed."""
    _, context = rebuilt(recording, len(recording.steps) - 1)
    plugin = recording.plugin
    assert len(context.units) <= plugin.window_units
    assert len(context.pcm) <= plugin.window_samples
    fed = {step.plan.first_sample: step.pcm[: step.plan.input_samples] for step in recording.steps}
    for first, pcm in fed.items():
        at = first - context.first_sample
        if at >= 0:
            assert pcm.tobytes() == context.pcm[at : at + len(pcm)].tobytes(), f"input from {first}"


async def check_interruption_ends_speech(recording: Recording) -> None:
    """A unit after an interruption listens or begins anew; it never goes on with what was being said."""
    interrupted = [
        (before, step)
        for before, step in itertools.pairwise(recording.steps)
        if step.is_interrupted and before.output.decision is ev.Decision.SPEAK
    ]
    assert interrupted, "the script interrupts no speech"
    for _, step in interrupted:
        assert step.output.decision is ev.Decision.LISTEN or step.output.text


async def check_rendered_parts(recording: Recording, unit: int) -> None:
    """A unit's parts, rendered by a new owner from any part on, are the same audio as rendered in one go."""
    session = await recording.plugin.open(rebuilt(recording, unit)[1])
    step = recording.steps[unit]
    waiting = completed(step.plan, step.output)

    async def parts_from(first_sample: int) -> list[Pcm]:
        async with aclosing(session.render(waiting, first_sample)) as parts:
            rendered = [part async for part in parts]
        assert [False] * (len(rendered) - 1) + [True] == [part.last for part in rendered]
        return [part.audio for part in rendered]

    whole = await parts_from(0)
    for number in range(1, len(whole)):
        first_sample = sum(map(len, whole[:number]))
        resumed = await parts_from(first_sample)
        assert [part.tobytes() for part in whole[number:]] == [part.tobytes() for part in resumed]
    await session.aclose()
