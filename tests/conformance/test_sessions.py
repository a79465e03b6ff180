"""
Sessions: settings, dialects, life signs, the client's own turn detection, playback, the end. Cases 21, 32.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.recorder import Recorder, Way
from tests.conformance.speech import LONG, duration_ms, silence, speech
from tests.conformance.test_responses import TALK, both_ways, opened

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.covers("session.update", "session.updated", "session.created", "error")
@both_ways
async def test_case_21_updates_are_all_or_nothing(client: Recorder, way: Way) -> None:
    """An update with one bad field changes nothing; an accepted change is used by the next response."""
    await opened(client, way, instructions="Be kind.")
    bad = {"input": {"format": {"type": "audio/pcm", "rate": 11_025}}}
    refused = await client.update(instructions="Be rude.", audio=bad)
    assert "session.audio.input.format.rate" == refused["error"]["param"]
    kept = await client.update(audio={"input": {"turn_detection": None}})
    assert "Be kind." == kept["session"]["instructions"]
    await client.update(instructions="Speak of apples.")
    await client.ask("Repeat your instructions.")
    said = client.of("response.output_audio_transcript.done")[-1]["transcript"]
    if not client.server.ours and "apples" not in said:
        pytest.skip("NOT TESTED: the model does not tell what it knows")
    assert "apples" in said


@pytest.mark.covers("session.update", "session.updated", "error")
async def test_updates_merge(client: Recorder) -> None:
    """
    What is absent is kept and null is off.

    The same model and voice again are no change, a new voice after speech is one.
    """
    await client.open()
    first = client.created["session"]
    voice = first["audio"]["output"]["voice"]
    answer = await client.update(
        model=first["model"],
        instructions="Hi",
        audio={"input": {"turn_detection": None}, "output": {"voice": voice}},
    )
    assert answer["session"]["audio"]["input"]["turn_detection"] is None
    await client.ask("Say hello.")
    assert "session.updated" == (await client.update(audio={"output": {"voice": voice}}))["type"]
    other = await client.update(instructions="Ho", audio={"output": {"voice": f"{voice}_2"}})
    assert "cannot_update_voice" == other["error"]["code"]
    assert "Hi" == (await client.update())["session"]["instructions"]


DEFAULTS: dict[str, dict[str, Any]] = {
    "openai-agents": {
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "ash"},
        },
        "model": "gpt-realtime-2.1",
        "tracing": "auto",
    },
    "livekit": {
        "output_modalities": ["audio"],
        "max_output_tokens": "inf",
        "tool_choice": "auto",
        "tracing": None,
        "audio": {
            "input": {
                "noise_reduction": None,
                "turn_detection": {"type": "semantic_vad", "eagerness": "medium", "create_response": True},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
            },
            "output": {"voice": "marin", "speed": 1.0},
        },
    },
}


@pytest.mark.covers("session.update", "session.updated")
@pytest.mark.parametrize("name", DEFAULTS)
async def test_default_clients_are_not_refused(client: Recorder, name: str) -> None:
    """What stock clients send unasked is accepted as a whole, and the effective values are echoed."""
    await client.open()
    answer = await client.update(**DEFAULTS[name])
    assert "session.updated" == answer["type"], answer
    detection = answer["session"]["audio"]["input"]["turn_detection"]
    assert (True, True) == (detection["create_response"], detection["interrupt_response"])


@pytest.mark.covers("session.created", "session.updated", "error")
async def test_case_32_two_dialects(client: Recorder, recorder: Any) -> None:
    """A GA and a beta client each have a turn; a field of the other dialect is refused by name."""
    beta: Recorder = recorder()
    await client.open()
    await beta.open(beta=True)
    assert "pcm16" == beta.created["session"]["input_audio_format"]
    refused = await client.update(input_audio_format="pcm16")
    assert ("unknown_parameter", "session.input_audio_format") == (
        refused["error"]["code"],
        refused["error"]["param"],
    )
    refused = await beta.update(audio={"input": {"turn_detection": None}})
    assert ("unknown_parameter", "session.audio") == (refused["error"]["code"], refused["error"]["param"])
    untyped = await _untyped_update(client)
    assert ("missing_required_parameter", "session.type") == (untyped["code"], untyped["param"])
    assert "session.updated" == (await client.listen(None))["type"]
    assert (await beta.update(turn_detection=None))["session"]["turn_detection"] is None
    for each, prefix in ((client, "response.output_audio"), (beta, "response.audio")):
        await each.say(speech(silence_ms=200))
        await each.send("input_audio_buffer.commit")
        await each.send("response.create")
        await each.get("response.done")
        for kind in ("delta", "done"):
            assert each.of(f"{prefix}.{kind}"), prefix
        assert each.of(f"{prefix}_transcript.done")
    assert [] == beta.of("conversation.item.added", "conversation.item.done", "response.output_audio.delta")
    assert beta.of("conversation.item.created")


async def _untyped_update(client: Recorder) -> Any:
    await client.send("session.update", event_id="u1", session={"instructions": "x"})
    return await client.refusal("u1")


@pytest.mark.duplex_way
@pytest.mark.covers("session.heartbeat", "session.heartbeat_ack", "session.event_ack", "error")
async def test_signs_of_life(client: Recorder) -> None:
    """A heartbeat is answered with receipts for the input, an ack never; a bad ack is refused by name."""
    await opened(client, "duplex")
    await client.append(silence(500), event_id="a1")
    await client.send("session.event_ack", server_event_seq=client.seq)
    await client.send("session.heartbeat", event_id="h1")
    ack = await client.get("session.heartbeat_ack")
    assert (500, len(silence(500))) == (ack["input_audio_received_ms"], ack["input_audio_received_bytes"])
    assert ack["last_client_event_id"] in ("a1", "h1")
    await client.send("session.event_ack", event_id="e1", server_event_seq=-1)
    assert "invalid_event_ack" == (await client.refusal("e1"))["code"]
    assert await client.is_alive()


@pytest.mark.duplex_way
@pytest.mark.covers("session.close", "session.closed", "conversation.item.created")
async def test_close_is_the_last_word(client: Recorder) -> None:
    """
    `session.close` in the middle of a response ends that and then the session.

    Nothing follows, and it is not resumed.
    """
    await opened(client, "duplex")
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    await client.send("session.close")
    assert 1000 == await client.rest()
    assert ["response.done", "session.closed"] == [
        event["type"] for event in client.of("response.done", "session.closed")
    ]
    assert "session.closed" == client.events[-1]["type"]
    after = client.twin()
    assert "session_resume_expired" == (await after.resume())["error"]["code"]
    await after.drop()


@pytest.mark.duplex_way
@pytest.mark.covers("playback.ack", "playback.acknowledged")
async def test_playback_ledger(client: Recorder) -> None:
    """Acks are cumulative, never beyond what was sent; late and superseded ones are harmless."""
    await opened(client, "duplex")
    await client.ask("Say hello to all of my friends.")
    response_id = client.of("response.done")[-1]["response"]["id"]
    sent_ms = duration_ms(client.audio(response_id))
    ledgers = []
    for played_ms in (80, sent_ms + 5000, 40):
        await client.send("playback.ack", played_ms=played_ms, response_id=response_id)
        # A barrier: acks are taken down at intervals, and any other command flushes them.
        await client.probe()
        ledgers.append(client.of("playback.acknowledged")[-1]["playback"]["played_ms"])
    assert [80, sent_ms, sent_ms] == ledgers
    await client.send("playback.ack", played_ms=10, response_id="resp_of_yesterday")
    await client.probe()
    assert [] == [event for event in client.of("error") if event["error"]["event_id"] is None]


@pytest.mark.duplex_way
@pytest.mark.covers("turn.signal", "turn.event")
async def test_turn_signals_come_back(client: Recorder) -> None:
    """What the client's own turn detection says comes back as a turn event."""
    await opened(client, "duplex")
    await client.send("turn.signal", event="user_started")
    assert "user_started" == (await client.get("turn.event"))["event"]


@pytest.mark.duplex_way
@pytest.mark.covers("barge_in", "overlap.decision")
async def test_barge_in(client: Recorder) -> None:
    """
    A barge-in ends the response as turn_detected in a new epoch.

    With nothing to interrupt it is no error.
    """
    await opened(client, "duplex")
    await client.send("barge_in")
    assert [] == [event for event in await client.probe() if event["type"] == "error"]
    await client.write(TALK)
    await client.send("response.create")
    epoch = (await client.get("response.output_audio.delta"))["epoch"]
    await client.send("barge_in")
    assert "barge_in" == (await client.get("overlap.decision"))["action"]
    done = await client.get("response.done")
    assert "turn_detected" == done["response"]["status_details"]["reason"]
    await client.send("session.heartbeat")
    assert (await client.get("session.heartbeat_ack"))["epoch"] > epoch


@pytest.mark.duplex_way
@pytest.mark.covers("overlap.decision", "input_audio_buffer.speech_started")
async def test_overlap_that_does_not_interrupt(client: Recorder) -> None:
    """Under `listen_only` the user's speech over a response is noted, and the response goes on to its end."""
    await client.open_duplex(extra_body={"auto_response": False}, overlap_policy="listen_only")
    await client.listen({"type": "server_vad", "create_response": False})
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    await client.say(speech(LONG))
    assert "listen" == (await client.get("overlap.decision"))["action"]
    assert "completed" == (await client.get("response.done"))["response"]["status"]


ALIASES: dict[str, dict[str, Any]] = {
    "input_text.append": {"text": "a"},
    "push_text": {"text": "b"},
    "signal_turn": {"event": "user_started"},
    "audio.playback_ack": {"played_ms": 0},
}


@pytest.mark.duplex_way
@pytest.mark.covers("session.closed")
@pytest.mark.parametrize("end", ["close_session", "close"])
async def test_aliases(client: Recorder, end: str) -> None:
    """Other names of events mean the same; none is unknown."""
    await opened(client, "duplex")
    for alias, fields in ALIASES.items():
        await client.send(alias, event_id=alias, **fields)
    refusals = [event["error"]["code"] for event in await client.probe() if event["type"] == "error"]
    assert set(refusals) <= {"native_text_append_unsupported"}
    await client.send(end)
    await client.get("session.closed")


@pytest.mark.duplex_way
@pytest.mark.covers("session.update", "session.created", "session.updated")
@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/duplex"])
async def test_duplex_opening(client: Recorder, path: str) -> None:
    """
    The first message opens; both paths do.

    The session tells its state, and the id a client wishes for is ignored.
    """
    client.way = "duplex"
    await client.connect({"duplex": "1", "autostart": "0"}, path=path)
    await client.send(
        "session.update", session={"model": client.server.model, "id": "mine", "session_id": "mine"}
    )
    created = await client.get("session.created")
    assert "server_event_seq" not in created
    assert created["resume_token"]
    assert 1 == created["attachment_generation"]
    session = (await client.get("session.updated"))["session"]
    assert created["session"]["id"] == session["session_id"] != "mine"
    assert 16_000 == session["audio"]["input"]["sample_rate_hz"]
    assert {"state", "turn_state", "epoch", "turn_id", "playback", "capabilities"} <= set(session)
