from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
from msgspec.structs import replace

from eventstore.ids import EntryId
from eventstore.memory import MemoryEventStore
from gpu_worker.audio import Pcm, Resampler
from gpu_worker.errors import ModelError
from gpu_worker.loopback import LoopbackPartsPlugin, LoopbackPlugin
from gpu_worker.plugin import Context, ModelPlugin, ModelSession, RenderedPart, UnitInput, UnitOutput
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import Worker
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import SessionConfig, TurnDetection
from session_core.fleet import decode_advertisement, slot_member
from session_core.journal import Role, Stamp, decode_entry
from session_core.state import EndReason, Phase
from tests.gpu_worker.client import PATIENCE_S, Client, Scene, in_16_bits
from tests.gpu_worker.plugin_contract import session_config
from tests.gpu_worker.speech import best_match, clip, silence, spoken_range


@pytest.fixture
def scene() -> Scene:
    """A memory server whose clock the client moves."""
    return Scene()


@pytest.fixture
async def store(scene: Scene) -> AsyncIterator[MemoryEventStore]:
    """The gateway's store."""
    async with scene.store() as gateway_store:
        yield gateway_store


def sentence(rate_hz: int = 24_000, *, pause_ms: int = 2_400) -> Pcm:
    """Gives "ten of clubs" with silence before it and a pause long enough for the whole echo."""
    return np.concatenate((silence(400, rate_hz), clip("cards_001.wav", rate_hz), silence(pause_ms, rate_hz)))


def words(rate_hz: int = 24_000) -> Pcm:
    """Gives the spoken words alone."""
    pcm = clip("cards_001.wav", rate_hz)
    return pcm[slice(*spoken_range(pcm, rate_hz))]


class Held(ModelSession):
    """
    A loopback session that does nothing after the first of a unit's rendered parts, or before a given unit.
    """

    def __init__(self, session: ModelSession, gate: asyncio.Event, unit: int | None) -> None:
        self._session = session
        self._gate = gate
        self._unit = unit

    async def step(self, unit: UnitInput) -> UnitOutput:  # noqa: D102 - see the contract
        if unit.plan.unit == self._unit:
            await self._gate.wait()
        return await self._session.step(unit)

    async def render(
        self, unit: ev.ModelUnitCompleted, first_sample: int
    ) -> AsyncGenerator[RenderedPart, None]:
        """Stops after a part."""
        async for part in self._session.render(unit, first_sample):
            yield part
            if self._unit is None:
                await self._gate.wait()

    async def aclose(self) -> None:  # noqa: D102 - see the contract
        await self._session.aclose()


class HeldPlugin(ModelPlugin):
    """A plugin whose sessions wait at a gate."""

    def __init__(self, plugin: ModelPlugin, unit: int | None = None) -> None:
        self.profile = plugin.profile
        self.window_units = plugin.window_units
        self.window_samples = plugin.window_samples
        self.gate = asyncio.Event()
        self._plugin = plugin
        self._unit = unit

    async def open(self, context: Context) -> ModelSession:  # noqa: D102 - see the contract
        return Held(await self._plugin.open(context), self.gate, self._unit)


class Broken(LoopbackPlugin):
    """A model that cannot take one of its sessions, or breaks in its first unit."""

    def __init__(self, error: Exception, *, at_open: bool) -> None:
        super().__init__()
        self.session_id = ""
        self._error = error
        self._at_open = at_open

    async def open(self, context: Context) -> ModelSession:  # noqa: D102 - see the contract
        session = await super().open(context)
        if context.session_id != self.session_id:
            return session
        if self._at_open:
            raise self._error
        return _BreakingSession(self._error)


class _BreakingSession(ModelSession):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def step(self, unit: UnitInput) -> UnitOutput:
        raise self._error

    async def aclose(self) -> None:
        pass


def new_client(scene: Scene, store: MemoryEventStore, plugin: ModelPlugin | None = None) -> Client:
    """A client of a duplex session at 24 kHz, with an automatic response."""
    plugin = plugin or LoopbackPlugin()
    return Client(scene, store, session_config(plugin), plugin.profile)


async def test_a_spoken_sentence_comes_back(scene: Scene, store: MemoryEventStore) -> None:
    """What the user said comes back through the journal, sample for sample, as one turn."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(sentence())
        await client.until(lambda state: state.response is None)
    _, lag = best_match(words(), client.reply)
    assert np.array_equal(in_16_bits(words()), client.reply[lag : lag + len(words())])
    assert 1 == len(client.transcripts)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
async def test_other_rates_are_converted_both_ways(
    scene: Scene, store: MemoryEventStore, rate_hz: int
) -> None:
    """A client at another rate hears its words at that rate."""
    plugin = LoopbackPlugin()
    audio_format = AudioFormat(Encoding.PCM16, rate_hz)
    config = session_config(plugin, input_format=audio_format)
    client = Client(scene, store, _with_output(config, audio_format), plugin.profile)
    async with scene.worker(plugin):
        await client.open()
        await client.say(_resampled(sentence(16_000), rate_hz))
        await client.until(lambda state: state.response is None)
    score, _ = best_match(_resampled(words(16_000), rate_hz), client.reply)
    assert score > 0.9


async def test_rendered_parts_are_the_same_words(scene: Scene, store: MemoryEventStore) -> None:
    """A model that renders later says the same, in twice as many deltas."""
    plugin = LoopbackPartsPlugin()
    client = new_client(scene, store, plugin)
    async with scene.worker(plugin):
        await client.open()
        await client.say(sentence())
        await client.until(lambda state: state.response is None)
    _, lag = best_match(words(), client.reply)
    assert np.array_equal(in_16_bits(words()), client.reply[lag : lag + len(words())])


async def test_talked_over_it_stops_within_two_units(scene: Scene, store: MemoryEventStore) -> None:
    """New speech ends the response within its first two units, and is answered itself."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(sentence(pause_ms=800))
        interrupted = client.state.response
        assert interrupted is not None
        await client.say(words()[: 2 * 1_920])
        assert client.state.response is None
        await client.say(np.concatenate((words()[2 * 1_920 :], silence(2_400))))
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert ["cancelled", "completed"] == [event.response.status for event in done]


async def test_an_answer_that_is_asked_for_comes_at_once(scene: Scene, store: MemoryEventStore) -> None:
    """`response.create` is answered in the unit after it, although the user spoke until then."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(np.concatenate((silence(400), clip("cards_001.wav"))))
        unit = client.state.clock.next_unit
        await client.command(cmd.CreateResponse())
        await client.until(lambda state: state.clock.next_unit > unit)
    assert ev.Decision.SPEAK is client.units()[unit].decision
    assert client.units()[unit].answers is not None


async def test_speech_is_reported_and_committed(scene: Scene, store: MemoryEventStore) -> None:
    """With turn detection the speech becomes speech events, a user item and a response."""
    plugin = LoopbackPlugin()
    config = _with_turn_detection(session_config(plugin, auto_response=False))
    client = Client(scene, store, config, plugin.profile)
    async with scene.worker(plugin):
        await client.open()
        await client.say(sentence())
        await client.until(lambda state: state.response is None)
    (started,), (stopped,) = client.told(wire.InputSpeechStarted), client.told(wire.InputSpeechStopped)
    assert isinstance(started, wire.InputSpeechStarted)
    assert isinstance(stopped, wire.InputSpeechStopped)
    assert 400 < started.audio_start_ms < stopped.audio_end_ms < 400 + 1_200 + 500
    assert 1 == len(client.told(wire.InputCommitted))
    assert 1 == len(client.transcripts)


async def test_silence_stands_in_for_a_client_that_stops_sending(
    scene: Scene, store: MemoryEventStore
) -> None:
    """A push-to-talk client that sends nothing after its last word is answered all the same."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(np.concatenate((silence(400), clip("cards_001.wav"))))
        await client.wait_in_silence(1_200)
    assert 1 == len(client.transcripts)
    assert any(unit.silence_samples for unit in client.units())


async def uninterrupted(plugin: ModelPlugin, config: SessionConfig | None = None) -> Client:
    """The run that a failover must not differ from."""
    scene = Scene()
    async with scene.store() as store:
        client = Client(scene, store, config or session_config(plugin), plugin.profile)
        async with scene.worker(plugin):
            await client.open()
            await client.say(sentence())
        return client


@pytest.mark.parametrize("killed_at_ms", [80, 960, 1_600, 2_080, 2_400, 2_640])
async def test_another_worker_goes_on_exactly(
    scene: Scene, store: MemoryEventStore, killed_at_ms: int
) -> None:
    """
    A worker killed after any unit is replaced, and every unit and every sample is as if nothing had happened.
    """
    expected = await uninterrupted(LoopbackPlugin())
    client = new_client(scene, store)
    pcm, cut = sentence(), killed_at_ms * 24
    async with scene.worker(LoopbackPlugin()) as (_, task), scene.worker(LoopbackPlugin(), "worker-b"):
        await client.open()
        await client.say(pcm[:cut])
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        stale = client.units()[-1]
        await client.append(stale, Stamp(Role.WORKER, 1, client.state.worker.last_n + 1))
        await client.say(pcm[cut:])
    assert [_outcome(unit) for unit in expected.units()] == [_outcome(unit) for unit in client.units()]
    assert expected.reply.tobytes() == client.reply.tobytes()
    assert {1, 2} == {
        entry.stamp.generation for entry in client.entries if _is_worker(entry.stamp) and entry.stamp
    }


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 48_000])
async def test_another_worker_goes_on_without_a_seam_at_other_rates(
    scene: Scene, store: MemoryEventStore, rate_hz: int
) -> None:
    """Where the output is converted, a new worker's first sample follows the old one's last, bit for bit."""
    plugin = LoopbackPlugin()
    config = _with_output(session_config(plugin), AudioFormat(Encoding.PCM16, rate_hz))
    expected = await uninterrupted(plugin, config)
    client = Client(scene, store, config, plugin.profile)
    pcm, cut = sentence(), 2_400 * 24
    async with scene.worker(plugin) as (_, task), scene.worker(plugin, "worker-b"):
        await client.open()
        await client.say(pcm[:cut])
        assert client.state.response is not None
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        await client.say(pcm[cut:])
    assert expected.reply.tobytes() == client.reply.tobytes()


async def test_another_worker_goes_on_between_rendered_parts(scene: Scene, store: MemoryEventStore) -> None:
    """A worker killed between two parts of a unit's audio is replaced, and each sample is given once."""
    expected = await uninterrupted(LoopbackPartsPlugin())
    client = new_client(scene, store, LoopbackPartsPlugin())
    held = HeldPlugin(LoopbackPartsPlugin())
    pcm = sentence()
    async with scene.worker(held) as (_, task), scene.worker(LoopbackPartsPlugin(), "worker-b"):
        await client.open()
        speaking_at = next(i for i, unit in enumerate(expected.units()) if unit.audio is None)
        await client.say(pcm[: speaking_at * 1_920])
        feeding = asyncio.create_task(client.say(pcm[speaking_at * 1_920 :]))
        await _until(lambda: bool(client.state.renders) and client.state.renders[0].next_part == 1)
        task.cancel()
        await asyncio.wait([task])
        generation = client.state.worker.generation + 1
        await store.hold("worker-b", slot_member(client.session_id, generation), None)
        await client.append(ev.WorkerAssigned("worker-b", generation))
        await feeding
    assert expected.reply.tobytes() == client.reply.tobytes()


@pytest.mark.parametrize("at_open", [True, False])
@pytest.mark.parametrize("error", [ModelError("no room"), ZeroDivisionError("a bug")])
async def test_one_broken_session_leaves_its_neighbours_alone(
    scene: Scene, store: MemoryEventStore, error: Exception, at_open: bool
) -> None:
    """A model that fails for one session loses that session, and the others go on."""
    plugin = Broken(error, at_open=at_open)
    bad, good = new_client(scene, store), new_client(scene, store)
    plugin.session_id = bad.session_id
    async with scene.worker(plugin):
        await bad.open()
        await good.open()
        await bad.command(cmd.CreateResponse())
        await bad.until(lambda state: state.worker.generation == 1 and state.worker.worker is None)
        await good.say(sentence())
        await good.until(lambda state: state.response is None)
        await _until_async(lambda: _is_free(store, "worker-a", bad))
    (failed,) = [entry.body for entry in bad.entries if isinstance(entry.body, ev.ModelFailed)]
    assert str(error) in failed.reason
    assert 1 == len(good.transcripts)


async def test_a_poisonous_session_ends(scene: Scene, store: MemoryEventStore) -> None:
    """A session that three workers in a row could do nothing for is given up when it is assigned again."""
    plugin = Broken(ZeroDivisionError("a bug"), at_open=False)
    client = new_client(scene, store)
    plugin.session_id = client.session_id
    async with scene.worker(plugin):
        await client.open()
        await client.command(cmd.CreateResponse())
        for generation in (1, 2, 3):
            await _until_given_up(client, generation)
            await client.assign("worker-a")
        await client.until(lambda state: state.phase is Phase.ENDED)
    assert EndReason.ENGINE_ERROR is client.state.end_reason


async def test_a_slot_is_freed_when_the_session_ends(scene: Scene, store: MemoryEventStore) -> None:
    """A closed session leaves nothing behind in the worker's set."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()) as (worker, _):
        await client.open()
        await client.say(silence(400))
        await client.command(cmd.CloseSession())
        await _until_async(lambda: _is_free(store, "worker-a", client))
        assert 0 == worker.sessions


async def test_a_slot_that_is_not_assigned_lapses(scene: Scene, store: MemoryEventStore) -> None:
    """A reservation without an assignment in the log is given back."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin(), claim_timeout_ms=0):
        await client.open(worker_id=None)
        await store.hold("worker-a", slot_member(client.session_id, 1), None)
        await _until_async(lambda: _is_free(store, "worker-a", client))
    assert 0 == client.state.worker.generation


async def test_a_lost_slot_is_taken_again(scene: Scene, store: MemoryEventStore) -> None:
    """The log, not the set, says whose the session is: a served session gets its slot back."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(160))
        await store.release("worker-a", slot_member(client.session_id, 1))
        await _until_async(lambda: _is_held(store, "worker-a", client))


async def test_a_session_of_another_model_is_declined(scene: Scene, store: MemoryEventStore) -> None:
    """A worker that is assigned what it cannot serve says so in the log."""
    client = new_client(scene, store, LoopbackPartsPlugin())
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.until(lambda state: state.worker.generation == 1 and state.worker.worker is None)
        await _until_async(lambda: _is_free(store, "worker-a", client))
    assert any(isinstance(entry.body, ev.AssignmentDeclined) for entry in client.entries)


async def test_a_full_worker_declines(scene: Scene, store: MemoryEventStore) -> None:
    """A session beyond the worker's capacity is declined; the one that it has goes on."""
    first, second = new_client(scene, store), new_client(scene, store)
    async with scene.worker(LoopbackPlugin(), capacity=1):
        await first.open()
        await first.say(silence(160))
        await second.open()
        await second.until(lambda state: state.worker.generation == 1 and state.worker.worker is None)
        await first.say(silence(160))
    assert 4 == len(first.units())


async def test_a_worker_that_cannot_read_on_declines(scene: Scene, store: MemoryEventStore) -> None:
    """A journal whose beginning is trimmed cannot be folded here, and is left to another."""
    client = new_client(scene, store)
    await client.open(worker_id=None)
    await client.command(cmd.Heartbeat())
    await client.catch_up()
    await store.trim(client.session_id, (await _last(store, client)))
    async with scene.worker(LoopbackPlugin()):
        await store.hold("worker-a", slot_member(client.session_id, 1), None)
        await client.append(ev.WorkerAssigned("worker-a", 1))
        await client.until(lambda state: state.worker.generation == 1 and state.worker.worker is None)


async def test_after_a_rollback_of_the_store_another_generation_goes_on(
    scene: Scene, store: MemoryEventStore
) -> None:
    """A worker whose fold rests on entries that the store lost gives the session up."""
    client = new_client(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(400))
        kept = client.state.position
        await client.say(silence(400))
        scene.server.lose_tail(client.session_id, EntryId(*kept))
        scene.server.restart()
        await _until_async(lambda: _is_declined(store, client))
        await _until_async(lambda: _is_free(store, "worker-a", client))


async def test_audio_that_is_none_fails_its_session_alone(scene: Scene, store: MemoryEventStore) -> None:
    """Input that cannot be decoded is reported as a failure; the worker goes on."""
    plugin = LoopbackPlugin()
    config = session_config(plugin, input_format=AudioFormat(Encoding.PCM_F32LE))
    bad, good = Client(scene, store, config, plugin.profile), new_client(scene, store)
    async with scene.worker(plugin):
        await bad.open()
        await good.open()
        await bad.command(cmd.AppendAudio(np.full(1_920, np.nan, "<f4").tobytes()))
        await _until_given_up(bad, 1)
        await good.say(silence(400))
    assert 5 == len(good.units())


@pytest.mark.parametrize("fails", [True, False])
async def test_a_session_that_is_given_up_is_found_at_once(
    scene: Scene, store: MemoryEventStore, fails: bool
) -> None:
    """Without a client to notice, whoever looks after due sessions finds the one that lost its worker."""
    plugin = Broken(ZeroDivisionError("a bug"), at_open=True)
    client = new_client(scene, store)
    if fails:
        plugin.session_id = client.session_id
    async with scene.worker(plugin) as (worker, task):
        await client.open()
        await client.catch_up()
        if not fails:
            await _until(lambda: worker.sessions == 1)
            worker.stop()
            await asyncio.wait([task])
        await _until_given_up(client, 1)
        await _until_async(lambda: _is_due(store, client))


async def test_a_leaving_worker_finishes_its_unit_and_hands_over(
    scene: Scene, store: MemoryEventStore
) -> None:
    """
    The unit in the making is journaled before the session is given up; another worker goes on from there.
    """
    client = new_client(scene, store)
    held = HeldPlugin(LoopbackPlugin(), unit=5)
    pcm = sentence()
    async with scene.worker(held) as (worker, task):
        await client.open()
        await client.say(pcm[: 5 * 1_920])
        feeding = asyncio.create_task(client.say(pcm[5 * 1_920 :]))
        await _until(lambda: client.state.input.received_samples(24_000) == 6 * 1_920)
        worker.stop()
        held.gate.set()
        await asyncio.wait([task])
        async with scene.worker(LoopbackPlugin(), "worker-b"):
            await _until(lambda: client.state.worker.worker is None)
            await store.hold("worker-b", slot_member(client.session_id, 2), None)
            await client.append(ev.WorkerAssigned("worker-b", 2))
            await feeding
            assert ["worker-b"] == [process.id for process in await store.processes()]
    units = client.units()
    assert list(range(len(units))) == [unit.unit for unit in units]
    assert 1 == len(client.transcripts)


async def test_a_heartbeat_says_what_the_worker_serves(scene: Scene, store: MemoryEventStore) -> None:
    """Gateways read from a heartbeat which model there is, and how many sessions it takes."""
    async with scene.worker(LoopbackPlugin(), capacity=7):
        await _until_async(lambda: _has_processes(store))
        (process,) = await store.processes()
    advertisement = decode_advertisement(process.info)
    assert advertisement is not None
    assert (LoopbackPlugin.profile, 7, False) == (
        advertisement.profile,
        advertisement.capacity,
        advertisement.draining,
    )
    assert [] == await store.processes()


class QuietStore(MemoryEventStore):
    """A store that can be made to look as if it had not answered for a while."""

    quiet_s = 0.0

    def last_contact_s(self) -> float:  # noqa: D102 - see the contract
        return self.quiet_s


async def test_no_silence_stands_in_while_the_store_does_not_answer(
    scene: Scene, store: MemoryEventStore
) -> None:
    """Time without a store makes no silence: what a gateway kept back meanwhile is heard whole, after it."""
    client = new_client(scene, store)
    settings = WorkerSettings(worker_id="worker-a")
    async with QuietStore(scene.server) as quiet:
        worker = Worker(quiet, LoopbackPlugin(), settings)
        task = asyncio.create_task(worker.run())
        await client.open()
        await client.say(silence(800))
        quiet.quiet_s = 5.0
        scene.clock.now_ms += 5_000
        await client.command(cmd.Heartbeat())
        await client.catch_up()
        quiet.quiet_s = 0.0
        await client.say(silence(800))
        worker.stop()
        await task
    assert [1_920] * 20 == [unit.input_samples for unit in client.units()]


# --- helpers ------------------------------------------------------------------------------------------------


def _outcome(unit: ev.ModelUnitCompleted) -> tuple[object, ...]:
    """What must be equal of a unit: all but `answers`, an id that is made of a position."""
    return (
        unit.unit,
        unit.first_sample,
        unit.input_samples,
        unit.silence_samples,
        unit.decision,
        unit.codes,
        unit.text,
    )


def _is_worker(stamp: Stamp | None) -> bool:
    return stamp is not None and stamp.role is Role.WORKER


def _resampled(pcm: Pcm, rate_hz: int) -> Pcm:
    resampler = Resampler(16_000, rate_hz)
    return np.concatenate((resampler.feed(pcm), resampler.flush()))


def _with_output(config: SessionConfig, audio_format: AudioFormat) -> SessionConfig:
    return replace(config, output_format=audio_format)


def _with_turn_detection(config: SessionConfig) -> SessionConfig:
    return replace(config, turn_detection=TurnDetection())


async def _is_held(store: MemoryEventStore, worker_id: str, client: Client) -> bool:
    held = await store.held(worker_id)
    return any(member.startswith(client.session_id) for member in held)


async def _is_free(store: MemoryEventStore, worker_id: str, client: Client) -> bool:
    return not await _is_held(store, worker_id, client)


async def _is_due(store: MemoryEventStore, client: Client) -> bool:
    return client.session_id in await store.due(store.now_ms(), 10)


async def _is_declined(store: MemoryEventStore, client: Client) -> bool:
    entries = await store.read(client.session_id)
    return isinstance(decode_entry(entries[-1].data).body, ev.AssignmentDeclined)


async def _has_processes(store: MemoryEventStore) -> bool:
    return bool(await store.processes())


async def _last(store: MemoryEventStore, client: Client) -> EntryId:
    bounds = await store.bounds(client.session_id)
    assert bounds is not None
    return bounds[1]


async def _until_given_up(client: Client, generation: int) -> None:
    await client.until(lambda state: (state.worker.generation, state.worker.worker) == (generation, None))


async def _until(holds: Callable[[], bool]) -> None:
    """Let the other tasks run until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody sets an event for this
            await asyncio.sleep(0)


async def _until_async(holds: Callable[[], Awaitable[bool]]) -> None:
    """Let the other tasks run until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - nobody sets an event for this
            await asyncio.sleep(0)
