"""vLLM-Omni's own duplex client, out of its wheel, talks to the service as it is."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from duplex.wav import correlation, read_wav
from session_core.state import EndReason, Phase
from tests.integration.caller import LONG, SHORT, SPEECH
from tests.integration.record import check_journal, check_reply, record
from tests.integration.relay import Relay
from tests.integration.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

RATE_HZ = 24_000


def config(omni: ModuleType) -> Any:
    """PCM16 at 24 kHz in and out: then the answer is the user's words, bit for bit."""
    audio = omni.AudioFormat("pcm16", RATE_HZ)
    return omni.SessionConfig(input_audio=audio, output_audio=audio)


async def hear(client: Any, cut: Relay | None = None) -> tuple[Any, bytes]:
    """The next spoken response, with acknowledged playback; `cut` breaks the network in its middle."""
    async for response in client.responses():
        heard = b""
        async for chunk in response.audio():
            heard += chunk
            if cut is not None:
                cut.cut()
                cut = None
            await client.ack_playback(response.played_ms, response_id=response.response_id)
        if response.decision != "listen":
            return response, heard
    raise AssertionError("no response")


async def check(stack: Stack, session_id: str, said: bytes, heard: bytes) -> None:
    """The session ended as its client asked, with all that was said in it, heard and acknowledged."""
    state = await stack.state_when(session_id, lambda state: state.phase is Phase.ENDED)
    assert EndReason.CLOSED is state.end_reason
    found = await record(stack.store, session_id)
    assert said == found.input
    check_reply(heard, said)
    assert len(heard) * 1000 // (2 * RATE_HZ) - 1 <= state.playback.played_ms <= state.playback.sent_ms
    await check_journal(stack.store, session_id)


async def test_a_turn(stack: Stack, omni_clients: ModuleType) -> None:
    """stream_pcm, commit, responses, audio, ack_playback, close."""
    omni, said = omni_clients, read_wav(SPEECH / LONG, RATE_HZ)
    async with asyncio.timeout(30):
        async with omni.DuplexClient(stack.url(), model="loopback", config=config(omni)) as client:
            await client.stream_pcm(said)
            await client.commit()
            response, heard = await hear(client)
            session_id = client.session_id
            await client.close()

    assert response.transcript.startswith("[echo of ")
    await check(stack, session_id, said, heard)


async def test_its_own_defaults(stack: Stack, omni_clients: ModuleType) -> None:
    """16 kHz in, 24 kHz out, as the client has it when nothing is said: resampled, and the same words."""
    omni, said = omni_clients, read_wav(SPEECH / SHORT, 16_000)
    async with asyncio.timeout(30):
        async with omni.DuplexClient(stack.url(), model="loopback") as client:
            await client.stream_pcm(said, realtime=False)
            await client.commit()
            _, heard = await hear(client)
            session_id = client.session_id
            await client.close()

    found = await record(stack.store, session_id)
    assert said == found.input
    assert correlation(heard, read_wav(SPEECH / SHORT, RATE_HZ)) > 0.9
    await check_journal(stack.store, session_id)


async def test_its_connection_is_cut(stack: Stack, omni_clients: ModuleType) -> None:
    """The client reconnects by itself in mid-response, and the answer is whole."""
    omni, said = omni_clients, read_wav(SPEECH / SHORT, RATE_HZ)
    async with asyncio.timeout(30), Relay(stack.port(0)) as relay:
        url = f"ws://127.0.0.1:{relay.port}"
        async with omni.DuplexClient(url, model="loopback", config=config(omni)) as client:
            await client.stream_pcm(said, realtime=False)
            await client.commit()
            _, heard = await hear(client, cut=relay)
            session_id = client.session_id
            await client.close()
        connections = relay.connections

    assert 2 == connections
    await check(stack, session_id, said, heard)
    assert 2 == (await stack.state(session_id)).attachment.generation
