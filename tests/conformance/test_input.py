"""Audio and text in: formats, bad input, commits, turn detection, transcription. Cases 14, 15, 16, 17, 28."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from tests.conformance.performer import UNINTELLIGIBLE
from tests.conformance.recorder import Event, Recorder, Way
from tests.conformance.speech import LONG, SHORT, silence, speech
from tests.conformance.test_responses import TALK, both_ways, opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

EMPTY = ("input_audio_buffer_commit_empty", "input_audio_buffer_empty")
APPEND = "input_audio_buffer.append"


@pytest.mark.covers("input_audio_buffer.commit", "input_audio_buffer.append", "error")
@pytest.mark.parametrize("buffered_ms", [0, 40])
@both_ways
async def test_case_14_commit_of_next_to_nothing(client: Recorder, way: Way, buffered_ms: int) -> None:
    """A commit of less than 100 ms is refused with its event_id and makes no item and no response."""
    await opened(client, way)
    if buffered_ms:
        await client.append(silence(buffered_ms))
    await client.send("input_audio_buffer.commit", event_id="c1")
    assert (await client.refusal("c1"))["code"] in EMPTY
    assert [] == await client.probe()


@pytest.mark.covers("input_audio_buffer.commit", "input_audio_buffer.committed", "error")
async def test_case_14_commit_just_after_turn_detection(client: Recorder) -> None:
    """
    A manual commit of what turn detection has just committed is refused.

    There is one item and one response.
    """
    await client.open()
    await client.listen({"type": "server_vad"})
    await client.say(speech(SHORT))
    await client.get("input_audio_buffer.committed")
    await client.send("input_audio_buffer.clear")
    await client.send("input_audio_buffer.commit", event_id="c1")
    assert (await client.refusal("c1"))["code"] in EMPTY
    if not client.of("response.done"):
        await client.get("response.done")
    await client.probe()
    assert (1, 1) == (len(client.of("input_audio_buffer.committed")), len(client.of("response.created")))


BAD_AUDIO: dict[str, Any] = {
    "no base64": "!!!",
    "garbage inside": "AAAA*AAA",
    "a line break inside": "AAAA\nAAAA",
    "no padding": "AAAAAAA",
    "the other alphabet": "_-8A",
    "three bytes": "AAAA",
    "empty": "",
    "a number": 17,
    "null": None,
    "a list": ["AAAA"],
}


@pytest.mark.covers("input_audio_buffer.append", "input_audio_buffer.commit", "error")
@both_ways
async def test_case_15_bad_audio_changes_nothing(client: Recorder, way: Way) -> None:
    """
    Audio that is not exactly base64 of whole samples is refused naming it.

    What is buffered stays as it was.
    """
    await opened(client, way)
    said = speech(SHORT)
    half = len(said) // 4 * 2
    await client.say(said[:half])
    for number, audio in enumerate(BAD_AUDIO.values()):
        await client.send(APPEND, event_id=f"b{number}", audio=audio)
        refusal = await client.refusal(f"b{number}")
        assert ("audio", True) == (refusal["param"], refusal["code"] in ("invalid_value", "bad_audio")), (
            refusal
        )
    await client.say(said[half:])
    await client.send("input_audio_buffer.commit")
    await client.get("input_audio_buffer.committed")
    await client.send("response.create")
    await client.get("response.done")
    if client.server.ours:
        assert said.find(client.audio()) >= 0, "the reply is the speech, sample for sample"


@pytest.mark.covers("input_audio_buffer.append", "input_audio_buffer.clear", "input_audio_buffer.cleared")
async def test_case_16_one_append_of_15_mib(client: Recorder) -> None:
    """One append of exactly 15 MiB is accepted."""
    await opened(client)
    await client.append(bytes(15 << 20))
    await client.send("input_audio_buffer.clear")
    await client.get("input_audio_buffer.cleared")
    assert [] == client.of("error")


@pytest.mark.covers("input_audio_buffer.append")
@pytest.mark.parametrize("size", [17 << 20, 40 << 20])
async def test_case_16_an_append_that_is_too_long(client: Recorder, recorder: Any, size: int) -> None:
    """A longer one gets an error or 1009, for that client alone: others do not notice."""
    other = recorder()
    await opened(client)
    await opened(other)
    await client.append(bytes(size), event_id="big")
    try:
        assert (await client.refusal("big"))["code"]
        assert await client.is_alive()
    except ConnectionClosed:
        assert client.connection is not None
        assert 1009 == client.connection.close_code
    assert await other.is_alive()


FORMATS: dict[str, tuple[Event, int | None]] = {
    "pcm without a rate": ({"type": "audio/pcm"}, 24_000),
    "pcm at 16 kHz": ({"type": "audio/pcm", "rate": 16_000}, 16_000),
    "pcm at 8 kHz": ({"type": "audio/pcm", "rate": 8_000}, 8_000),
    "pcm at a rate nobody has": ({"type": "audio/pcm", "rate": 11_025}, None),
    "mu-law": ({"type": "audio/pcmu"}, 8_000),
    "A-law": ({"type": "audio/pcma"}, 8_000),
    "an encoding nobody has": ({"type": "audio/opus"}, None),
}


@pytest.mark.covers("session.update", "session.updated", "error")
@pytest.mark.parametrize("name", FORMATS)
@both_ways
async def test_case_17_formats(client: Recorder, way: Way, name: str) -> None:
    """
    An accepted format is echoed with its effective rate.

    An unsupported one is refused naming the parameter.
    """
    given, rate_hz = FORMATS[name]
    await opened(client, way)
    answer = await client.update(audio={"input": {"format": given}})
    if rate_hz is None:
        assert answer["error"]["param"].startswith("session.audio.input.format")
        return
    echoed = answer["session"]["audio"]["input"]
    assert (given["type"], rate_hz) == (echoed["format"]["type"], echoed.get("sample_rate_hz", rate_hz))
    if way == "openai":
        assert echoed["format"].get("rate", 24_000) == 24_000, "strict clients know no other rate"


@pytest.mark.covers("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped")
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
async def test_case_17_times_at_any_rate(client: Recorder, rate_hz: int) -> None:
    """Turn detection finds the speech at the same place of the clip whatever the rate."""
    await opened(client)
    detection = {"type": "server_vad", "create_response": False}
    pcm = {"type": "audio/pcm", "rate": rate_hz}
    answer = await client.update(audio={"input": {"format": pcm, "turn_detection": detection}})
    assert "session.updated" == answer["type"]
    await client.say(silence(1000, rate_hz) + speech(SHORT, rate_hz=rate_hz))
    start = (await client.get("input_audio_buffer.speech_started"))["audio_start_ms"]
    stop = (await client.get("input_audio_buffer.speech_stopped"))["audio_end_ms"]
    assert 700 <= start <= 1400
    assert 1900 <= stop <= 2800, "the silence that ended it counts with OpenAI"


TRANSCRIBED = "conversation.item.input_audio_transcription"


@pytest.mark.covers(f"{TRANSCRIBED}.delta", f"{TRANSCRIBED}.completed", f"{TRANSCRIBED}.failed")
async def test_case_28_transcripts_name_their_items(client: Recorder) -> None:
    """
    Each transcript names its own item in whatever order they come, previous_item_id orders the items.

    Failures settle.
    """
    await opened(client)
    items = []
    for clip, prompt in ((LONG, ""), (SHORT, ""), (SHORT, UNINTELLIGIBLE)):
        wanted = {"model": "gpt-4o-mini-transcribe", "prompt": prompt}
        answer = await client.update(audio={"input": {"transcription": wanted}})
        assert answer["session"]["audio"]["input"]["transcription"]["model"]
        await client.say(speech(clip, silence_ms=200))
        await client.send("input_audio_buffer.commit")
        items.append(await client.get("input_audio_buffer.committed"))
    assert [None, items[0]["item_id"], items[1]["item_id"]] == [event["previous_item_id"] for event in items]

    def settled() -> dict[str, str]:
        ends = client.of(f"{TRANSCRIBED}.completed", f"{TRANSCRIBED}.failed")
        assert len(ends) == len({event["item_id"] for event in ends})
        return {event["item_id"]: event["type"].rpartition(".")[2] for event in ends}

    while len(settled()) < 3:
        await client.next()
    assert {event["item_id"] for event in items} == set(settled())
    if client.server.ours:
        assert ["completed", "completed", "failed"] == [settled()[event["item_id"]] for event in items]
        order = list(settled())
        assert order.index(items[1]["item_id"]) < order.index(items[0]["item_id"]), "the second is done first"


@pytest.mark.covers("input_audio_buffer.timeout_triggered", "input_audio_buffer.committed")
async def test_silence_of_the_user_is_a_turn(client: Recorder) -> None:
    """With idle_timeout_ms the user's silence after a response is committed and answered."""
    await client.open()
    await client.listen({"type": "server_vad", "idle_timeout_ms": 5000})
    await client.ask("Say hello.")
    await client.say(silence(500))
    event = await client.get("input_audio_buffer.timeout_triggered")
    assert event["item_id"] == (await client.get("input_audio_buffer.committed"))["item_id"]
    await client.get("response.created")


@pytest.mark.duplex_way
@pytest.mark.covers("input.commit", "response.listen", "input_audio_buffer.committed")
async def test_input_commit_asks_for_a_response(client: Recorder) -> None:
    """
    `input.commit` without a flag asks for a response, with the flag off it does not.

    Silence declared is listened to.
    """
    await opened(client, "duplex")
    await client.say(silence(200))
    await client.send("input.commit", create_response=False)
    await client.get("input_audio_buffer.committed")
    await client.probe()
    assert [] == client.of("response.created")
    await client.say(silence(200))
    await client.send("input_audio_buffer.commit", is_speech=False)
    assert "response_id" not in await client.get("response.listen")
    await client.say(silence(200))
    await client.send("input.commit")
    asked = (await client.get("response.created"))["response"]["id"]
    done = await client.get("response.done")
    assert asked == done["response"]["id"]


@pytest.mark.duplex_way
@pytest.mark.covers("input.cancel", "input_audio_buffer.cleared")
async def test_input_cancel(client: Recorder) -> None:
    """`input.cancel` drops what is pending, begins a new epoch and ends what is being said."""
    await opened(client, "duplex")
    await client.write(TALK)
    await client.send("response.create")
    before = (await client.get("response.output_audio.delta"))["epoch"]
    await client.send("input.cancel")
    assert "cancelled" == (await client.get("response.done"))["response"]["status"]
    cleared = client.of("input_audio_buffer.cleared") or [await client.get("input_audio_buffer.cleared")]
    assert before < cleared[-1]["epoch"]


@pytest.mark.duplex_way
@pytest.mark.covers("input.text.append", "input.commit")
async def test_text_into_a_live_turn(client: Recorder) -> None:
    """Text belongs to the turn that it was pushed into; a model that takes none says so by name."""
    await opened(client, "duplex")
    await client.send("input.text.append", event_id="t1", text="Say hello.")
    said = await client.probe()
    refusals = [event["error"] for event in said if event["type"] == "error"]
    if refusals:
        assert ["native_text_append_unsupported"] == [refusal["code"] for refusal in refusals]
        return
    await client.send("input.commit")
    added = await client.get("conversation.item.added")
    assert {"type": "input_text", "text": "Say hello."} in added["item"]["content"]
    await client.get("response.done")


MALFORMED: dict[str, str | bytes] = {
    "no JSON": "hello",
    "nothing": "",
    "half an object": '{"type": "input_audio',
    "an array": "[1, 2]",
    "a number": "1e999",
    "no type": '{"event_id": "m"}',
    "a type that is a number": '{"type": 5}',
    "an unknown type": '{"type": "response.explode", "event_id": "m"}',
    "a server event": '{"type": "response.done", "event_id": "m"}',
    "half a surrogate pair": '{"type": "\\ud800"}',
    "deep nesting": '{"type": "response.create", "response": ' + "[" * 100_000,
    "a binary frame": b"\x00\x01",
    "a session that is a list": '{"type": "session.update", "session": []}',
    "a time that is a word": '{"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, '
    '"audio_end_ms": "soon"}',
}


@pytest.mark.covers("error")
@both_ways
async def test_malformed_frames(client: Recorder, way: Way) -> None:
    """A frame that is no client event gets one nested error, and the next event is handled."""
    await opened(client, way)
    for name, frame in MALFORMED.items():
        before = len(client.of("error"))
        await client.raw(frame)
        error = await client.get("error")
        assert error["error"]["code"], name
        assert error["error"]["message"], name
        assert before + 1 == len(client.of("error"))
    assert await client.is_alive()


@pytest.mark.covers("input_audio_buffer.append")
async def test_a_peer_that_floods_does_not_starve_others(client: Recorder, recorder: Any) -> None:
    """While one client sends audio as fast as it can, another one's events are handled."""
    flood: Recorder = recorder()
    await opened(flood)
    flood.sent.append(APPEND)
    await opened(client)
    frame = msgspec.json.encode({"type": APPEND, "audio": base64.b64encode(silence(1000)).decode()}).decode()

    async def pour() -> None:
        for _ in range(200):
            await flood.raw(frame)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pour())
        for _ in range(5):
            await client.probe()
