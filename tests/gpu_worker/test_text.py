"""Text, function calls, transcripts and responses beside the conversation, through the journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np
import pytest
from msgspec.structs import replace

from eventstore.memory import MemoryEventStore
from gpu_worker.errors import ModelError, TranscriptionFailed, UnknownModel
from gpu_worker.loopback import LoopbackPlugin
from gpu_worker.loopback_script import LONGEST_MS, Line, answer, voice, voice_samples
from gpu_worker.plugin import SidePiece, SideRequest
from gpu_worker.transcription import LoopbackTranscriber, Transcriber, Utterance, create_transcriber
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.commands import ResponseOptions
from session_core.config import Modality, SessionConfig, Tool, Transcription
from session_core.items import Item, ItemType, Part, Role
from session_core.state import Phase, Response, State
from tests.gpu_worker.client import Client, Scene
from tests.gpu_worker.plugin_contract import session_config
from tests.gpu_worker.speech import clip, silence

WEATHER, CLOCK = Tool("get_weather"), Tool("get_time")


@pytest.fixture
def scene() -> Scene:
    """A memory server whose clock the client moves."""
    return Scene()


@pytest.fixture
async def store(scene: Scene) -> AsyncIterator[MemoryEventStore]:
    """The gateway's store."""
    async with scene.store() as gateway_store:
        yield gateway_store


def client_of(
    scene: Scene,
    store: MemoryEventStore,
    *,
    modality: Modality = Modality.AUDIO,
    output_format: AudioFormat | None = None,
    tools: tuple[Tool, ...] = (),
    transcription: Transcription | None = None,
) -> Client:
    """A client that asks for its responses."""
    config = replace(
        session_config(LoopbackPlugin(), auto_response=False),
        output_modality=modality,
        output_format=output_format or AudioFormat(sample_rate_hz=24_000),
        tools=tools,
        transcription=transcription,
    )
    return Client(scene, store, config, LoopbackPlugin.profile)


def written(text: str, item_id: str = "") -> Item:
    """What a user writes."""
    return Item(item_id, role=Role.USER, parts=(Part("input_text", text=text),))


async def ask(client: Client, scene: Scene, text: str = "", options: ResponseOptions | None = None) -> None:
    """Writes, asks for a response, and lets time pass until it is over."""
    if text:
        await client.command(cmd.CreateItem(written(text)))
    await client.command(cmd.CreateResponse(options or ResponseOptions()))
    await client.catch_up()
    await client.until(lambda state: state.response is None or state.response.begun)
    await let_finish(client, scene)


async def let_finish(client: Client, scene: Scene) -> None:
    """Lets time pass in silence until no response is in progress."""
    while client.state.response is not None:
        await client.wait_in_silence(80)
        await client.catch_up()


def said(client: Client) -> str:
    """Gives all text that the client was told of audio or text."""
    return "".join(
        event.delta
        for event, _ in client.outbound
        if isinstance(event, wire.TranscriptDelta | wire.TextDelta)
    )


def calls(client: Client) -> list[tuple[str, str]]:
    """Gives the functions that were called."""
    return [
        (event.name, event.arguments)
        for event, _ in client.outbound
        if isinstance(event, wire.CallArgumentsDone)
    ]


# --- text ---------------------------------------------------------------------------------------------------


async def test_text_is_answered_in_tones(scene: Scene, store: MemoryEventStore) -> None:
    """An audio session hears 60 ms of tone for each character, and reads the echo as their transcript."""
    client = client_of(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await ask(client, scene, "hello")
    assert "[echo] hello" == said(client)
    assert len("[echo] hello") * 60 * 24 == len(client.reply)
    assert np.max(np.abs(client.reply)) > 0.05
    marks = [len(unit.text) for unit in client.units() if unit.decision is not ev.Decision.LISTEN]
    assert len(marks) > 3
    assert all(marks)


async def test_text_is_answered_in_text(scene: Scene, store: MemoryEventStore) -> None:
    """A text session gets the echo in one unit, and no sample of audio."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await ask(client, scene, "hello")
    assert "[echo] hello" == said(client)
    assert [] == client.told(wire.AudioDelta)
    assert 1 == sum(unit.decision is ev.Decision.TURN_END for unit in client.units())


async def test_speech_is_answered_in_text(scene: Scene, store: MemoryEventStore) -> None:
    """Spoken words get a text where the response is to be text, at once."""
    client = client_of(scene, store)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(np.concatenate((silence(400), clip("cards_001.wav"), silence(480))))
        await client.command(cmd.CommitInput())
        await ask(client, scene, options=ResponseOptions(output_modality=Modality.TEXT))
    assert said(client).startswith("[echo of")
    assert 0 == len(client.reply)


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 48_000])
async def test_every_format_is_given(
    scene: Scene, store: MemoryEventStore, encoding: Encoding, rate_hz: int
) -> None:
    """Each encoding at each rate holds the whole answer, and the model's tones are in it."""
    client = client_of(scene, store, output_format=AudioFormat(encoding, rate_hz))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await ask(client, scene, "hi")
    text = "[echo] hi"
    expected = voice(text, 0, voice_samples(text, rate_hz), rate_hz)
    assert abs(len(expected) - len(client.reply)) <= 1
    assert abs(float(np.sqrt(np.mean(client.reply**2))) - float(np.sqrt(np.mean(expected**2)))) < 0.01


async def test_live_text_counts_with_the_turn(scene: Scene, store: MemoryEventStore) -> None:
    """Text pushed into the turn is answered like a written item."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(400))
        await client.command(cmd.AppendText("look at this"))
        await client.command(cmd.CommitInput())
        await ask(client, scene)
    assert "[echo] look at this" == said(client)


async def test_a_cancel_in_the_middle_of_the_tones_ends_them(scene: Scene, store: MemoryEventStore) -> None:
    """After a cancel not one sample of the old response comes, and the next one is whole."""
    client = client_of(scene, store, output_format=AudioFormat(Encoding.PCM16, 16_000))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.command(cmd.CreateItem(written("one two three")))
        await client.command(cmd.CreateResponse())
        await client.until(lambda state: state.response is not None and state.response.begun)
        await client.command(cmd.CancelResponse())
        await client.until(lambda state: state.response is None)
        given = len(client.reply)
        for _ in range(10):
            await client.wait_in_silence(80)
        assert given == len(client.reply)
        await ask(client, scene, "hi")
    assert len("[echo] hi") * 60 * 16 == len(client.reply) - given
    assert voice("[echo] hi", 0, 480, 24_000).any()


async def test_instructions_of_a_response_are_its_own(scene: Scene, store: MemoryEventStore) -> None:
    """With nothing to answer, a response echoes its instructions; the next one knows nothing of them."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(80))
        await ask(client, scene, options=ResponseOptions(instructions="greet the user"))
        await ask(client, scene, "hi")
    assert "[echo] greet the user[echo] hi" == said(client)


async def test_another_worker_goes_on_in_the_middle_of_a_text(scene: Scene, store: MemoryEventStore) -> None:
    """A worker that dies while it says a text is replaced, sample for sample, also where rates differ."""
    whole = Scene()
    text, audio_format = "say it all over again", AudioFormat(Encoding.PCM16, 16_000)
    async with whole.store() as whole_store, whole.worker(LoopbackPlugin()):
        expected = client_of(whole, whole_store, output_format=audio_format)
        await expected.open()
        await ask(expected, whole, text)
    client = client_of(scene, store, output_format=audio_format)
    async with scene.worker(LoopbackPlugin()) as (_, task), scene.worker(LoopbackPlugin(), "worker-b"):
        await client.open()
        await client.command(cmd.CreateItem(written(text)))
        await client.command(cmd.CreateResponse())
        await client.until(lambda state: state.response is not None and state.response.begun)
        await client.wait_in_silence(240)
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        await let_finish(client, scene)
    assert said(expected) == said(client)
    assert expected.reply.tobytes() == client.reply.tobytes()


# --- function calls -----------------------------------------------------------------------------------------


async def test_dictated_calls_are_made_between_words(scene: Scene, store: MemoryEventStore) -> None:
    """Words, two calls at once and words again are one response; the outputs are told back in the next."""
    client = client_of(scene, store, tools=(WEATHER, CLOCK))
    script = 'say Let me look; call get_weather {"city": "Oslo"}; call get_time {}; say Done'
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await ask(client, scene, script)
        assert [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")] == calls(client)
        assert "Let me lookDone" == said(client)
        ids = [item.call_id for item in client.state.history if item.item_type is ItemType.FUNCTION_CALL]
        for call_id, output in zip(ids, ("rain", "noon"), strict=True):
            item = Item("", ItemType.FUNCTION_CALL_OUTPUT, call_id=call_id, output=output)
            await client.command(cmd.CreateItem(item))
        await ask(client, scene)
    assert said(client).endswith("Done[echo of get_weather: rain] [echo of get_time: noon]")
    assert 2 == len(client.told(wire.ResponseDone))


# --- scripts ------------------------------------------------------------------------------------------------


def lines(text: str, **options: object) -> list[tuple[str, list[tuple[str, str]]]]:
    """Gives what a response to a text says and calls."""
    config = SessionConfig("loopback", tools=(WEATHER, CLOCK))
    response = Response("resp_1", AudioFormat(), options=replace(ResponseOptions(), **options))
    return [
        (line.text, [(call.name, call.arguments) for call in line.calls])
        for line in answer(response, (written(text),), config)
    ]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("hello", {}, [("[echo] hello", [])]),
        ("call get_time {}", {}, [("", [("get_time", "{}")])]),
        ("please call get_time {} now", {}, [("", [("get_time", "{}")])]),
        ('call get_time {"a": "}"}', {}, [("", [("get_time", '{"a": "}"}')])]),
        ("call get_time {broken", {}, [("", [("get_time", "{broken")])]),
        ("call nothing {}", {}, [("[echo] call nothing {}", [])]),
        ("call get_time {}", {"tool_choice": "none"}, [("[echo] call get_time {}", [])]),
        ("call get_time {}", {"tools": ()}, [("[echo] call get_time {}", [])]),
        ("hello", {"tool_choice": "required"}, [("", [("get_weather", "{}")])]),
        ("call get_time {}", {"tool_choice": "required"}, [("", [("get_time", "{}")])]),
        ("hi", {"tool_choice": {"type": "function", "name": "get_time"}}, [("", [("get_time", "{}")])]),
        ("hi", {"instructions": "call get_time {}"}, [("", [("get_time", "{}")])]),
        ("say A; call get_time {}; say B", {}, [("A", [("get_time", "{}")]), ("B", [])]),
    ],
)
def test_a_text_dictates(
    text: str, options: dict[str, object], expected: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    """What is called and said follows from the text, the tools and the client's choice alone."""
    assert expected == lines(text, **options)


def test_call_ids_are_unique_and_the_same_for_everybody() -> None:
    """Ids are made of the response's, so every worker that works it out gets the same."""
    config = SessionConfig("loopback", tools=(CLOCK,))
    response = Response("resp_7_0", AudioFormat())
    history = (written("call get_time {}; call get_time {}"),)
    (line,) = answer(response, history, config)
    assert ["call_7_0_0", "call_7_0_1"] == [call.call_id for call in line.calls]
    assert (line,) == answer(response, history, config)


def test_only_what_is_new_is_answered() -> None:
    """A text that was answered already is not answered again; audio that follows it is not text."""
    config, response = SessionConfig("loopback"), Response("resp_1", AudioFormat())
    answered = (written("old"), Item("a", role=Role.ASSISTANT))
    heard = Item("b", role=Role.USER, parts=(Part("input_audio", text="spoken", samples=5),))
    assert () == answer(response, answered, config)
    assert () == answer(response, (*answered, heard), config)
    assert (Line("[echo] new"),) == answer(response, (*answered, written("new")), config)


def test_tones_are_a_pure_function_of_the_text() -> None:
    """Any stretch is the same, however it is cut; a long text is bounded."""
    text = "a longer text with ümläuts"
    total = voice_samples(text, 24_000)
    whole = voice(text, 0, total, 24_000)
    assert whole[500:1_700].tobytes() == voice(text, 500, 1_700, 24_000).tobytes()
    assert LONGEST_MS * 24 == voice_samples("x" * 1_000, 24_000)


# --- beside the conversation --------------------------------------------------------------------------------


def outside(text: str, **more: object) -> ResponseOptions:
    """Options of a response outside the conversation that answers a text of its own."""
    return replace(ResponseOptions(outside=True, input=(written(text),)), **more)


def side_outputs(client: Client) -> list[ev.SideOutput]:
    """Gives the pieces that the journal took."""
    return [entry.body for entry in client.entries if isinstance(entry.body, ev.SideOutput)]


class Halting(LoopbackPlugin):
    """Gives one piece of a response outside the conversation and waits, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self._fails = fails

    async def respond(self, request: SideRequest) -> AsyncGenerator[SidePiece, None]:
        """Never ends by itself."""
        if self._fails:
            raise ModelError("no")
        try:
            yield SidePiece("[echo] a lon", last=False)
            await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_a_response_beside_the_conversation_leaves_no_item(
    scene: Scene, store: MemoryEventStore
) -> None:
    """It answers its own input while the default response goes on, and history knows nothing of it."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.command(cmd.CreateResponse(outside("classify this, please")))
        await client.catch_up()
        await client.until(lambda state: not state.side)
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert ["completed"] == [event.response.status for event in done]
    assert "[echo] classify this, please" == "".join(piece.text for piece in side_outputs(client))
    assert () == client.state.history


async def test_a_response_beside_the_conversation_can_be_heard(scene: Scene, store: MemoryEventStore) -> None:
    """In audio it is tones in the session's format."""
    client = client_of(scene, store, output_format=AudioFormat(Encoding.PCM16, 16_000))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.command(cmd.CreateResponse(outside("hi")))
        await client.catch_up()
        await client.until(lambda state: not state.side)
    audio = b"".join(piece.audio for piece in side_outputs(client))
    assert len("[echo] hi") * 60 * 16 * 2 == len(audio)


async def test_a_cancelled_response_beside_the_conversation_stops(
    scene: Scene, store: MemoryEventStore
) -> None:
    """The model is told at once, and may hold nothing of it."""
    client, plugin = client_of(scene, store, modality=Modality.TEXT), Halting()
    async with scene.worker(plugin):
        await client.open()
        await client.command(cmd.CreateResponse(outside("a longer text")))
        await client.catch_up()
        await client.until(lambda state: bool(state.side) and state.side[0].message is not None)
        await client.command(cmd.CancelResponse(client.state.side[0].response_id))
        await asyncio.wait_for(plugin.closed.wait(), 20)
        await client.until(lambda state: not state.side)


async def test_another_worker_goes_on_beside_the_conversation(scene: Scene, store: MemoryEventStore) -> None:
    """What was said before the failover is not said again, and nothing is left out."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(Halting()) as (_, task), scene.worker(LoopbackPlugin(), "worker-b"):
        await client.open()
        await client.command(cmd.CreateResponse(outside("a longer text")))
        await client.catch_up()
        await client.until(lambda state: bool(state.side) and state.side[0].message is not None)
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        await client.until(lambda state: not state.side)
    assert "[echo] a longer text" == "".join(piece.text for piece in side_outputs(client))


async def test_a_failed_response_beside_the_conversation_fails_alone(
    scene: Scene, store: MemoryEventStore
) -> None:
    """The client is told, and the session goes on."""
    client = client_of(scene, store, modality=Modality.TEXT)
    async with scene.worker(Halting(fails=True)):
        await client.open()
        await client.command(cmd.CreateResponse(outside("a")))
        await client.catch_up()
        await client.until(lambda state: not state.side)
        await ask(client, scene, "hi")
    done = [event for event in client.told(wire.ResponseDone) if isinstance(event, wire.ResponseDone)]
    assert ["failed", "completed"] == [event.response.status for event in done]


# --- transcription ------------------------------------------------------------------------------------------


class Scripted(Transcriber):
    """Holds its first utterance back until it is let go, and fails on request."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.gate = threading.Event()
        self.heard: list[Utterance] = []

    def transcribe(self, utterance: Utterance) -> str:
        """Gives the number of the utterance."""
        self.heard.append(utterance)
        number = len(self.heard)
        if number == 1:
            self.gate.wait(20)
        if utterance.prompt == "fail":
            raise TranscriptionFailed("noise")
        return f"utterance {number}"


scripted = Scripted()


def make_scripted() -> Transcriber:
    """What the setting names."""
    return scripted


def transcripts(client: Client) -> list[ev.InputTranscribed]:
    """Gives the transcripts that the journal took."""
    return [entry.body for entry in client.entries if isinstance(entry.body, ev.InputTranscribed)]


def settled(state: State) -> bool:
    """Whether no transcript is due."""
    return state.phase is Phase.OPEN and bool(state.history) and not state.transcribing


async def test_user_audio_is_transcribed(scene: Scene, store: MemoryEventStore) -> None:
    """A committed item gets its transcript, with the duration of its audio."""
    client = client_of(scene, store, transcription=Transcription("any"))
    async with scene.worker(LoopbackPlugin()):
        await client.open()
        await client.say(silence(2_080))
        await client.command(cmd.CommitInput())
        await client.catch_up()
        await client.until(settled)
    (transcript,) = transcripts(client)
    assert ("[2.1 s of speech]", 2_080, None) == (transcript.text, transcript.duration_ms, transcript.error)


async def test_transcripts_come_in_the_order_they_are_done(scene: Scene, store: MemoryEventStore) -> None:
    """A slow transcript holds up neither a later one nor the session; each has the audio of its own item."""
    scripted.reset()
    client = client_of(scene, store, transcription=Transcription("any", "en", "words"))
    async with scene.worker(LoopbackPlugin(), transcriber="tests.gpu_worker.test_text:make_scripted"):
        await client.open()
        for duration_ms in (400, 800):
            await client.say(silence(duration_ms))
            await client.command(cmd.CommitInput())
            await client.catch_up()
        first, second = client.state.transcribing
        await client.until(lambda state: state.transcribing == (first,))
        await client.say(silence(400))
        scripted.gate.set()
        await client.until(settled)
    assert [second, first] == [transcript.item_id for transcript in transcripts(client)]
    assert [400 * 24, 800 * 24] == [len(utterance.pcm) for utterance in scripted.heard]
    assert ("any", "en", "words") == scripted.heard[0][2:]


async def test_a_failed_transcript_is_told(scene: Scene, store: MemoryEventStore) -> None:
    """A transcriber's failure is the item's alone, and its reason stays here."""
    scripted.reset()
    scripted.gate.set()
    client = client_of(scene, store, transcription=Transcription("any", prompt="fail"))
    async with scene.worker(LoopbackPlugin(), transcriber="tests.gpu_worker.test_text:make_scripted"):
        await client.open()
        await client.say(silence(400))
        await client.command(cmd.CommitInput())
        await client.catch_up()
        await client.until(settled)
    (transcript,) = transcripts(client)
    assert "The audio could not be transcribed." == transcript.error


async def test_a_transcript_that_takes_too_long_is_given_up(scene: Scene, store: MemoryEventStore) -> None:
    """The item settles, whatever the transcriber does."""
    scripted.reset()
    client = client_of(scene, store, transcription=Transcription("any"))
    name = "tests.gpu_worker.test_text:make_scripted"
    async with scene.worker(LoopbackPlugin(), transcriber=name, transcription_timeout_s=0.05):
        await client.open()
        await client.say(silence(400))
        await client.command(cmd.CommitInput())
        await client.catch_up()
        await client.until(settled)
        scripted.gate.set()
    assert transcripts(client)[0].error is not None


async def test_another_worker_makes_the_transcripts_that_are_due(
    scene: Scene, store: MemoryEventStore
) -> None:
    """A worker that dies over a transcript leaves it, with its audio, to the next one."""
    scripted.reset()
    client = client_of(scene, store, transcription=Transcription("any"))
    name = "tests.gpu_worker.test_text:make_scripted"
    async with (
        scene.worker(LoopbackPlugin(), transcriber=name) as (_, task),
        scene.worker(LoopbackPlugin(), "worker-b"),
    ):
        await client.open()
        await client.say(silence(1_600))
        await client.command(cmd.CommitInput())
        await client.say(silence(1_600))
        await client.until(lambda state: bool(state.transcribing) and bool(scripted.heard))
        task.cancel()
        await asyncio.wait([task])
        await client.assign("worker-b")
        await client.until(settled)
        scripted.gate.set()
    assert ["[1.6 s of speech]"] == [transcript.text for transcript in transcripts(client)]


async def test_audio_that_is_not_held_has_no_transcript(scene: Scene, store: MemoryEventStore) -> None:
    """An item beyond the bound settles with an error instead of taking memory."""
    client = client_of(scene, store, transcription=Transcription("any"))
    async with scene.worker(LoopbackPlugin(), longest_transcribed_s=1):
        await client.open()
        await client.say(silence(1_600))
        await client.command(cmd.CommitInput())
        await client.catch_up()
        await client.until(settled)
    assert "The audio is too long to be transcribed." == transcripts(client)[0].error


def test_transcribers_are_found_by_name_or_path() -> None:
    """An unknown name is the operator's mistake, and said to be one."""
    assert isinstance(create_transcriber("loopback"), LoopbackTranscriber)
    for name in ("nothing", "tests.gpu_worker.test_text:nothing"):
        with pytest.raises(UnknownModel):
            create_transcriber(name)
