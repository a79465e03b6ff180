from __future__ import annotations

import numpy as np

from gpu_worker.audio import decode, encode
from gpu_worker.loopback import LoopbackPartsPlugin, LoopbackPlugin
from gpu_worker.plugin import ModelPlugin
from session_core import commands as cmd
from session_core import events as ev
from session_core.journal import Role
from session_core.units import next_unit
from tests.gpu_worker.plugin_contract import OPENED_MS, Journal, opening, session_config

UNIT = 1_920
NOW_MS = OPENED_MS + 10_000


def opened(plugin: ModelPlugin | None = None) -> Journal:
    """Gives the journal of an open session at 24 kHz."""
    plugin = plugin or LoopbackPlugin()
    journal = Journal(plugin)
    for body in opening(plugin, session_config(plugin), "sess_00_ledger"):
        journal.append(OPENED_MS, body)
    return journal


def audio(samples: int, seed: int) -> bytes:
    """Gives seeded noise as PCM16."""
    return encode((np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32), "pcm16")


def take_unit(
    journal: Journal,
    *,
    decision: ev.Decision = ev.Decision.LISTEN,
    audio_out: bytes | None = b"",
    epoch: int | None = None,
) -> None:
    """Lets the next unit be completed."""
    plan = next_unit(journal.state, NOW_MS)
    assert plan is not None
    unit = ev.ModelUnitCompleted(
        plan.unit,
        plan.epoch if epoch is None else epoch,
        plan.first_sample,
        plan.input_samples,
        plan.silence_samples,
        decision,
        codes=b"%d" % plan.unit,
        audio=audio_out,
    )
    journal.append(NOW_MS, unit, Role.WORKER)


def test_the_context_ends_where_the_last_unit_did() -> None:
    """Input that no unit has taken is no part of the context, and is what the next unit gets."""
    journal = opened()
    data = audio(3 * UNIT, 1)
    journal.append(OPENED_MS, cmd.AppendAudio(data), Role.CLIENT)
    take_unit(journal)
    context = journal.ledger.context(journal.state)
    plan = next_unit(journal.state, 0)
    assert plan is not None
    pcm = decode(data, "pcm16")
    assert pcm[:UNIT].tobytes() == context.pcm.tobytes()
    assert pcm[UNIT : 2 * UNIT].tobytes() == journal.ledger.unit_input(plan).tobytes()


def test_silence_stands_after_the_input() -> None:
    """A unit with too little input has the input first."""
    journal = opened()
    data = audio(500, 1)
    journal.append(OPENED_MS, cmd.AppendAudio(data), Role.CLIENT)
    plan = next_unit(journal.state, NOW_MS)
    assert plan is not None
    pcm = journal.ledger.unit_input(plan)
    assert UNIT == len(pcm)
    assert (
        np.concatenate((decode(data, "pcm16"), np.zeros(UNIT - 500, np.float32))).tobytes() == pcm.tobytes()
    )


def test_dropped_input_is_silence_in_the_context_and_no_unit_gets_it() -> None:
    """Input that is cleared before a unit took it leaves a hole, and the next unit begins after it."""
    journal = opened()
    first, dropped, last = audio(UNIT, 1), audio(700, 2), audio(UNIT, 3)
    journal.append(OPENED_MS, cmd.AppendAudio(first), Role.CLIENT)
    take_unit(journal)
    journal.append(OPENED_MS, cmd.AppendAudio(dropped), Role.CLIENT)
    journal.append(OPENED_MS, cmd.ClearInput(), Role.CLIENT)
    journal.append(OPENED_MS, cmd.AppendAudio(last), Role.CLIENT)
    take_unit(journal)
    pcm = journal.ledger.context(journal.state).pcm
    expected = np.concatenate((decode(first, "pcm16"), np.zeros(700, np.float32), decode(last, "pcm16")))
    assert expected.tobytes() == pcm.tobytes()


def test_a_unit_in_work_keeps_what_it_took_when_the_input_is_dropped() -> None:
    """The clear comes between a unit's beginning and its end: the hole begins where the unit ended."""
    journal = opened()
    taken, dropped = audio(UNIT, 1), audio(700, 2)
    journal.append(OPENED_MS, cmd.AppendAudio(taken + dropped), Role.CLIENT)
    journal.append(OPENED_MS, cmd.ClearInput(), Role.CLIENT)
    unit = ev.ModelUnitCompleted(0, 0, 0, UNIT, 0, ev.Decision.LISTEN)
    journal.append(OPENED_MS, unit, Role.WORKER)
    journal.append(
        OPENED_MS, ev.ModelUnitCompleted(1, 0, UNIT + 700, 0, UNIT, ev.Decision.LISTEN), Role.WORKER
    )
    pcm = journal.ledger.context(journal.state).pcm
    assert np.concatenate((decode(taken, "pcm16"), np.zeros(700, np.float32))).tobytes() == pcm.tobytes()


def test_the_window_holds_units_without_their_audio() -> None:
    """A context has the last units of the window, muted ones too, and none of their audio."""
    journal = opened()
    journal.append(OPENED_MS, cmd.AppendAudio(audio(3 * UNIT, 1)), Role.CLIENT)
    take_unit(journal, decision=ev.Decision.SPEAK, audio_out=bytes(100))
    journal.append(OPENED_MS, cmd.CancelResponse(), Role.CLIENT)
    take_unit(journal, decision=ev.Decision.SPEAK, audio_out=bytes(100), epoch=0)
    (record,) = journal.ledger.context(journal.state).units
    assert (1, True, None) == (record.completed.unit, record.muted, record.completed.audio)
    assert 0 == journal.ledger.last_epoch


def test_a_unit_waits_until_it_is_rendered() -> None:
    """A unit without audio is held until its last part is there, however long ago it was."""
    journal = opened(LoopbackPartsPlugin())
    journal.append(OPENED_MS, cmd.AppendAudio(audio(3 * UNIT, 1)), Role.CLIENT)
    take_unit(journal, decision=ev.Decision.SPEAK, audio_out=None)
    take_unit(journal, decision=ev.Decision.SPEAK, audio_out=None)
    journal.ledger.narrow()
    assert b"0" == journal.ledger.unit_to_render(0).codes
    journal.append(NOW_MS, ev.OutputRendered(0, 0, 0, bytes(8), False), Role.WORKER)
    journal.append(NOW_MS, ev.OutputRendered(0, 1, 4, bytes(8), True), Role.WORKER)
    assert {1} == set(journal.ledger._to_render)
    journal.append(NOW_MS, cmd.CancelResponse(), Role.CLIENT)
    assert set() == set(journal.ledger._to_render)


def test_a_narrow_ledger_holds_only_what_is_to_come() -> None:
    """Once the context is built, input is given up as the units take it."""
    journal = opened()
    journal.ledger.narrow()
    for seed in range(200):
        journal.append(OPENED_MS, cmd.AppendAudio(audio(UNIT, seed)), Role.CLIENT)
        plan = next_unit(journal.state, 0)
        assert plan is not None
        journal.ledger.unit_input(plan)
        take_unit(journal)
    held = journal.ledger.input.segments[0].chunks
    assert len(held) <= 2
