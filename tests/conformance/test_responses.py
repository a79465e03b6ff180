"""Responses: asked for, refused, cancelled, interrupted, with calls. Cases 1, 3, 4, 6, 7, 19, 29, 33, 38."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.conformance.recorder import Event, Recorder, Way
from tests.conformance.speech import LONG, SHORT, silence, speech

pytestmark = pytest.mark.asyncio(loop_scope="session")

WEATHER: Event = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
TALK = "Please count with me: one, two, three, four, five, six, seven, eight."
"""Some three seconds to say. The built-in model says texts back, and does the calls that they dictate."""
CALL = 'call get_weather {"place": "Paris"}'
both_ways = pytest.mark.parametrize("way", ["openai", "duplex"])


async def opened(client: Recorder, way: Way = "openai", **session: object) -> None:
    """A session without turn detection, in which nobody speaks unasked."""
    if way == "duplex":
        await client.open_duplex(extra_body={"auto_response": False}, **session)
        return
    await client.open()
    audio = {"input": {"turn_detection": None}}
    assert "session.updated" == (await client.update(audio=audio, **session))["type"]


@pytest.mark.covers("response.cancel", "error", "response.create", "response.created", "response.done")
@both_ways
async def test_case_01_cancel_with_nothing_active(client: Recorder, way: Way) -> None:
    """A cancel in an idle session is refused with its event_id, and the next response works."""
    await opened(client, way)
    await client.send("response.cancel", event_id="c1")
    refusal = await client.refusal("c1")
    assert refusal["code"] in ("response_cancel_not_active", "response_not_active")
    assert refusal["message"].startswith("Cancellation failed")
    assert 1 == len(client.of("error"))
    await client.ask("Say hello.")
    assert 1 == len(client.of("error"))


@pytest.mark.covers("response.create", "error")
@both_ways
async def test_case_03_second_create_is_refused(client: Recorder, way: Way) -> None:
    """
    Of two creates the second is refused with its event_id and the active id.

    The first finishes untouched.
    """
    await opened(client, way)
    await client.write(TALK)
    await client.send("response.create", event_id="e1")
    await client.send("response.create", event_id="e2")
    created = await client.get("response.created")
    refusal = await client.refusal("e2")
    assert refusal["code"] in ("conversation_already_has_active_response", "response_already_active")
    assert created["response"]["id"] in refusal["message"]
    done = await client.get("response.done")
    assert (created["response"]["id"], "completed") == (done["response"]["id"], done["response"]["status"])


@pytest.mark.covers(
    "response.cancel",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.delta",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "rate_limits.updated",
)
@both_ways
async def test_case_04_cancel_and_create_at_once(client: Recorder, way: Way) -> None:
    """
    The cancelled response is over before the next one begins.

    That one is not refused, nothing of the old one follows.
    """
    await opened(client, way)
    await client.write(TALK)
    await client.send("response.create")
    first = (await client.get("response.output_audio.delta"))["response_id"]
    await client.send("response.cancel", event_id="x1")
    await client.send("response.create", event_id="e2")
    done = await client.get("response.done")
    assert (first, "cancelled") == (done["response"]["id"], done["response"]["status"])
    assert "client_cancelled" == done["response"]["status_details"]["reason"]
    second = await client.get("response.created")
    await client.get("response.done")
    assert first != second["response"]["id"]
    assert [] == client.of("error")
    at = client.events.index(done)
    assert not any(
        event.get("response_id") == first and event["type"] != "response.done" for event in client.events[at:]
    )


async def called(client: Recorder, prompt: str) -> list[Event]:
    """Have functions called; gives the finished call items."""
    await client.ask(prompt)
    calls = [
        e["item"] for e in client.of("response.output_item.done") if e["item"]["type"] == "function_call"
    ]
    if not calls:
        pytest.skip("the model called nothing")
    return calls


async def answer_call(client: Recorder, call: Event, output: str) -> Event:
    """Send a call's output; gives the added item."""
    item = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    await client.send("conversation.item.create", item=item)
    while True:
        added = await client.get("conversation.item.added")
        if (added["item"]["type"], added["item"].get("call_id")) == (item["type"], item["call_id"]):
            return added


@pytest.mark.covers(
    "conversation.item.create",
    "conversation.item.added",
    "conversation.item.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
)
async def test_case_06_tool_output_starts_nothing(client: Recorder) -> None:
    """A call's output alone starts no response; the create after it starts exactly one."""
    await opened(client, tools=[WEATHER])
    (call,) = await called(client, CALL)
    assert ("completed", "get_weather") == (call["status"], call["name"])
    done = client.of("response.function_call_arguments.done")[0]
    assert (call["call_id"], "get_weather", call["arguments"]) == (
        done["call_id"],
        done["name"],
        done["arguments"],
    )
    added = client.of("response.output_item.added")[-1]["item"]
    assert (call["call_id"], "get_weather") == (added["call_id"], added["name"])
    await answer_call(client, call, "rain")
    await client.get("conversation.item.done")
    await client.nothing_for(0.3)
    first = len(client.frames)
    await client.send("response.create")
    await client.get("response.done")
    await client.probe()
    assert 1 == len([event for event in client.events[first:] if event["type"] == "response.created"])


@pytest.mark.covers("response.function_call_arguments.done", "conversation.item.added")
async def test_case_07_two_calls_in_one_response(client: Recorder) -> None:
    """
    Two outputs stand in call order whatever order they came in; a create too many is refused.

    An answer is heard.
    """
    await opened(client, tools=[WEATHER])
    calls = await called(client, f"{CALL} {CALL.replace('Paris', 'Rome')}")
    if len(calls) < 2:
        pytest.skip("the model made one call only")
    paris, rome = calls[:2]
    second = await answer_call(client, rome, "sun")
    await client.send("response.create", event_id="e1")
    first = await answer_call(client, paris, "rain")
    await client.send("response.create", event_id="e2")
    await client.get("response.done")
    await client.probe()
    refusals = [event["error"] for event in client.of("error") if event["error"].get("event_id") == "e2"]
    answers = client.of("response.created")[1:]
    assert len(refusals) == 1 or len(answers) == 2
    assert any(client.audio(answer["response"]["id"]) for answer in answers)
    assert rome["id"] == second["previous_item_id"]
    assert rome["id"] == first["previous_item_id"], "the first call's output is put before the second's"


@pytest.mark.duplex_way
@pytest.mark.covers(
    "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.committed", "response.speak"
)
async def test_case_19_second_question_is_answered(client: Recorder) -> None:
    """With automatic responses a second commit is answered like the first, without a create."""
    await client.open_duplex(extra_body={"auto_response": True})
    heard = []
    for clip in (SHORT, LONG):
        await client.say(speech(clip))
        await client.send("input_audio_buffer.commit")
        await client.get("input_audio_buffer.committed")
        done = await client.get("response.done")
        while not client.audio(done["response"]["id"]):
            done = await client.get("response.done")
        heard.append(done["response"]["id"])
    assert heard[0] != heard[1]


@pytest.mark.covers(
    "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"
)
@both_ways
async def test_case_29_speech_interrupts(client: Recorder, way: Way) -> None:
    """
    Speech during a response cancels it as turn_detected.

    The partial answer and the interrupting turn are both kept.
    """
    if way == "openai":
        await client.open()
    else:
        await client.open_duplex(extra_body={"auto_response": True})
    await client.listen({"type": "server_vad"})
    await client.say(speech(LONG))
    answer = (await client.get("response.output_audio.delta"))["item_id"]
    await client.say(speech(SHORT))
    done = await client.get("response.done")
    assert ("cancelled", "turn_detected") == (
        done["response"]["status"],
        done["response"]["status_details"]["reason"],
    )
    committed = await client.get("input_audio_buffer.committed")
    for item_id, status in ((answer, "incomplete"), (committed["item_id"], "completed")):
        await client.send("conversation.item.retrieve", item_id=item_id)
        item = (await client.get("conversation.item.retrieved"))["item"]
        assert (item_id, status) == (item["id"], item["status"])
    await client.get("response.done")
    starts, stops = (
        client.of("input_audio_buffer.speech_started"),
        client.of("input_audio_buffer.speech_stopped"),
    )
    assert len(starts) == len(stops) == 2
    assert [event["item_id"] for event in starts] == [event["item_id"] for event in stops]


@pytest.mark.duplex_way
@pytest.mark.covers("duplex.function_call.done")
async def test_a_malformed_call_is_told_and_not_made(client: Recorder) -> None:
    """What the model wrote and nobody can call reaches a duplex client as it is, and no history."""
    await opened(client, "duplex", tools=[WEATHER])
    await client.write('call get_weather {"place": ')
    await client.send("response.create")
    told = await client.get("duplex.function_call.done")
    await client.get("response.done")
    assert ("get_weather", "malformed") == (told["name"], told["status"])
    assert [] == client.of("response.function_call_arguments.done")


@pytest.mark.covers("response.function_call_arguments.done", "response.output_item.done")
async def test_case_33_text_call_text_then_cancel(client: Recorder) -> None:
    """
    Items closed before a cancel stay completed, only the open one is incomplete.

    Indexes count up, ids are stable.
    """
    await opened(client, tools=[WEATHER])
    await client.write(f"say Let me look; {CALL}; say and while we wait for it I shall tell you more")
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    await client.get("response.function_call_arguments.done")
    await client.get("response.output_audio.delta")
    await client.send("response.cancel")
    done = (await client.get("response.done"))["response"]
    added, ended = (
        client.of(f"response.output_item.{step}", response_id=done["id"]) for step in ("added", "done")
    )
    assert (
        [0, 1, 2] == [event["output_index"] for event in added] == [event["output_index"] for event in ended]
    )
    assert [event["item"]["id"] for event in added] == [event["item"]["id"] for event in ended]
    assert ["completed", "completed", "incomplete"] == [event["item"]["status"] for event in ended]
    assert [event["item"]["id"] for event in ended] == [item["id"] for item in done["output"]]
    assert "cancelled" == done["status"]


@pytest.mark.covers("output_audio_buffer.clear", "output_audio_buffer.cleared")
@both_ways
async def test_case_38_text_during_speech_then_stop(client: Recorder, way: Way) -> None:
    """During speech a text waits and a create is refused; after cancel and clear no audio comes any more."""
    await opened(client, way)
    await client.write(TALK)
    await client.send("response.create")
    speaking = (await client.get("response.output_audio.delta"))["response_id"]
    await client.write("And now?")
    await client.send("response.create", event_id="e2")
    assert speaking in (await client.refusal("e2"))["message"]
    await client.send("response.cancel")
    await client.send("output_audio_buffer.clear")
    assert speaking == (await client.get("output_audio_buffer.cleared"))["response_id"]
    first = len(client.frames)
    await client.say(silence(400))
    await client.probe()
    assert "" == "".join(event.get("delta", "") for event in client.events[first:])
    done = client.of("response.done")
    assert ["cancelled"] == [event["response"]["status"] for event in done]


@pytest.mark.covers("response.output_text.delta", "response.output_text.done")
async def test_a_response_of_text(client: Recorder) -> None:
    """A response asked for as text has text parts only, and does not change the session."""
    await opened(client)
    events = await client.ask("Say hello.", output_modalities=["text"], metadata={"topic": "greeting"})
    created = next(event for event in events if event["type"] == "response.created")
    assert ({"topic": "greeting"}, ["text"]) == (
        created["response"]["metadata"],
        created["response"]["output_modalities"],
    )
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert text == done["text"] != ""
    assert b"" == client.audio()
    assert ["audio"] == (await client.update(instructions="Be brief."))["session"]["output_modalities"]


@pytest.mark.covers("response.create", "response.output_text.delta")
async def test_a_response_outside_the_conversation(client: Recorder) -> None:
    """
    A response outside the conversation has its own input.

    Runs beside the default one and leaves no item.
    """
    await opened(client)
    await client.write(TALK)
    await client.send("response.create")
    await client.get("response.output_audio.delta")
    first = len(client.frames)
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}
    await client.send(
        "response.create",
        event_id="side",
        response={
            "conversation": "none",
            "input": [message],
            "output_modalities": ["text"],
            "metadata": {"side": "yes"},
        },
    )
    created = await client.get("response.created", "error")
    assert "response.created" == created["type"], created
    side = created["response"]["id"]
    done: dict[str, str] = {}
    while len(done) < 2:
        response = (await client.get("response.done"))["response"]
        done[response["id"]] = response["status"]
    assert {"completed"} == set(done.values())
    of_side = [
        e for e in client.events[first:] if side in (e.get("response_id"), e.get("response", {}).get("id"))
    ]
    assert "".join(e["delta"] for e in of_side if e["type"] == "response.output_text.delta")
    items = {e["item"]["id"] for e in of_side if e["type"] == "response.output_item.done"}
    assert not items & {
        e["item"]["id"] for e in client.of("conversation.item.added", "conversation.item.done")
    }


@pytest.mark.covers("response.created", "response.done")
async def test_ids_are_never_used_again(client: Recorder) -> None:
    """Three responses have three ids and come one after another."""
    await opened(client)
    for _ in range(3):
        await client.ask("Say hello.")
    done = [event["response"]["id"] for event in client.of("response.done")]
    assert 3 == len(set(done))
    marks = [event["type"] for event in client.of("response.created", "response.done")]
    assert all(before != after for before, after in pairwise(marks))
