"""One session over several connections. Cases 18, 23, 26, 40."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.conformance.recorder import Recorder, Way
from tests.conformance.speech import SHORT, silence, speech
from tests.conformance.test_responses import TALK, both_ways, opened
from tests.integration.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.duplex_way
@pytest.mark.covers("session.resume", "session.resumed", "session.heartbeat_ack")
async def test_case_18_formats_survive_a_resume(client: Recorder) -> None:
    """Audio without a format field means the same after a drop, also through another gateway."""
    wire = {"input": {"format": {"type": "audio/pcm_f32le"}, "sample_rate_hz": 16_000}}
    await client.open_duplex(audio=wire)
    assert 16_000 == client.created["session"]["audio"]["input"]["sample_rate_hz"]
    await client.append(bytes(32))
    await client.probe()
    for url in (client.server.url, client.server.other_url):
        before = client.created["session"]["audio"]["input"]
        await client.drop()
        resumed = await client.resume(url)
        assert "session.resumed" == resumed["type"], resumed
        assert before == resumed["session"]["audio"]["input"]
        await client.append(bytes(32))
        await client.probe()
    await client.append(bytes(32 * 997))
    await client.send("session.heartbeat")
    receipt = await client.get("session.heartbeat_ack")
    assert (32 * 1000, 500) == (receipt["input_audio_received_bytes"], receipt["input_audio_received_ms"])


@pytest.mark.duplex_way
@pytest.mark.covers("session.resume", "session.resumed", "session.replaced", "error")
async def test_case_23_two_clients_with_one_token(
    client: Recorder, recorder: Callable[..., Recorder]
) -> None:
    """
    Of two clients that resume at once one wins; the loser changes nothing.

    The old one is replaced, then closed.
    """
    await opened(client, "duplex")
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    rivals = [client.twin(), client.twin()]  # And from now on nobody reads what the first one is sent.
    answers = await asyncio.gather(
        rivals[0].resume(client.server.url), rivals[1].resume(client.server.other_url)
    )
    generations = [answer.get("attachment_generation", 0) for answer in answers]
    winner, loser = rivals if generations[0] > generations[1] else reversed(rivals)
    if 0 in generations:
        refusal = answers[rivals.index(loser)]["error"]
        assert refusal["code"] in ("session_resume_conflict", "invalid_resume_token")
    else:  # One after the other, and none had spoken yet: the later one has taken over.
        await loser.rest()
        assert "session.replaced" == loser.events[-1]["type"]
    assert await client.rest() is not None
    assert "session.replaced" == client.events[-1]["type"]
    await winner.get("response.done")
    await winner.probe()  # Its first message: now it is known to have the new token.
    late = client.twin()
    assert "invalid_resume_token" == (await late.resume())["error"]["code"]
    assert [] == winner.wrong()
    for each in (loser, late):
        await each.drop()
    await winner.close()


@pytest.mark.covers("response.output_audio.delta")
@both_ways
async def test_case_26_no_audio_of_strangers(
    client: Recorder, recorder: Callable[..., Recorder], way: Way, own_stack: Stack | None
) -> None:
    """
    After a client drops in mid-response a new session on the same worker hears itself alone.

    All is well.
    """
    await opened(client, way)
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    await client.drop()
    fresh = recorder()
    await opened(fresh, way)
    await fresh.say(silence(1000))
    assert [] == [event for event in await fresh.probe() if "delta" in event["type"]]
    said = speech(SHORT)
    await fresh.say(said)
    await fresh.send("input_audio_buffer.commit")
    await fresh.get("input_audio_buffer.committed")
    await fresh.send("response.create")
    await fresh.get("response.done")
    if fresh.server.ours:
        assert (silence(1000) + said).find(fresh.audio()) >= 0
    if own_stack is not None:
        assert "ok" == (await own_stack.health()).status
        assert [] == own_stack.complaints()


@both_ways
@pytest.mark.covers("session.created")
async def test_a_drop_loses_nothing(client: Recorder, way: Way) -> None:
    """
    A client that drops in mid-response and resumes gets every event once, in order.

    To the response's end.
    """
    await opened(client, way)
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    await client.drop()
    answer = await client.resume(client.server.other_url)
    assert answer["type"] in ("session.created", "session.resumed"), answer
    done = await client.get("response.done")
    assert "completed" == done["response"]["status"]
    transcript = client.of("response.output_audio_transcript.done")[-1]["transcript"]
    deltas = client.of("response.output_audio_transcript.delta", response_id=done["response"]["id"])
    assert transcript == "".join(event["delta"] for event in deltas)


@pytest.mark.duplex_way
@pytest.mark.covers("session.resume", "error")
async def test_a_token_holds_until_the_next_is_known(client: Recorder) -> None:
    """
    A resume whose answer was lost may be repeated with the old token.

    Once the new one was used, the old is void.
    """
    await opened(client, "duplex")
    await client.drop()
    old = client.token
    assert "session.resumed" == (await client.resume())["type"]
    await client.drop()  # As if that answer had never come.
    assert "session.resumed" == (await client.resume(token=old))["type"]
    await client.probe()
    await client.drop()
    assert "invalid_resume_token" == (await client.resume(token=old))["error"]["code"]
    await client.drop()
    assert "session.resumed" == (await client.resume())["type"]


@pytest.mark.own_deployment
@pytest.mark.duplex_way
@pytest.mark.covers("session.resync_required", "session.resume", "error")
async def test_case_40_a_gap_is_told(client: Recorder, own_stack: Stack) -> None:
    """
    A cursor older than what is kept gets journal_gap, a session that is gone session_resume_expired.

    Never a silent skip.
    """
    await opened(client, "duplex")
    for _ in range(3):
        await client.ask("Say hello.")
    await client.drop()
    newest = await own_stack.store.bounds(client.session_id)
    assert newest is not None
    late = client.twin()
    await own_stack.store.trim(client.session_id, newest[1])
    late.seq = 1  # All but the first event is to be sent again.
    answer = await late.resume()
    assert ("session.resync_required", "journal_gap") == (answer["type"], answer.get("reason"))
    assert "server_event_seq" not in answer
    await own_stack.store.delete(client.session_id)
    gone = client.twin()
    assert "session_resume_expired" == (await gone.resume())["error"]["code"]
    for each in (late, gone):
        await each.drop()


@pytest.mark.duplex_way
@pytest.mark.covers("session.resume", "error")
@pytest.mark.parametrize(
    "session_id", ["nonsense", "", "sess_{s1}_0123456789abcdef", "../../etc/passwd", "é" * 300]
)
async def test_resume_of_nothing(client: Recorder, session_id: str) -> None:
    """A session that does not exist is refused by a code on which clients give up."""
    client.way, client.session_id, client.token = "duplex", session_id, "token"
    answer = await client.resume()
    assert answer["error"]["code"] in ("session_resume_expired", "invalid_session_resume"), answer
    await client.drop()
