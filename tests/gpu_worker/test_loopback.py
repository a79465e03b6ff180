from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_worker.audio import Pcm
from gpu_worker.errors import ModelError
from gpu_worker.loopback import LONGEST_SAMPLES, RATE_HZ, LoopbackPartsPlugin, LoopbackPlugin
from session_core import commands as cmd
from session_core.audio import AudioFormat
from session_core.commands import AnyCommand
from session_core.config import SessionPatch
from session_core.events import Decision
from session_core.state import Phase
from tests.gpu_worker import plugin_contract as contract
from tests.gpu_worker.plugin_contract import Act, Recording, audio_acts, record, session_config
from tests.gpu_worker.speech import best_match, clip, silence, spoken_range

_COMMANDS: dict[str, AnyCommand] = {
    "cancel": cmd.CancelResponse(),
    "clear": cmd.ClearInput(),
    "clear_turn": cmd.ClearInput(cancel_turn=True),
    "ask": cmd.CreateResponse(),
    "commit": cmd.CommitInput(respond=True),
}
_MOMENTS = st.tuples(st.sampled_from(["speech", "pause", "nothing", *_COMMANDS]), st.integers(1, 1_500))

FORMAT_24K = AudioFormat(sample_rate_hz=24_000)


def said(recording: Recording) -> Pcm:
    """Gives all audio of a run, one unit after the other."""
    return np.concatenate([step.output.audio for step in recording.steps if step.output.audio is not None])


def decisions(recording: Recording) -> list[Decision]:
    """Gives the decisions of a run."""
    return [step.output.decision for step in recording.steps]


def turns(recording: Recording) -> list[str]:
    """Gives the transcripts of what was begun to be said."""
    return [step.output.text for step in recording.steps if step.output.text]


def sentence(name: str = "cards_001.wav", *, pause_ms: int = 800) -> Pcm:
    """Gives a clip with silence before it and a pause after it."""
    return np.concatenate((silence(400), clip(name), silence(pause_ms)))


async def conversation(plugin: LoopbackPlugin) -> Recording:
    """
    A run with everything that can happen: echo, talk-over, cancel, clear, silence without input, an answer.
    """
    first = sentence("cards_001.wav", pause_ms=1_100)
    over = np.concatenate((clip("cards_001.wav"), silence(1_000)))
    third = sentence("cards_001.wav", pause_ms=300)
    acts = audio_acts(np.concatenate((first, over)), FORMAT_24K)
    end_ms = acts[-1].at_ms
    acts.append(Act(end_ms + 10, cmd.CancelResponse(), within_unit=True))
    acts.append(Act(end_ms + 400, cmd.ClearInput(cancel_turn=True)))
    acts += audio_acts(third, FORMAT_24K, at_ms=end_ms + 1_000)
    end_ms = acts[-1].at_ms
    acts.append(Act(end_ms - 700, cmd.ClearInput()))
    acts.append(Act(end_ms + 10, cmd.CreateResponse()))
    acts.append(
        Act(end_ms + 1_000, cmd.UpdateSession(SessionPatch(input_format=AudioFormat(sample_rate_hz=16_000))))
    )
    acts += audio_acts(
        clip("cards_001.wav", 16_000), AudioFormat(sample_rate_hz=16_000), at_ms=end_ms + 1_100
    )
    return await record(plugin, acts, until_ms=acts[-1].at_ms + 2_500)


@pytest.mark.parametrize("name", ["cards_001.wav", "cards_005.wav", "austen_0930.wav"])
async def test_a_sentence_comes_back_whole(name: str) -> None:
    """The words that were spoken are in what the model says, bit for bit, with the silence around them."""
    pcm = np.concatenate((silence(400), clip(name), silence(6_000)))
    start, end = spoken_range(pcm, RATE_HZ)
    recording = await record(LoopbackPlugin(), audio_acts(pcm, FORMAT_24K))
    words, reply = pcm[start:end], said(recording)
    _, lag = best_match(words, reply)
    assert np.array_equal(words, reply[lag : lag + len(words)])


async def test_a_short_sentence_is_one_turn() -> None:
    """One utterance gives one turn: a transcript in its first unit, and the end of the turn in its last."""
    recording = await record(LoopbackPlugin(), audio_acts(sentence(pause_ms=3_000), FORMAT_24K))
    speaking = [decision for decision in decisions(recording) if decision is not Decision.LISTEN]
    (transcript,) = turns(recording)
    seconds = len(said(recording)) / RATE_HZ
    assert [Decision.SPEAK] * (len(speaking) - 1) + [Decision.TURN_END] == speaking
    assert f"[echo of {seconds:.1f} s of speech]" == transcript


async def test_it_begins_within_five_units_of_the_end() -> None:
    """The model decides to speak 400 ms after the user stopped, in the unit in which that becomes certain."""
    pcm = sentence(pause_ms=3_000)
    recording = await record(LoopbackPlugin(), audio_acts(pcm, FORMAT_24K))
    stopped = len(silence(400)) + spoken_range(clip("cards_001.wav"), RATE_HZ)[1]
    first = next(step for step in recording.steps if step.output.decision is not Decision.LISTEN)
    heard = first.plan.first_sample + first.plan.input_samples
    assert -first.plan.input_samples <= heard - stopped - 400 * RATE_HZ // 1000 < first.plan.input_samples


async def test_talked_over_it_stops_within_two_units_and_says_the_new_words_next() -> None:
    """New speech stops the reply within two units of its first loud sample, and is the next utterance."""
    first, over = sentence("cards_005.wav", pause_ms=1_200), clip("cards_001.wav")
    pcm = np.concatenate((first, over, silence(3_000)))
    recording = await record(LoopbackPlugin(), audio_acts(pcm, FORMAT_24K))
    loud = len(first) + spoken_range(over, RATE_HZ)[0]
    hit = loud // 1_920
    talking = decisions(recording)
    assert Decision.SPEAK is talking[hit - 1]
    assert Decision.LISTEN in talking[hit : hit + 2]
    words = over[slice(*spoken_range(over, RATE_HZ))]
    assert 2 <= len(turns(recording))
    score, _ = best_match(words, said(recording))
    assert score > 0.99


async def test_an_answer_that_is_asked_for_comes_at_once() -> None:
    """
    A response that is asked for is given in the next unit, although the user has not been silent for 400 ms.
    """
    pcm = np.concatenate((silence(400), clip("cards_001.wav")))
    config = session_config(LoopbackPlugin(), auto_response=False)
    acts = audio_acts(pcm, FORMAT_24K)
    acts.append(Act(acts[-1].at_ms, cmd.CreateResponse()))
    recording = await record(LoopbackPlugin(), acts, config=config, until_ms=acts[-1].at_ms + 3_000)
    answer = next(step for step in recording.steps if step.plan.answers is not None)
    words = pcm[slice(*spoken_range(pcm, RATE_HZ))]
    score, _ = best_match(words, said(recording))
    assert Decision.SPEAK is answer.output.decision
    assert score > 0.99
    assert 1 == len(turns(recording))


async def test_asked_without_having_heard_anything_it_listens() -> None:
    """A response that is asked for after silence is answered by listening."""
    acts = [*audio_acts(silence(800), FORMAT_24K), Act(900, cmd.CreateResponse())]
    recording = await record(LoopbackPlugin(), acts, until_ms=1_500)
    answer = next(step for step in recording.steps if step.plan.answers is not None)
    assert Decision.LISTEN is answer.output.decision
    assert [] == turns(recording)


async def test_it_keeps_the_words_until_it_may_speak() -> None:
    """Where the model may not begin by itself, it listens, and says the words once it is asked."""
    config = session_config(LoopbackPlugin(), auto_response=False)
    acts = audio_acts(sentence(pause_ms=2_000), FORMAT_24K)
    asked_ms = acts[-1].at_ms
    acts.append(Act(asked_ms, cmd.CreateResponse()))
    recording = await record(LoopbackPlugin(), acts, config=config, until_ms=asked_ms + 3_000)
    before = [step for step in recording.steps if not step.plan.may_speak]
    words = clip("cards_001.wav")[slice(*spoken_range(clip("cards_001.wav"), RATE_HZ))]
    score, _ = best_match(words, said(recording))
    assert {Decision.LISTEN} == {step.output.decision for step in before}
    assert len(before) > 20
    assert score > 0.9


async def test_no_words_are_said_twice() -> None:
    """Asked again after an echo, the model has nothing to say."""
    acts = audio_acts(sentence(pause_ms=4_000), FORMAT_24K)
    acts.append(Act(acts[-1].at_ms, cmd.CreateResponse()))
    recording = await record(LoopbackPlugin(), acts, until_ms=acts[-1].at_ms + 1_000)
    assert 1 == len(turns(recording))
    assert Decision.LISTEN is recording.steps[-1].output.decision


async def test_an_interruption_drops_the_rest() -> None:
    """After a cancel the model listens, and does not come back to what it was saying."""
    acts = audio_acts(sentence("cards_005.wav", pause_ms=1_000), FORMAT_24K)
    acts.append(Act(acts[-1].at_ms, cmd.CancelResponse()))
    recording = await record(LoopbackPlugin(), acts, until_ms=acts[-1].at_ms + 2_000)
    await contract.check_interruption_ends_speech(recording)
    assert 1 == len(turns(recording))


async def test_silence_that_stands_in_is_heard_but_not_said() -> None:
    """A client that stops sending after its last word is answered, with its input alone."""
    pcm = np.concatenate((silence(400), clip("cards_001.wav")))
    recording = await record(LoopbackPlugin(), audio_acts(pcm, FORMAT_24K), until_ms=5_000)
    reply = said(recording)
    _, lag = best_match(reply, pcm)
    assert np.array_equal(reply, pcm[lag : lag + len(reply)])
    assert 1 == len(turns(recording))


async def test_an_endless_utterance_is_bounded() -> None:
    """Of speech that never stops, an answer holds no more than the last 30 s."""
    rng = np.random.default_rng(7)
    loud = (rng.standard_normal(34 * RATE_HZ) * 0.1 * (1 + np.sin(np.arange(34 * RATE_HZ) / 2_000))).astype(
        np.float32
    )
    acts = audio_acts(np.concatenate((silence(400), loud)), FORMAT_24K)
    config = session_config(LoopbackPlugin(), auto_response=False)
    asked_ms = acts[-1].at_ms
    acts.append(Act(asked_ms, cmd.CreateResponse()))
    recording = await record(LoopbackPlugin(), acts, config=config, until_ms=asked_ms + 33_000)
    assert len(said(recording)) <= LONGEST_SAMPLES
    await contract.check_window_is_enough_and_bounded(recording)


@pytest.mark.parametrize(
    "plugin", [LoopbackPlugin(), LoopbackPartsPlugin()], ids=["loopback", "loopback_parts"]
)
async def test_rebuilt_after_any_unit_it_goes_on_exactly(plugin: LoopbackPlugin) -> None:
    """For every k, a session rebuilt after unit k gives the same outcomes as the uninterrupted one."""
    recording = await conversation(plugin)
    assert len(turns(recording)) >= 3
    for unit in range(-1, len(recording.steps)):
        await contract.check_rebuilt_session_goes_on(recording, unit)


@settings(max_examples=25)
@given(st.lists(_MOMENTS, min_size=3, max_size=12), st.booleans(), st.data())
def test_whatever_happens_it_goes_on_exactly(
    moments: list[tuple[str, int]], auto_response: bool, data: st.DataObject
) -> None:
    """Through speech, pauses, cancels, clears and requests in any order, it goes on exactly."""
    acts: list[Act] = []
    now_ms = 400
    for kind, duration_ms in moments:
        if kind in ("speech", "pause"):
            source = clip("cards_005.wav") if kind == "speech" else silence(duration_ms)
            acts += audio_acts(source[: duration_ms * 24], FORMAT_24K, at_ms=now_ms)
        elif kind != "nothing":
            acts.append(Act(now_ms, _COMMANDS[kind], within_unit=duration_ms % 2 == 1))
        now_ms += duration_ms if kind in ("speech", "pause", "nothing") else 0

    async def run() -> None:
        plugin = LoopbackPlugin()
        config = session_config(plugin, auto_response=auto_response)
        recording = await record(plugin, acts, config=config, until_ms=now_ms + 1_000)
        assert Phase.OPEN is contract.rebuilt(recording, len(recording.steps) - 1)[0].state.phase
        for _ in range(4):
            unit = data.draw(st.integers(-1, len(recording.steps) - 1))
            await contract.check_rebuilt_session_goes_on(recording, unit)

    asyncio.run(run())


async def test_the_conversation_is_within_the_window() -> None:
    """The context holds the input as it was fed, within the plugin's bounds."""
    recording = await conversation(LoopbackPlugin())
    await contract.check_window_is_enough_and_bounded(recording)
    await contract.check_interruption_ends_speech(recording)


async def test_parts_are_the_same_audio() -> None:
    """The double with a renderer says what the model says, in parts that can be taken up anywhere."""
    whole = await record(LoopbackPlugin(), audio_acts(sentence(pause_ms=3_000), FORMAT_24K))
    parts = await record(LoopbackPartsPlugin(), audio_acts(sentence(pause_ms=3_000), FORMAT_24K))
    speaking = [n for n, step in enumerate(parts.steps) if step.output.decision is not Decision.LISTEN]
    assert decisions(whole) == decisions(parts)
    for unit in speaking:
        await contract.check_rendered_parts(parts, unit)


async def test_codes_of_another_model_are_refused() -> None:
    """A context whose codes are not this model's cannot be opened."""
    recording = await record(LoopbackPlugin(), audio_acts(silence(200), FORMAT_24K))
    _, context = contract.rebuilt(recording, 0)
    (unit,) = context.units
    damaged = unit._replace(completed=replace(unit.completed, codes=unit.completed.codes[:-3]))
    with pytest.raises(ModelError):
        await LoopbackPlugin().open(context._replace(units=(damaged,)))


def test_it_takes_no_options() -> None:
    """An option is a mistake of the operator's, and said to be one."""
    with pytest.raises(ModelError, match="speed"):
        LoopbackPlugin({"speed": "2"})
