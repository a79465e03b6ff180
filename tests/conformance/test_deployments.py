"""What takes a deployment of its own: keys, capacity, limits. Cases 16, 25, 27, 35, 36, 37."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conformance.recorder import Recorder, Server, Way
from tests.conformance.speech import LONG, silence, speech
from tests.conformance.test_responses import TALK, both_ways, opened
from tests.integration.stack import Options, Stack, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.own_deployment]

KEY = "sk-conformance"
ORIGIN = "https://app.example"
CAPACITY = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A deployment with a key and an allowed origin, whose sessions last two and a half seconds."""
    settings = {
        "gateway.api_keys": f'["{KEY}"]',
        "gateway.allowed_origins": f'["{ORIGIN}"]',
        "gateway.limits.max_session_ms": "2500",
        "gateway.limits.warn_before_ms": "1500",
        "gateway.limits.max_pending_input_bytes": "1000000",
    }
    async with _small(tmp_path_factory, settings) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def full(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A deployment for two sessions, which forgets clients at once when they drop."""
    settings = {
        "worker.capacity": str(CAPACITY),
        "gateway.limits.disconnect_grace_ms": "0",
        "gateway.handshake_timeout_s": "2",
        "gateway.limits.rate_limits": '[{"name": "requests", "limit": 3, "window_s": 3600}]',
    }
    async with _small(tmp_path_factory, settings) as stack:
        yield stack


def _small(factory: pytest.TempPathFactory, settings: dict[str, str]) -> Stack:
    model = "tests.conformance.performer:Performer"
    return Stack(factory.mktemp("small"), Options(model=model, settings=settings), gateways=1, workers=1)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/duplex"])
@pytest.mark.parametrize(
    ("headers", "protocols", "status"),
    [
        ({}, [], 401),
        ({"Authorization": "Bearer sk-other"}, [], 401),
        ({"Authorization": f"Basic {KEY}"}, [], 401),
        ({}, ["realtime", "openai-insecure-api-key.sk-other"], 401),
        ({"Authorization": f"Bearer {KEY}", "Origin": "https://evil.example"}, [], 403),
    ],
)
async def test_case_35_refused_before_the_upgrade(
    guarded: Stack, path: str, headers: dict[str, str], protocols: list[str], status: int
) -> None:
    """
    A bad key, no key or a foreign origin is refused with 401 or 403 before the upgrade.

    On the alias too.
    """
    with pytest.raises(InvalidStatus) as refused:
        await connect(
            f"{guarded.url()}{path}",
            additional_headers=headers,
            subprotocols=protocols or None,  # type: ignore[arg-type]
        )
    assert status == refused.value.response.status_code
    assert [] == guarded.complaints()


@pytest.mark.covers("session.created")
async def test_case_35_key_in_the_subprotocol(guarded: Stack, recorder: Callable[..., Recorder]) -> None:
    """A browser's key in the subprotocol lets it in; what is echoed is `realtime`, never the key."""
    client = recorder(Server(guarded.url()))
    await client.connect(
        {"model": "loopback"}, subprotocols=["realtime", f"openai-insecure-api-key.{KEY}"], origin=ORIGIN
    )
    assert client.connection is not None
    assert "realtime" == client.connection.subprotocol
    await client.get("session.created")


@pytest.mark.covers("input_audio_buffer.append", "error")
@both_ways
async def test_case_16_more_input_than_may_wait(
    guarded: Stack, recorder: Callable[..., Recorder], way: Way
) -> None:
    """Input over the limit of what may wait is refused with a code; the socket and what was there stay."""
    client = recorder(Server(guarded.url(), KEY))
    await opened(client, way)
    await client.append(silence(500))
    await client.append(bytes(1_200_000), event_id="big")
    assert "input_backpressure" == (await client.refusal("big"))["code"]
    await client.send("input_audio_buffer.commit")
    await client.get("input_audio_buffer.committed")


@pytest.mark.covers("session.expired", "turn.event", "error")
async def test_case_37_session_maximum_duplex(guarded: Stack, recorder: Callable[..., Recorder]) -> None:
    """
    On the duplex way the maximum is announced ahead, then comes as `session_expired` and 1001.

    History is gone with it.
    """
    client = recorder(Server(guarded.url(), KEY))
    await opened(client, "duplex")
    ahead = await client.get("turn.event")
    assert abs(ahead["expires_at"] - client.created["session"]["expires_at"]) <= 1
    error = await client.get("error", "session.expired")
    assert 1001 == await client.rest()
    assert "session.expired" == client.events[-1]["type"]
    assert "error" != error["type"] or "session_expired" == error["error"]["code"]
    after = client.twin()
    assert "session_resume_expired" == (await after.resume())["error"]["code"]
    await after.drop()


@pytest.mark.covers("error", "response.done")
async def test_case_37_session_maximum_openai(guarded: Stack, recorder: Callable[..., Recorder]) -> None:
    """
    OpenAI's way knows the end from the start; then `session_expired` with a null event_id, and 1001.

    A new session opens.
    """
    client = recorder(Server(guarded.url(), KEY))
    await opened(client)
    assert abs(client.created["session"]["expires_at"] - time.time() - 2.5) < 5
    await client.write(TALK)
    await client.send("response.create")
    assert 1001 == await client.rest()
    last = client.of("error")[-1]["error"]
    assert ("session_expired", None) == (last["code"], last["event_id"])
    assert client.of("response.done"), "what was being said is ended first"
    again = recorder(Server(guarded.url(), KEY))
    await again.open()


@pytest.mark.covers("session.created")
async def test_case_25_handshakes_that_break_off(full: Stack, recorder: Callable[..., Recorder]) -> None:
    """More sockets than there are slots, each dropped in its handshake, leave everything free."""
    for number in range(CAPACITY + 5):
        half = recorder(Server(full.url()))
        if number % 2:
            await half.connect({"duplex": "1", "autostart": "0"})
            await half.drop()
        else:
            _, writer = await asyncio.open_connection("127.0.0.1", full.port())
            writer.write(b"GET /v1/realtime?model=loopback HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n")
            await writer.drain()
            writer.transport.abort()
    await full.settled()
    client = recorder(Server(full.url()))
    await client.open()
    await client.close()
    await full.settled()
    assert [] == full.complaints()


@pytest.mark.covers("session.created")
async def test_case_25_opened_and_dropped(full: Stack, recorder: Callable[..., Recorder]) -> None:
    """Sessions whose clients drop as soon as they may are ended, and their slots are free again."""
    for _ in range(CAPACITY + 5):
        client = recorder(Server(full.url()))
        await client.connect({"model": "loopback"})
        await client.drop()
    await full.settled()
    client = recorder(Server(full.url()))
    await client.open()


@pytest.mark.covers("error", "session.created")
@both_ways
async def test_case_36_no_room(full: Stack, recorder: Callable[..., Recorder], way: Way) -> None:
    """
    Where all slots are taken one more session is refused before `session.created`.

    With one free again it is admitted.
    """
    await full.settled()
    async with AsyncExitStack() as sessions:
        for _ in range(CAPACITY):
            guest = recorder(Server(full.url()))
            sessions.push_async_callback(guest.close)
            await guest.open()
        late = recorder(Server(full.url()))
        with pytest.raises(ConnectionClosed):
            await (late.open() if way == "openai" else late.open_duplex())
        assert ["resource_exhausted"] == [event["error"]["code"] for event in late.of("error")]
        assert [] == late.of("session.created")
        assert await late.rest() in (1012, 1013)
    await full.settled()
    await opened(recorder(Server(full.url())), way)


@pytest.mark.covers("rate_limits.updated", "error")
async def test_rate_limits(full: Stack, recorder: Callable[..., Recorder]) -> None:
    """
    Where limits are configured `rate_limits.updated` counts down.

    What exceeds them is refused by name.
    """
    client = recorder(Server(full.url()))
    await opened(client)
    for expected in (2, 1, 0):
        await client.ask("Say hello.")
        (limit,) = (await client.get("rate_limits.updated"))["rate_limits"]
        assert ("requests", 3, expected) == (limit["name"], limit["limit"], limit["remaining"])
    await client.send("response.create", event_id="r4")
    assert "rate_limit_exceeded" == (await client.refusal("r4"))["code"]


@pytest.mark.duplex_way
@pytest.mark.covers("error")
async def test_handshake_without_a_word(full: Stack, recorder: Callable[..., Recorder]) -> None:
    """
    A duplex client that says nothing is told `config_timeout`.

    Nonsense before the opening is refused, then it opens.
    """
    silent, clumsy = recorder(Server(full.url())), recorder(Server(full.url()))
    for each in (silent, clumsy):
        each.way = "duplex"
        await each.connect({"duplex": "1", "autostart": "0"})
    await clumsy.raw("hello")
    assert "invalid_json" == (await clumsy.get("error"))["error"]["code"]
    await clumsy.send("session.update", session={"model": "loopback"})
    await clumsy.get("session.created")
    error = (await silent.get("error"))["error"]
    assert ("config_timeout", None) == (error["code"], error["event_id"])
    await silent.rest()


@pytest.mark.covers("response.done", "input_audio_buffer.append")
async def test_case_27_a_flood_of_silence(own_stack: Stack, recorder: Callable[..., Recorder]) -> None:
    """
    Minutes of silence in one session leave the health at 200.

    Another session's answer without a gap.
    """
    flood, other = recorder(), recorder()
    await opened(flood)
    await opened(other)
    await other.write(TALK)
    await other.send("response.create")
    await other.get("response.output_audio.delta")
    for _ in range(12):
        await flood.append(silence(10_000))
    while not other.of("response.done"):
        assert "ok" == (await own_stack.health()).status
        await other.next()
    assert "completed" == other.of("response.done")[0]["response"]["status"]
    deltas = len(other.of("response.output_audio.delta"))
    assert deltas == len(other.of("response.output_audio_transcript.delta"))
    assert 3000 * 48 == len(other.audio()), "all of what such a text takes to say"
    await until(lambda: _is_quiet(flood))


async def _is_quiet(client: Recorder) -> bool:
    """The server has worked through what it was sent, and goes on serving it."""
    await client.probe()
    await client.say(speech(LONG))
    await client.send("input_audio_buffer.commit")
    await client.get("input_audio_buffer.committed")
    await client.send("response.create")
    await client.get("response.done")
    return True
