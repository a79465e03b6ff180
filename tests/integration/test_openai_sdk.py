"""OpenAI's own Python client talks to the service as it is."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent

from duplex.wav import correlation
from session_core.state import EndReason, Phase
from tests.integration.caller import LONG, SHORT, Event, audio_of, pieces, spoken
from tests.integration.record import check_journal, record
from tests.integration.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    """The SDK, pointed at the first gateway."""
    async with AsyncOpenAI(api_key="k", base_url=f"{stack.url(0, 'http')}/v1") as client:
        yield client


def plain(event: RealtimeServerEvent) -> Event:
    """What the SDK made of an event, as JSON again."""
    read: Event = event.to_dict(mode="json")
    return read


async def read_turn(connection: AsyncRealtimeConnection) -> list[Event]:
    """Read to the end of a response."""
    events: list[Event] = []
    async with asyncio.timeout(30):
        async for event in connection:
            events.append(plain(event))
            if event.type == "response.done":
                # What follows each of them belongs to it.
                events.append(plain(await connection.recv()))
                break
    return events


async def check(stack: Stack, events: list[Event], said: bytes) -> None:
    """The answer is what was said, audio and transcript, and what was read is what the journal says."""
    session_id: str = events[0]["session"]["id"]
    await stack.state_when(session_id, lambda state: not state.attachment.attached)
    found = await record(stack.store, session_id)
    assert said == found.input
    numbered = [event for event in events if "server_event_seq" in event]
    assert found.outbound[: len(numbered)] == numbered
    assert correlation(audio_of(numbered), said) > 0.9
    done = [event for event in events if event["type"] == "response.output_audio_transcript.done"]
    assert ["[echo of "] == [event["transcript"][:9] for event in done]
    assert "error" not in [event["type"] for event in events]


async def check_ended(stack: Stack, session_id: str) -> None:
    """A session whose client closed is closed, and its journal verifies."""
    state = await stack.state_when(session_id, lambda state: state.phase is Phase.ENDED)
    assert EndReason.CLOSED is state.end_reason
    await check_journal(stack.store, session_id)


async def test_commit_and_create(stack: Stack, sdk: AsyncOpenAI) -> None:
    """Without turn detection: all audio at once, commit, response.create, and the answer is heard."""
    said = spoken(LONG)
    async with sdk.realtime.connect(model="loopback") as connection:
        events = [plain(await connection.recv())]
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        await connection.input_audio_buffer.append(audio=base64.b64encode(said).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        events += await read_turn(connection)

    await check(stack, events, said)
    kinds = [event["type"] for event in events]
    assert kinds.index("input_audio_buffer.committed") < kinds.index("response.created")
    await check_ended(stack, events[0]["session"]["id"])


async def test_server_vad(stack: Stack, sdk: AsyncOpenAI) -> None:
    """With the default turn detection: audio as from a microphone, and the answer comes unasked."""
    said = spoken(SHORT)
    async with sdk.realtime.connect(model="loopback") as connection:
        events = [plain(await connection.recv())]
        for piece in pieces(said):
            await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
            await asyncio.sleep(0.04)  # the pace of speech
        events += await read_turn(connection)

    assert "server_vad" == events[0]["session"]["audio"]["input"]["turn_detection"]["type"]
    await check(stack, events, said)
    kinds = [event["type"] for event in events]
    order = ["speech_started", "speech_stopped", "committed"]
    places = [kinds.index(f"input_audio_buffer.{name}") for name in order]
    assert sorted(places) == places
    assert places[-1] < kinds.index("response.created")
    await check_ended(stack, events[0]["session"]["id"])


async def test_an_error_and_then_a_turn(stack: Stack, sdk: AsyncOpenAI) -> None:
    """What the service refuses is an error event to the SDK, and the connection goes on."""
    said = spoken(SHORT)
    async with sdk.realtime.connect(model="loopback") as connection:
        await connection.recv()
        await connection.response.cancel()
        refused = await connection.recv()
        await connection.input_audio_buffer.append(audio=base64.b64encode(said).decode())
        events = await read_turn(connection)

    assert "error" == refused.type
    assert "response_cancel_not_active" == refused.error.code
    assert correlation(audio_of(events), said) > 0.9


async def test_a_stock_client_resumes(stack: Stack, sdk: AsyncOpenAI) -> None:
    """Cut off in mid-response, the SDK goes on through the other gateway with three query parameters."""
    said = spoken(SHORT, silence_ms=600)
    events: list[Event] = []
    async with sdk.realtime.connect(model="loopback") as connection:
        events.append(plain(await connection.recv()))
        await connection.input_audio_buffer.append(audio=base64.b64encode(said).decode())
        while events[-1]["type"] != "response.output_audio.delta":
            events.append(plain(await connection.recv()))
        connection._connection.transport.abort()
    query = {
        "session_id": events[0]["session"]["id"],
        "resume_token": events[0]["resume_token"],
        "last_received_server_event_seq": str(events[-1]["server_event_seq"]),
    }
    async with (
        AsyncOpenAI(api_key="k", base_url=f"{stack.url(1, 'http')}/v1") as other,
        other.realtime.connect(model="loopback", extra_query=query) as connection,
    ):
        again = plain(await connection.recv())
        events += await read_turn(connection)

    assert ("session.created", events[0]["session"]["id"]) == (again["type"], again["session"]["id"])
    await check(stack, events, said)
    await check_ended(stack, events[0]["session"]["id"])
