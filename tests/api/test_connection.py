"""Connections over real sockets: opening, turns, bad input, closing."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from eventstore.ids import START
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Limits
from session_core.fold import Fold
from session_core.state import EndReason, Phase
from tests.api.conftest import World, fast, until

DUPLEX_SESSION = {"model": "loopback", "modalities": ["text", "audio"], "extra_body": {"auto_response": True}}


async def test_openai_way_opens_at_once(world: World) -> None:
    """A stock client hears `session.created` first, without having said anything, with OpenAI's defaults."""
    await world.worker()
    client = await (await world.site()).client("/v1/realtime?model=gpt-realtime")
    created = await client.next()
    assert "session.created" == created["type"]
    assert "server_event_seq" not in created
    session = created["session"]
    assert ("loopback", "server_vad") == (
        session["model"],
        session["audio"]["input"]["turn_detection"]["type"],
    )
    assert {"type": "audio/pcm", "rate": 24_000} == session["audio"]["input"]["format"]


async def test_turn_openai_way(world: World) -> None:
    """Append, commit and create give a response's events in OpenAI's order, without anything of ours."""
    worker, site = await world.worker(), await world.site()
    client = await site.client("/v1/realtime?model=loopback")
    session_id = (await client.next())["session"]["id"]
    await client.append(bytes(9_600))
    await client.send("input_audio_buffer.commit")
    assert "conversation.item.added" == (await client.next())["type"]
    assert "input_audio_buffer.committed" == (await client.next())["type"]
    await client.get("conversation.item.done")
    await client.send("response.create")
    await worker.speak(session_id, 2, b"\x01\x02" * 1_920)
    events = await client.until("rate_limits.updated")
    assert [
        "response.created",
        "conversation.item.added",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "rate_limits.updated",
    ] == [event["type"] for event in events]
    assert b"\x01\x02" * 1_920 == base64.b64decode(events[4]["delta"])


async def test_beta_client(world: World) -> None:
    """A beta client gets the flat session and beta's names, and may update flatly."""
    worker, site = await world.worker(), await world.site()
    client = await site.client(additional_headers={"OpenAI-Beta": "realtime=v1"})
    session = (await client.next())["session"]
    assert ("pcm16", "server_vad", False) == (
        session["input_audio_format"],
        session["turn_detection"]["type"],
        "audio" in session,
    )
    await client.send("session.update", session={"voice": "alloy", "turn_detection": None})
    updated = (await client.next())["session"]
    assert ("alloy", None) == (updated["voice"], updated["turn_detection"])
    await client.send("session.update", session={"audio": {}})
    assert "unknown_parameter" == (await client.next())["error"]["code"]
    await client.send("response.create")
    await worker.speak(session["id"], 1)
    events = await client.until("response.done")
    assert [
        "response.created",
        "conversation.item.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.audio.delta",
        "response.audio_transcript.delta",
        "response.audio.done",
        "response.audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ] == [event["type"] for event in events]
    assert ["audio"] == [part["type"] for part in events[-1]["response"]["output"][0]["content"]]


async def test_dropped_handshakes_cost_no_slot(world: World) -> None:
    """Clients that vanish in the handshake hold nothing: the only slot is free for one that stays."""
    await world.worker(capacity=1)
    site = await world.site()
    for _ in range(6):
        client = await site.duplex()
        client.connection.transport.abort()
    staying = await site.duplex()
    await staying.send("session.heartbeat")
    assert "session.created" == (await staying.next())["type"]
    assert 1 == len(world.server.journals)


async def test_duplex_opening_by_update(world: World) -> None:
    """DuplexClient's first message opens the session and is then executed: created, then updated."""
    await world.worker()
    client = await (await world.site()).duplex()
    await client.send("session.update", session=DUPLEX_SESSION)
    created, updated = await client.next(), await client.next()
    assert ["session.created", "session.updated"] == [created["type"], updated["type"]]
    assert (1, True) == (created["attachment_generation"], len(created["resume_token"]) > 20)
    assert (16_000, None) == (
        created["session"]["audio"]["input"]["sample_rate_hz"],
        created["session"]["audio"]["input"]["turn_detection"],
    )
    assert (1, {"auto_response": True}) == (updated["server_event_seq"], updated["session"]["extra_body"])


@pytest.mark.parametrize("target", ["/v1/duplex?model=loopback", "/v1/realtime?duplex=on"])
async def test_duplex_opening_by_another_event(world: World, target: str) -> None:
    """Any other first event opens the default session and is then executed."""
    await world.worker()
    client = await (await world.site()).client(target)
    await client.send("session.heartbeat")
    assert ["session.created", "session.heartbeat_ack"] == [(await client.next())["type"] for _ in range(2)]


async def test_duplex_opening_survives_mistakes(world: World) -> None:
    """A first message that cannot be understood is refused, and the next one may still open."""
    await world.worker()
    client = await (await world.site()).duplex()
    await client.raw("{")
    assert "invalid_json" == (await client.next())["error"]["code"]
    await client.raw(b"binary")
    assert "bad_event" == (await client.next())["error"]["code"]
    await client.send("session.update", session={"input_audio_format": "mp3"}, event_id="u")
    error = await client.next()
    assert ("unsupported_audio_format", "u") == (error["error"]["code"], error["error"]["event_id"])
    await client.send("session.update", session=DUPLEX_SESSION)
    assert "session.created" == (await client.next())["type"]


async def test_handshake_times_out(world: World) -> None:
    """A duplex client that says nothing is told so and closed."""
    await world.worker()
    client = await (await world.site(fast(handshake_timeout_s=0.05))).duplex()
    assert "config_timeout" == (await client.next())["error"]["code"]
    assert 1008 == await client.closed()


async def test_full_house(world: World) -> None:
    """Without a free slot there is a retryable refusal before any session, on both ways."""
    worker, site = await world.worker(capacity=1), await world.site()
    first = await site.client()
    await first.next()
    second = await site.client()
    assert "resource_exhausted" == (await second.next())["error"]["code"]
    assert 1013 == await second.closed()
    third = await site.duplex()
    await third.send("session.update", session=DUPLEX_SESSION)
    assert "resource_exhausted" == (await third.next())["error"]["code"]
    assert 1 == len(await worker.store.held(worker.worker_id))


async def test_unknown_model(world: World) -> None:
    """With several models served, a name that means none of them is refused; aliases and a default help."""
    await world.worker()
    await world.worker("worker-2", model="assistant")
    site = await world.site(fast(default_model="assistant", model_aliases={"gpt-realtime": "loopback"}))
    stranger = await site.client("/v1/realtime?model=nobody")
    assert "model_not_found" == (await stranger.next())["error"]["code"]
    assert 1008 == await stranger.closed()
    named = await site.client("/v1/realtime?model=gpt-realtime")
    assert "loopback" == (await named.next())["session"]["model"]
    unnamed = await site.client("/v1/realtime")
    assert "assistant" == (await unnamed.next())["session"]["model"]


BAD_FRAMES: list[str | bytes] = [
    "",
    "{",
    "[]",
    '"text"',
    "{}",
    '{"type":null}',
    '{"type":"nonsense"}',
    '{"type":"input_audio_buffer.append"}',
    '{"type":"input_audio_buffer.append","audio":"!!!"}',
    '{"type":"input_audio_buffer.append","audio":"AAAA"}',
    '{"type":"input_audio_buffer.append","audio":""}',
    '{"type":"session.update","session":{"type":"realtime","audio":{"input":{"turn_detection":{"type":"x"}}}}}',
    '{"type":"conversation.item.retrieve"}',
    b"\x00\x01",
]


@pytest.mark.parametrize("way", ["openai", "duplex"])
async def test_bad_input_leaves_the_socket_alive(world: World, way: str) -> None:
    """Nothing that a client says wrong is journaled or closes its socket; each is answered by one error."""
    await world.worker()
    site = await world.site()
    client = await (site.client() if way == "openai" else site.duplex())
    if way == "duplex":
        await client.send("session.update", session=DUPLEX_SESSION)
    session_id = (await client.get("session.created"))["session"]["id"]
    if way == "duplex":
        await client.get("session.updated")
    for frame in BAD_FRAMES:
        await client.raw(frame)
        error = await client.next()
        assert ("error", False) == (error["type"], "server_event_seq" in error), frame
    await client.send("input_audio_buffer.clear", event_id="still here")
    assert "input_audio_buffer.cleared" == (await client.next())["type"]
    commands = [body for body in world.bodies(session_id) if isinstance(body, cmd.Command)]
    # The first mistake confirmed the attachment: its client has the token.
    first = [cmd.UpdateSession] if way == "duplex" else [cmd.ConfirmAttachment]
    assert [*first, cmd.ClearInput] == [type(command) for command in commands]


async def test_event_acks_are_never_journaled(world: World) -> None:
    """An ack confirms a new attachment once and leaves no other trace."""
    await world.worker()
    client = await (await world.site()).duplex()
    await client.send("session.heartbeat")
    session_id = (await client.get("session.created"))["session"]["id"]
    await client.get("session.heartbeat_ack")
    for seq in range(50):
        await client.send("session.event_ack", server_event_seq=seq)
    await client.send("input_audio_buffer.clear")
    await client.get("input_audio_buffer.cleared")
    commands = [type(body) for body in world.bodies(session_id) if isinstance(body, cmd.Command)]
    assert [cmd.Heartbeat, cmd.ClearInput] == commands


async def test_playback_acks_are_coalesced(world: World) -> None:
    """Of a burst of acks the first is journaled at once, and of the others the newest, an interval later."""
    worker, site = await world.worker(), await world.site()
    client = await site.duplex()
    await client.send("session.update", session=DUPLEX_SESSION)
    session_id = (await client.get("session.created"))["session"]["id"]
    await client.send("response.create")
    await worker.speak(session_id, 2)
    await client.get("response.done")
    for played_ms in range(1, 101):
        await client.send("playback.ack", played_ms=played_ms)
    while (await client.get("playback.acknowledged"))["playback"]["played_ms"] < 100:
        pass
    acks = [body for body in world.bodies(session_id) if isinstance(body, cmd.AckPlayback)]
    assert (1, 100) == (acks[0].played_ms, acks[-1].played_ms)
    assert len(acks) < 50


async def test_giant_frame_closes_its_own_socket_only(world: World) -> None:
    """A frame over the limit is answered by 1009; others on the gateway notice nothing; 15 MiB are taken."""
    await world.worker()
    site = await world.site()
    client, other = await site.client(), await site.client()
    session_id = (await client.next())["session"]["id"]
    await other.next()
    audio = bytes(15 << 20)
    await client.append(audio)
    await client.send("input_audio_buffer.clear")
    await client.get("input_audio_buffer.cleared")
    assert audio in [body.audio for body in world.bodies(session_id) if isinstance(body, cmd.AppendAudio)]
    with suppress(ConnectionClosed):  # The server may hang up before all of it is out.
        await client.append(bytes(17 << 20))
    assert 1009 == await client.closed()
    await other.send("input_audio_buffer.clear")
    assert "input_audio_buffer.cleared" == (await other.next())["type"]


async def test_client_closes_the_session(world: World) -> None:
    """`session.close` ends with `session.closed` and code 1000; only a digest is journaled after it."""
    await world.worker()
    site = await world.site()
    client = await site.duplex()
    await client.send("session.heartbeat")
    session_id = (await client.get("session.created"))["session"]["id"]
    await client.send("session.close")
    closed = await client.get("session.closed")
    assert "closed" == closed["reason"]
    assert 1000 == await client.closed()
    await site.released()
    assert isinstance(world.bodies(session_id)[-1], ev.OutboundDigest)


async def test_lost_client_is_detached(world: World) -> None:
    """When the socket is gone, the journal says so, behind everything the client sent."""
    worker = await world.worker()
    site = await world.site()
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    await client.append(bytes(960))
    await until(lambda: site.gateway.stats.commands == 1)
    client.connection.transport.abort()
    await worker.detached(session_id)
    await site.released()
    bodies = world.bodies(session_id)
    assert ev.ClientDetached(1) in bodies
    assert cmd.AppendAudio(bytes(960)) in bodies


@pytest.mark.parametrize(("path", "ended"), [("/v1/realtime", True), ("/v1/duplex", False)])
async def test_a_clean_close_is_the_end_on_openais_way(world: World, path: str, ended: bool) -> None:
    """OpenAI's clients say goodbye by closing; duplex clients have a word for it and may come back."""
    worker, site = await world.worker(), await world.site()
    client = await site.client(path)
    if not ended:
        await client.send("session.update", session={})
    session_id = (await client.get("session.created"))["session"]["id"]
    await client.connection.close()
    await site.released()
    state = await worker.state(
        session_id,
        lambda state: (
            state.phase is Phase.ENDED or (state.attachment.generation == 1 and not state.attachment.attached)
        ),
    )
    assert ended == (state.phase is Phase.ENDED)


async def test_digest_matches_a_fold(world: World) -> None:
    """What the gateway says it projected is what anybody's fold of the same entries gives."""
    worker, site = await world.worker(), await world.site(fast(digest_events=5))
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    await client.send("response.create")
    await worker.speak(session_id, 10)
    await client.get("response.done")
    await client.connection.close()
    await site.released()
    fold, seen = Fold(), {}
    for entry_id, data in await worker.store.read(session_id, START, 1_000):
        fold, _ = fold.step(entry_id, data)
        seen[tuple(entry_id)] = fold.outbound_digest()
    stated = [body for body in world.bodies(session_id) if isinstance(body, ev.OutboundDigest)]
    assert len(stated) >= 2
    for digest in stated:
        assert seen[tuple(digest.upto)] == digest


async def test_expired_session_closes_1001(world: World) -> None:
    """A deadline takes effect without any worker: coded error, `session.expired`, close 1001."""
    await world.worker()
    site = await world.site(fast(limits=Limits(max_session_ms=300, warn_before_ms=200)))
    client = await site.duplex()
    await client.send("session.heartbeat")
    events = await client.until("session.expired")
    assert EndReason.MAXIMUM == events[-1]["reason"]
    assert ["turn.event", "error", "session.expired"] == [event["type"] for event in events[-3:]]
    assert "session_expired" == events[-2]["error"]["code"]
    assert 1001 == await client.closed()


async def test_unreadable_entry_closes_1011(world: World) -> None:
    """An entry that nobody can fold ends its session with `internal_error`, and the gateway lives on."""
    await world.worker()
    site = await world.site()
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    await site.gateway.store.append(session_id, b"garbage")
    assert "internal_error" == (await client.get("error"))["error"]["code"]
    assert 1011 == await client.closed()
    assert "session.created" == (await (await site.client()).next())["type"]


async def test_stop_closes_1012_and_detaches(world: World) -> None:
    """A gateway that stops closes its sockets with 1012, and the journal knows that the client is gone."""
    worker, site = await world.worker(), await world.site()
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    await site.stop()
    assert 1012 == await client.closed()
    assert ev.ClientDetached(1) in world.bodies(session_id)
    assert {} == await worker.store.held(site.gateway.gateway_id)


async def test_store_outage_stops_reading_and_loses_nothing(world: World) -> None:
    """While the store is down input waits, bounded, and arrives in order later; nobody is told an error."""
    await world.worker()
    site = await world.site(fast(beat_ttl_ms=100))
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    world.server.available = False
    chunks = [bytes([n]) * 96_000 for n in range(200)]

    async def send() -> None:
        for chunk in chunks:
            await client.append(chunk)

    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send())
        await until(lambda: site.gateway.store.pending_bytes >= 256 << 10)
        # Longer than any heartbeat lives: time without a store makes nobody suspect.
        await until(lambda: site.gateway.store.last_contact_s() > 0.2)
        assert not sending.done()
        assert site.gateway.store.pending_bytes < 400_000
        world.server.restart()
    await client.send("input_audio_buffer.clear")
    assert "input_audio_buffer.cleared" == (await client.next())["type"]
    appended = [body.audio for body in world.bodies(session_id) if isinstance(body, cmd.AppendAudio)]
    assert chunks == appended
    assert ev.ClientDetached(1) not in world.bodies(session_id)


async def test_client_lost_in_an_outage_is_detached_after_it(world: World) -> None:
    """A client that leaves while the store is down is detached and released once the store is back."""
    worker, site = await world.worker(), await world.site()
    client = await site.client()
    session_id = (await client.next())["session"]["id"]
    world.server.available = False
    await client.append(bytes(960))
    await until(lambda: site.gateway.stats.commands == 1)
    client.connection.transport.abort()
    await until(lambda: site.gateway.stats.sockets == 0)
    world.server.restart()
    await worker.detached(session_id)
    await site.released()
    assert cmd.AppendAudio(bytes(960)) in world.bodies(session_id)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 401),
        ({"additional_headers": {"Authorization": "Bearer wrong"}}, 401),
        ({"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]}, 401),
        ({"additional_headers": {"Authorization": "Bearer key"}, "origin": "https://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("target", ["/v1/realtime", "/v1/duplex"])
async def test_bad_key_is_refused_before_the_upgrade(
    world: World, target: str, options: Any, status: int
) -> None:
    """A wrong key or a foreign origin gets an HTTP status on every route, never a socket."""
    site = await world.site(fast(api_keys=("key",), allowed_origins=("https://good.example",)))
    with pytest.raises(InvalidStatus) as caught:
        await site.client(target, **options)
    assert status == caught.value.response.status_code


async def test_good_keys(world: World) -> None:
    """A key opens as a header or as a subprotocol, of which only `realtime` is echoed."""
    await world.worker()
    site = await world.site(fast(api_keys=("key", "other")))
    bearer = await site.client(additional_headers={"Authorization": "Bearer other"})
    assert "session.created" == (await bearer.next())["type"]
    browser = await site.client(subprotocols=["realtime", "openai-insecure-api-key.key"])
    assert ("realtime", "session.created") == (browser.connection.subprotocol, (await browser.next())["type"])


async def test_http(world: World) -> None:
    """Operators can ask for health, readiness and models."""
    site = await world.site()
    status, body = await http_get(site.port, "/health")
    health = msgspec.json.decode(body)
    assert (200, "ok", 0) == (status, health["status"], health["stats"]["sockets"])
    assert 503 == (await http_get(site.port, "/ready"))[0]
    await world.worker()
    await until(lambda: bool(site.gateway.fleet.workers))
    assert 200 == (await http_get(site.port, "/ready"))[0]
    models = msgspec.json.decode((await http_get(site.port, "/v1/models"))[1])
    assert ["loopback"] == [model["id"] for model in models["data"]]
    status, metrics = await http_get(site.port, "/metrics")
    assert 200 == status
    assert b"# TYPE duplex_gateway_sockets gauge\nduplex_gateway_sockets 0\n" in metrics


async def http_get(port: int, path: str) -> tuple[int, bytes]:
    """One request; its status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body
