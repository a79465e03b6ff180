from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.audio import Pcm
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.energy import EnergyModel
from gpu_worker.turns.errors import DetectionFailed
from gpu_worker.turns.segmenter import SpeechEdge
from gpu_worker.turns.settings import DetectionSettings
from gpu_worker.turns.stage import Hearing, TurnDetectionStage
from tests.gpu_worker.turns.helpers import (
    CLIPS,
    RATE_HZ,
    ScriptedModel,
    clip,
    conversation,
    hear,
    running,
    script,
    silence,
    to_ms,
)

SPEECH = DetectionSettings()
QUICK = DetectionSettings(silence_ms=96, min_speech_ms=64)
"""Two frames of speech start it, three of silence stop it."""
SCRIPT_HZ = ScriptedModel.sample_rate_hz


# --- what is heard ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("rate_hz", [8000, 16_000, 24_000])
async def test_speech_is_found(model: SpeechModel, speech_dir: Path, name: str, rate_hz: int) -> None:
    """
    An utterance starts within 100 ms of its words, and stops the settings' silence after them, within 200 ms.
    """
    pcm = np.concatenate((silence(1000, rate_hz), clip(speech_dir, name, rate_hz), silence(1000, rate_hz)))
    first_ms, last_ms = CLIPS[name]

    edges = await hear(model, [pcm], rate_hz=rate_hz)

    assert ["started", "stopped"] == [edge.kind for edge in edges]
    started_ms, stopped_ms = (to_ms(edge.sample, rate_hz) for edge in edges)
    assert abs(started_ms - (1000 + first_ms)) <= 100
    assert abs(stopped_ms - (1000 + last_ms + SPEECH.silence_ms)) <= 200


def _clicks() -> Pcm:
    pcm = silence(3000)
    pcm[:: RATE_HZ // 3] = 0.9
    return pcm


@pytest.mark.parametrize(
    "pcm",
    [
        pytest.param(silence(3000), id="silence"),
        pytest.param(np.random.default_rng(1).normal(0, 0.003, 72_000).astype(np.float32), id="hiss"),
        pytest.param(_clicks(), id="clicks"),
        pytest.param(np.full(72_000, 0.5, np.float32), id="dc"),
    ],
)
async def test_what_is_no_speech_is_not_heard(model: SpeechModel, pcm: Pcm) -> None:
    """Silence, steady noise and clicks have no edges."""
    assert [] == await hear(model, [pcm])


async def test_sudden_noise_is_no_speech(silero: SpeechModel) -> None:
    """The trained model tells noise that begins at once from speech; energy alone cannot."""
    noise = np.random.default_rng(3).normal(0, 0.1, 48_000).astype(np.float32)

    assert [] == await hear(silero, [silence(1000), noise, silence(1000)])


async def test_a_long_silence_joins_utterances(model: SpeechModel, speech_dir: Path) -> None:
    """`silence_ms` decides whether a pause ends speech."""
    pcm = conversation(speech_dir)

    by_default = await hear(model, [pcm])
    patient = await hear(model, [pcm], DetectionSettings(silence_ms=1100))

    assert ["started", "stopped"] * 2 == [edge.kind for edge in by_default]
    assert ["started", "stopped"] == [edge.kind for edge in patient]


async def test_the_threshold_is_honoured() -> None:
    """Frames between two thresholds are speech to the lower one alone."""
    pcm = script([0.6] * 10)

    assert [SpeechEdge("started", 0)] == await hear(ScriptedModel(), [pcm], rate_hz=SCRIPT_HZ)
    strict = DetectionSettings(threshold=0.8)
    assert [] == await hear(ScriptedModel(), [pcm], strict, rate_hz=SCRIPT_HZ)


# --- cutting and joining ------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 260_000), max_size=30))
def test_chunking_changes_nothing(speech_dir: Path, cuts: list[int]) -> None:
    """The same input gives the same edges however it was cut."""
    pcm = conversation(speech_dir)
    bounds = [0, *sorted(min(cut, len(pcm)) for cut in cuts), len(pcm)]
    chunks = [pcm[first:end] for first, end in pairwise(bounds)]

    assert asyncio.run(hear(EnergyModel(), [pcm])) == asyncio.run(hear(EnergyModel(), chunks))


async def test_small_chunks_change_nothing(silero: SpeechModel, speech_dir: Path) -> None:
    """As above with the trained model, in pieces of 20 ms."""
    pcm = conversation(speech_dir)
    chunks = [pcm[first : first + 480] for first in range(0, len(pcm), 480)]

    assert await hear(silero, [pcm]) == await hear(silero, chunks)


async def test_company_changes_nothing(silero: SpeechModel, speech_dir: Path) -> None:
    """Sessions that share a stage have the edges that each would have alone, at its own times."""
    streams = [np.concatenate((silence(130 * number), conversation(speech_dir))) for number in range(6)]
    alone = [await hear(silero, [pcm]) for pcm in streams]

    async with running(silero) as stage:
        sessions = [stage.open(SPEECH) for _ in streams]
        for first in range(0, max(map(len, streams)), 2400):
            for turns, pcm in zip(sessions, streams, strict=True):
                turns.feed(pcm[first : first + 2400])
            paced = sessions[first // 2400 % len(sessions)]
            await paced.wait_until(min(first, paced.fed_to))
        for turns in sessions:
            await turns.wait_until(turns.fed_to)
        together = [turns.take() for turns in sessions]

    assert alone == together


@pytest.mark.parametrize("at_ms", range(250, 9000, 250))
async def test_a_new_owner_hears_what_is_missing(model: SpeechModel, speech_dir: Path, at_ms: int) -> None:
    """After a failover anywhere, the last seconds of audio and the journal's facts give the edges to come."""
    pcm = conversation(speech_dir)
    at = at_ms * RATE_HZ // 1000
    whole = await hear(model, [pcm])
    journaled = await hear(model, [pcm[:at]])
    is_speaking = len(journaled) % 2 == 1
    decided = journaled[-1].sample if journaled else 0
    first = max(0, at - SPEECH.lookback_ms * RATE_HZ // 1000)

    found = await hear(model, [pcm[first:]], hearing=Hearing(first, is_speaking, decided))

    expected = whole[len(journaled) :]
    assert [edge.kind for edge in expected] == [edge.kind for edge in found]
    far = [abs(to_ms(edge.sample) - to_ms(other.sample)) for edge, other in zip(found, expected, strict=True)]
    # Silero forgets in a second or two. The energy model knows the background from what it heard alone.
    assert max(far, default=0) <= (32 if model.name == "silero" else 100)


async def test_an_edge_that_no_one_journaled_is_found_again(silero: SpeechModel, speech_dir: Path) -> None:
    """A start that its owner heard but did not append before it died is heard again by the next one."""
    pcm = conversation(speech_dir)
    start = (await hear(silero, [pcm]))[0]
    first = start.sample - RATE_HZ * 11 // 10

    found = await hear(silero, [pcm[first:]], hearing=Hearing(first_sample=first))

    assert start == found[0]


# --- one session --------------------------------------------------------------------------------------------


async def test_wait_until_covers_the_whole_frames_before_a_sample() -> None:
    """What was waited for has its outcome, and what lies in a frame that is not whole is not waited for."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage:
        turns = stage.open(QUICK)
        turns.feed(script([0, 1, 1, 1])[:-100])
        await turns.wait_until(turns.fed_to)

        assert 3 * 512 == turns.complete_to
        assert [SpeechEdge("started", 512)] == turns.take()
        assert [] == turns.take()


async def test_wait_until_waits_for_input() -> None:
    """A sample that is not fed yet is waited for."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage, asyncio.TaskGroup() as tasks:
        turns = stage.open(QUICK)
        waiting = tasks.create_task(turns.wait_until(1024))
        turns.feed(script([1]))
        await turns.wait_until(512)
        assert not waiting.done()
        turns.feed(script([1]))
        await waiting

        assert [SpeechEdge("started", 0)] == turns.take()


async def test_wait_edges_tells_of_the_next_edge() -> None:
    """It returns when there is something to take, and not before."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage, asyncio.TaskGroup() as tasks:
        turns = stage.open(QUICK)
        waiting = tasks.create_task(turns.wait_edges())
        turns.feed(script([0, 0, 1]))
        await turns.wait_until(3 * 512)
        assert not waiting.done()
        turns.feed(script([1]))

        assert await waiting
        assert [SpeechEdge("started", 1024)] == turns.take()


async def test_settings_change_for_what_is_fed_later() -> None:
    """An update leaves what was fed before it alone, judged or not."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage:
        turns = stage.open(QUICK)
        turns.feed(script([1, 1, 0, 0, 0]))
        turns.update(DetectionSettings(silence_ms=32, min_speech_ms=32, threshold=0.3))
        turns.feed(script([0.4, 0]))
        await turns.wait_until(turns.fed_to)

        expected = [("started", 0), ("stopped", 5), ("started", 5), ("stopped", 7)]
        assert expected == [(edge.kind, edge.sample // 512) for edge in turns.take()]


async def test_close_ends_all_waiting() -> None:
    """After a close nobody waits, nothing comes, and feeding is harmless."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage, asyncio.TaskGroup() as tasks:
        turns = stage.open(QUICK)
        edges = tasks.create_task(turns.wait_edges())
        until = tasks.create_task(turns.wait_until(10**9))
        other = stage.open(QUICK)
        turns.feed(script([1] * 100))
        other.feed(script([1] * 2))
        turns.close()
        await other.wait_until(other.fed_to)

        assert await edges is False
        await until
        turns.feed(script([1]))
        assert (True, [], 0) == (turns.closed, turns.take(), turns.complete_to)


# --- many sessions ------------------------------------------------------------------------------------------


async def test_a_burst_delays_nobody() -> None:
    """While one session's ten minutes are heard, another's present is."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage:
        burst, live = stage.open(QUICK), stage.open(QUICK)
        burst.feed(np.zeros(600 * SCRIPT_HZ, np.float32))
        await burst.wait_until(1)
        live.feed(script([1, 1]))
        await live.wait_until(live.fed_to)

        assert [SpeechEdge("started", 0)] == live.take()
        assert burst.complete_to < 60 * SCRIPT_HZ
        burst.close()


async def test_sessions_share_calls() -> None:
    """Frames that are due together are judged together."""
    model = ScriptedModel()
    async with running(model, SCRIPT_HZ) as stage:
        sessions = [stage.open(QUICK) for _ in range(20)]
        for turns in sessions:
            turns.feed(script([0, 0]))
        for turns in sessions:
            await turns.wait_until(turns.fed_to)

    assert [20, 20] == model.batches


async def test_a_session_that_joins_later_has_its_own_memory() -> None:
    """A session's state goes with it, whoever else takes part in a call."""
    model = ScriptedModel()
    async with running(model, SCRIPT_HZ) as stage:
        first, second = stage.open(QUICK), stage.open(QUICK)
        for count in (3, 1):
            first.feed(script([0] * count))
            second.feed(script([0]))
            await first.wait_until(first.fed_to)
            await second.wait_until(second.fed_to)

        assert (4, 2) == (first._ear.memory[0], second._ear.memory[0])


# --- failure ------------------------------------------------------------------------------------------------


async def test_a_broken_model_is_told_to_everyone() -> None:
    """The stage ends with a typed error, and so does whatever a session or a new one asks of it."""
    stage = TurnDetectionStage(ScriptedModel(fails_at_call=1), SCRIPT_HZ)
    failing, idle = stage.open(QUICK), stage.open(QUICK)
    failing.feed(script([1, 1]))

    results = await asyncio.gather(
        stage.run(), failing.wait_until(1024), idle.wait_edges(), return_exceptions=True
    )

    assert [DetectionFailed] * 3 == [type(result) for result in results]
    assert "turn detection failed: RuntimeError: out of memory" == str(results[0])
    with pytest.raises(DetectionFailed):
        idle.feed(script([1]))
    with pytest.raises(DetectionFailed):
        stage.open(QUICK)


async def test_a_stage_that_was_stopped_leaves_nobody_waiting() -> None:
    """Who still waits when the stage is cancelled is told."""
    async with running(ScriptedModel(), SCRIPT_HZ) as stage:
        turns = stage.open(QUICK)
        turns.feed(script([0]))
        await turns.wait_until(turns.fed_to)
        waiting = asyncio.gather(turns.wait_edges(), turns.wait_until(1024), return_exceptions=True)

    assert [DetectionFailed] * 2 == [type(result) for result in await waiting]
