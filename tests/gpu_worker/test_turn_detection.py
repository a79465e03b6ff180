"""
Turn detection through the journal: what a session's client hears of the user's speech, whoever serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from msgspec.structs import replace

from eventstore.memory import MemoryEventStore
from gpu_worker.audio import Pcm, encode
from gpu_worker.listening import HeardInput
from gpu_worker.loopback import LoopbackPlugin
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, UnitInput, UnitOutput
from gpu_worker.turns.detector import SpeechModel
from gpu_worker.turns.errors import DetectionFailed
from gpu_worker.turns.service import TurnDetectionService
from gpu_worker.turns.settings import DetectionSettings
from gpu_worker.turns.stage import Hearing
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import Clock, ModelProfile, SessionConfig, SessionPatch, TurnDetection
from session_core.journal import JournalEntry
from session_core.state import State
from tests.gpu_worker.client import PATIENCE_S, Client, Scene
from tests.gpu_worker.plugin_contract import session_config
from tests.gpu_worker.speech import clip, silence, spoken_range


@pytest.fixture
def scene() -> Scene:
    """A memory server whose clock the client moves."""
    return Scene()


@pytest.fixture
async def store(scene: Scene) -> AsyncIterator[MemoryEventStore]:
    """The gateway's store."""
    async with scene.store() as gateway_store:
        yield gateway_store


class Asked(ModelPlugin):
    """A commit-clocked model that says one word when it is asked."""

    def __init__(self) -> None:
        self.profile = ModelProfile(model="asked", clock=Clock.COMMIT)

    async def open(self, context: Context) -> ModelSession:  # noqa: D102 - see the contract
        return _AskedSession()


class _AskedSession(ModelSession):
    async def step(self, unit: UnitInput) -> UnitOutput:
        return UnitOutput(ev.Decision.TURN_END, text="yes", audio=np.zeros(len(unit.pcm[:240]), np.float32))

    async def aclose(self) -> None:
        pass


def vad_config(
    plugin: ModelPlugin, rate_hz: int = 24_000, detection: TurnDetection | None = None
) -> SessionConfig:
    """A session with turn detection."""
    audio_format = AudioFormat(Encoding.PCM16, rate_hz)
    config = session_config(plugin, input_format=audio_format, auto_response=False)
    return replace(config, turn_detection=detection or TurnDetection())


def vad_client(
    scene: Scene, store: MemoryEventStore, rate_hz: int = 24_000, detection: TurnDetection | None = None
) -> Client:
    """A client with server_vad."""
    plugin = LoopbackPlugin()
    return Client(scene, store, vad_config(plugin, rate_hz, detection), plugin.profile)


def spoken(name: str, rate_hz: int = 24_000) -> Pcm:
    """Gives the words of a clip alone."""
    pcm = clip(name, rate_hz)
    return pcm[slice(*spoken_range(pcm, rate_hz))]


def turn(rate_hz: int = 24_000, *, pause_ms: int = 800) -> Pcm:
    """Gives "ten of clubs" with silence before it and a pause in which the reply begins."""
    return np.concatenate((silence(400, rate_hz), clip("cards_001.wav", rate_hz), silence(pause_ms, rate_hz)))


def facts(client: Client) -> list[ev.SpeechStarted | ev.SpeechStopped]:
    """Gives the speech facts that the journal took."""
    return [
        entry.body
        for entry, _ in client.changes
        if isinstance(entry.body, ev.SpeechStarted | ev.SpeechStopped)
    ]


def is_spoken(entry: JournalEntry) -> bool:
    """Whether an entry is a unit that speaks."""
    return isinstance(entry.body, ev.ModelUnitCompleted) and entry.body.decision is not ev.Decision.LISTEN


def has_stopped(state: State) -> bool:
    """Whether speech was heard, and is over."""
    return state.input.speech_from is None and bool(state.history)


@pytest.mark.parametrize("rate_hz", [16_000, 24_000])
async def test_a_spoken_turn_is_detected_committed_and_answered(
    scene: Scene, store: MemoryEventStore, rate_hz: int
) -> None:
    """Start, stop, commit and response come in this order, with the times of the words, at any rate."""
    client = vad_client(scene, store, rate_hz)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(turn(rate_hz, pause_ms=2_400))
        await client.until(lambda state: state.response is None)
    kinds = (wire.InputSpeechStarted, wire.InputSpeechStopped, wire.InputCommitted, wire.ResponseCreated)
    told = [type(event) for event, _ in client.outbound if isinstance(event, kinds)]
    start, end = spoken_range(clip("cards_001.wav", rate_hz), rate_hz)
    (started,), (stopped,) = client.told(wire.InputSpeechStarted), client.told(wire.InputSpeechStopped)
    assert isinstance(started, wire.InputSpeechStarted)
    assert isinstance(stopped, wire.InputSpeechStopped)
    assert list(kinds) == told
    assert abs(started.audio_start_ms - 400 - start * 1000 // rate_hz) < 150 + 300
    assert abs(stopped.audio_end_ms - 400 - end * 1000 // rate_hz - 500) < 200
    assert 1 == len(client.transcripts)


async def test_facts_come_before_the_unit_that_holds_their_input(
    scene: Scene, store: MemoryEventStore
) -> None:
    """No unit holds a frame in which speech was found and not yet told."""
    client = vad_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(turn(pause_ms=2_400))
    heard_to = 0
    found: list[int] = []
    for entry, _ in client.changes:
        if isinstance(entry.body, ev.ModelUnitCompleted):
            heard_to = entry.body.first_sample + entry.body.input_samples
        if isinstance(entry.body, ev.SpeechStopped):
            found.append(entry.body.sample - heard_to)
    # A stop is certain in the frame that ends with it; a frame is 32 ms, of which the last may be undecided.
    assert all(-32 * 24 <= ahead for ahead in found)
    assert 1 == len(found)


async def test_speech_stops_the_response_at_once(scene: Scene, store: MemoryEventStore) -> None:
    """With server_vad as it is by default, the old response says nothing after the fact of new speech."""
    client = vad_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(turn(pause_ms=800))
        interrupted = client.state.response
        assert interrupted is not None
        await client.say(np.concatenate((spoken("cards_005.wav"), silence(4_500))))
        await client.until(lambda state: state.response is None)
    bodies = [entry for entry, _ in client.changes]
    second = [index for index, entry in enumerate(bodies) if isinstance(entry.body, ev.SpeechStarted)][1]
    following = [entry for entry in bodies[second:] if isinstance(entry.body, ev.ModelUnitCompleted)]
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    last_delta = max(
        index
        for index, (event, _) in enumerate(client.outbound)
        if isinstance(event, wire.AudioDelta) and event.response_id == interrupted.response_id
    )
    ended = next(
        index
        for index, (event, _) in enumerate(client.outbound)
        if isinstance(event, wire.ResponseDone) and event.response.id == interrupted.response_id
    )
    # The unit after the fact is worked on in the new epoch: not one was wasted on the old response.
    assert not is_spoken(following[0])
    assert ["cancelled", "completed"] == [event.response.status for event in done]
    assert last_delta < ended


async def test_speech_is_found_within_four_units(scene: Scene, store: MemoryEventStore) -> None:
    """From the first word on, no more than four units are taken before the response stops."""
    client = vad_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(turn(pause_ms=800))
        unit = client.state.clock.next_unit
        await client.say(spoken("cards_005.wav"))
    stopped = next(
        index
        for index, (entry, _) in enumerate(client.changes)
        if isinstance(entry.body, ev.SpeechStarted) and entry.body.sample > unit * 1_920
    )
    taken = [
        entry.body.unit
        for entry, _ in client.changes[:stopped]
        if isinstance(entry.body, ev.ModelUnitCompleted) and entry.body.unit >= unit
    ]
    assert len(taken) <= 4


@pytest.mark.parametrize(("spoken_ms", "statuses"), [(240, ["completed"]), (900, ["cancelled", "completed"])])
async def test_a_short_acknowledgement_does_not_stop_the_response(
    scene: Scene, store: MemoryEventStore, spoken_ms: int, statuses: list[str]
) -> None:
    """Speech under `overlap_barge_in_ms` leaves the response alone; longer speech stops it."""
    plugin = LoopbackPlugin()
    config = replace(vad_config(plugin), overlap_barge_in_ms=700)
    client = Client(scene, store, config, plugin.profile)
    answer = np.concatenate((silence(400), clip("austen_0930.wav"), silence(700)))
    async with scene.worker(plugin):
        await client.open()
        await client.say(answer)
        assert client.state.response is not None
        await client.say(spoken("cards_005.wav")[: spoken_ms * 24])
        await client.say(silence(6_000))
        await client.until(lambda state: state.response is None)
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert statuses[0] == done[0].response.status
    assert 2 == len(client.told(wire.InputSpeechStarted))


async def test_without_interruption_the_response_goes_on(scene: Scene, store: MemoryEventStore) -> None:
    """Where the client wants no interruption, the model says all of it while the user speaks."""
    client = vad_client(scene, store, detection=TurnDetection(interrupt_response=False))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(turn(pause_ms=800))
        first = client.state.response
        assert first is not None
        await client.say(np.concatenate((spoken("cards_005.wav"), silence(3_000))))
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert (first.response_id, "completed") == (done[0].response.id, done[0].response.status)


@pytest.mark.parametrize("plugin", [LoopbackPlugin(), Asked()], ids=["unit", "commit"])
async def test_a_client_that_goes_mute_in_its_speech_is_answered(
    scene: Scene, store: MemoryEventStore, plugin: ModelPlugin
) -> None:
    """Input that is missing is silence for turn detection, too: the stop names the end of the input."""
    client = Client(scene, store, vad_config(plugin), plugin.profile)
    words = clip("cards_001.wav")
    pcm = np.concatenate((silence(400), words[: spoken_range(words, 24_000)[1]]))
    async with scene.worker(plugin):
        await client.open()
        await _send(client, scene, pcm)
        await client.until(lambda state: state.input.speech_from is not None)
        await go_mute(client)
    stopped = facts(client)[-1]
    assert isinstance(stopped, ev.SpeechStopped)
    assert len(pcm) == stopped.sample
    assert 1 == len(client.transcripts)


async def test_speech_after_a_mute_pause_is_heard_anew(scene: Scene, store: MemoryEventStore) -> None:
    """Samples keep their numbers after silence that stood in: a second press of push-to-talk is found."""
    plugin = Asked()
    client = Client(scene, store, vad_config(plugin), plugin.profile)
    words = clip("cards_001.wav")
    pressed = np.concatenate((silence(200), words[: spoken_range(words, 24_000)[1]]))
    async with scene.worker(plugin):
        await client.open()
        for _ in range(2):
            await _send(client, scene, pressed)
            await client.until(lambda state: state.input.speech_from is not None)
            await go_mute(client)
    first, end, second, last = (fact.sample for fact in facts(client))
    assert (len(pressed), 2 * len(pressed)) == (end, last)
    assert abs(second - len(pressed) - first) < 2_400
    assert 2 == len(client.transcripts)


@pytest.mark.parametrize("killed_at_ms", [800, 1_200, 1_840])
async def test_another_worker_finds_the_same_speech(
    scene: Scene, store: MemoryEventStore, killed_at_ms: int
) -> None:
    """A worker killed before, in or after the speech: it is told once, and ends where it would have."""
    whole = Scene()
    async with whole.store() as whole_store, whole.worker(LoopbackPlugin()):
        expected = vad_client(whole, whole_store)
        await expected.open()
        await expected.say(turn(pause_ms=2_400))
        await expected.catch_up()
    client = vad_client(scene, store)
    pcm, cut = turn(pause_ms=2_400), killed_at_ms * 24
    async with scene.worker(LoopbackPlugin()) as (_, task), scene.worker(LoopbackPlugin(), "worker-b"):
        await client.open()
        await client.say(pcm[:cut])
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        await client.say(pcm[cut:])
    assert [type(fact) for fact in facts(expected)] == [type(fact) for fact in facts(client)]
    for one, other in zip(facts(expected), facts(client), strict=True):
        assert abs(one.sample - other.sample) <= 2 * 768
    assert 1 == len(client.transcripts)


async def test_speech_that_goes_on_after_a_clear_is_speech_anew(
    scene: Scene, store: MemoryEventStore
) -> None:
    """What is said after `input_audio_buffer.clear` is found, although it began before."""
    client = vad_client(scene, store)
    words = spoken("cards_005.wav")
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(np.concatenate((silence(400), words[: 24 * 700])))
        assert client.state.input.speech_from is not None
        await client.command(cmd.ClearInput())
        await client.say(np.concatenate((words[24 * 700 :], silence(1_200))))
    assert [ev.SpeechStarted, ev.SpeechStarted, ev.SpeechStopped] == [type(fact) for fact in facts(client)]
    assert facts(client)[1].sample >= 24 * 1_100


async def test_turned_off_in_speech_it_tells_the_stop_and_hears_again_when_turned_on(
    scene: Scene, store: MemoryEventStore
) -> None:
    """A client that turns detection off is not left in a speech that never ends."""
    client = vad_client(scene, store)
    words = spoken("cards_005.wav")
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(np.concatenate((silence(400), words[: 24 * 700])))
        await client.command(cmd.UpdateSession(SessionPatch(turn_detection=None)))
        await client.until(lambda state: state.input.speech_from is None)
        await client.say(silence(2_400))
        await client.command(cmd.UpdateSession(SessionPatch(turn_detection=TurnDetection())))
        await client.say(np.concatenate((silence(1_200), words, silence(1_200))))
    kinds = [type(fact) for fact in facts(client)]
    assert [ev.SpeechStarted, ev.SpeechStopped] * 2 == kinds


async def test_a_longer_pause_can_be_asked_for_on_the_way(scene: Scene, store: MemoryEventStore) -> None:
    """New settings hold for what comes after them."""
    client = vad_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(400))
        patch = SessionPatch(turn_detection=TurnDetection(silence_duration_ms=2_000))
        await client.command(cmd.UpdateSession(patch))
        await client.say(np.concatenate((spoken("cards_001.wav"), silence(1_600))))
        assert client.state.input.speech_from is not None
        await client.say(silence(800))
    assert [ev.SpeechStarted, ev.SpeechStopped] == [type(fact) for fact in facts(client)]


async def test_a_burst_is_heard_whole(scene: Scene, store: MemoryEventStore) -> None:
    """A recording sent at once is cut into its turns, although no time passes."""
    client = vad_client(scene, store, detection=TurnDetection(interrupt_response=False))
    pcm = np.concatenate((turn(pause_ms=1_200), spoken("cards_005.wav"), silence(1_200)))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await _send(client, scene, pcm)
        await client.until(lambda state: state.clock.consumed_samples + 1_920 > len(pcm))
        await client.catch_up()
    assert [ev.SpeechStarted, ev.SpeechStopped] * 2 == [type(fact) for fact in facts(client)]


# --- failure ------------------------------------------------------------------------------------------------


class FailingModel(SpeechModel):
    """Hears nothing but silence, and breaks at a call."""

    name = "failing"
    sample_rate_hz = 16_000
    frame_samples = 512
    state_size = 1

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def judge(self, states: Pcm, frames: Pcm) -> tuple[Pcm, Pcm]:  # noqa: D102 - see the contract
        self._calls -= 1
        if self._calls < 0:
            raise RuntimeError("out of memory")
        return np.zeros(len(frames), np.float32), states


async def test_a_model_that_breaks_is_loaded_again(
    scene: Scene, store: MemoryEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken speech model costs no session its service; one that always breaks fails those that need it."""
    lives = iter([5, 5, 0, 0])
    monkeypatch.setattr("gpu_worker.worker.load_speech_model", lambda _: FailingModel(next(lives)))
    client = vad_client(scene, store)
    plain = Client(scene, store, session_config(LoopbackPlugin()), LoopbackPlugin.profile)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await plain.open()
        await client.say(silence(240))
        feeding = asyncio.create_task(client.say(silence(800)))
        await plain.say(turn(pause_ms=2_400))
        await plain.until(lambda state: state.response is None)
        await feeding
    failed = [entry.body for entry, _ in client.changes if isinstance(entry.body, ev.ModelFailed)]
    assert ["turn detection failed: RuntimeError: out of memory"] == [fact.reason for fact in failed]
    assert 1 == len(plain.transcripts)


async def test_a_service_that_gave_up_says_so() -> None:
    """Whoever wants to be heard after the last restart is told that nobody is."""
    service = TurnDetectionService(lambda: FailingModel(0), 24_000)
    await service.start()
    running = asyncio.create_task(service.run())
    for _ in range(4):
        turns = await service.open(DetectionSettings(), Hearing())
        turns.feed(silence(100))
        with pytest.raises(DetectionFailed):
            await turns.wait_until(2_400)
    await running
    with pytest.raises(DetectionFailed):
        await service.open(DetectionSettings(), Hearing())


# --- samples ------------------------------------------------------------------------------------------------


def test_silence_that_stood_in_has_no_number() -> None:
    """Places before, within and after silence that stood in map to the input around it."""
    heard = HeardInput()
    heard.add_silence(100, 50)
    heard.add_silence(150, 50)
    heard.add_silence(300, 10)
    assert [100, 100, 100, 101, 200, 200, 201] == [
        heard.input_sample(place) for place in (100, 120, 200, 201, 300, 305, 311)
    ]
    assert 110 == heard.silence


def test_many_pauses_take_no_memory() -> None:
    """Old silence is only counted."""
    heard = HeardInput()
    for number in range(1_000):
        heard.add_silence(number * 1_000, 10)
    assert 999 * 1_000 + 500 - 10_000 == heard.input_sample(999 * 1_000 + 500)
    assert len(heard._gaps) <= 8


async def _send(client: Client, scene: Scene, pcm: Pcm) -> None:
    """Sends audio at once."""
    scene.clock.now_ms += 80
    await client.command(cmd.AppendAudio(encode(pcm, "pcm16")))


async def go_mute(client: Client) -> None:
    """Lets time pass without input until the speech is over and answered."""
    async with asyncio.timeout(PATIENCE_S):
        while not (has_stopped(client.state) and client.state.response is None):
            await client.wait_in_silence(80)
            await client.catch_up()
