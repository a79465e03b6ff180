"""Sessions that outlive their sockets, gateways and workers: resume, takeover, slow readers, the reaper."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from eventstore.errors import StoreUnavailable
from eventstore.ids import EntryId, new_session_id
from eventstore.records import Entry
from session_core import events as ev
from session_core.config import Limits
from session_core.fleet import slot_member
from session_core.journal import encode_entry
from tests.api.conftest import Client, Site, World, fast, until

DUPLEX_SESSION = {"model": "loopback", "extra_body": {"auto_response": True}}


async def opened(site: Site) -> tuple[Client, str, str]:
    """A duplex client with its session id and token, `session.updated` (number 1) read."""
    client = await site.duplex()
    await client.send("session.update", session=DUPLEX_SESSION)
    created = await client.get("session.created")
    await client.get("session.updated")
    return client, created["session"]["id"], created["resume_token"]


async def resuming(site: Site, session_id: str, token: str, seq: int) -> Client:
    """A new connection that asks to go on after event `seq`."""
    client = await site.duplex()
    await client.send(
        "session.resume", session_id=session_id, resume_token=token, last_received_server_event_seq=seq
    )
    return client


def numbers(events: list[dict[str, Any]]) -> list[int]:
    """The replay cursors of these events."""
    return [event["server_event_seq"] for event in events if "server_event_seq" in event]


async def test_resume_through_another_gateway(world: World) -> None:
    """A dropped client finds its session on another gateway: all that it missed, then what is new."""
    worker, site, other = await world.worker(), await world.site(), await world.site()
    client, session_id, token = await opened(site)
    await client.append(bytes(3_200))
    await client.send("response.create", event_id="create-1")
    state = await worker.asked(session_id)
    await client.get("response.created")
    await client.connection.close()
    units = worker.units(state, [bytes(3_840)] * 5)
    await worker.write(session_id, state, *units[:3])

    resumed = await resuming(other, session_id, token, 2)
    first = await resumed.next()
    assert ("session.resumed", False) == (first["type"], "server_event_seq" in first)
    assert (2, 100, 3_200, "create-1") == (
        first["attachment_generation"],
        first["input_audio_received_ms"],
        first["input_audio_received_bytes"],
        first["last_client_event_id"],
    )
    assert first["resume_token"] not in ("", token)
    await worker.write(session_id, state, *units[3:])
    events = await resumed.until("rate_limits.updated")
    assert list(range(3, 3 + len(events))) == numbers(events)
    assert 5 == sum(event["type"] == "response.output_audio.delta" for event in events)
    await resumed.send("session.heartbeat")
    assert "session.heartbeat_ack" == (await resumed.next())["type"]


async def test_stock_client_resumes_by_query(world: World) -> None:
    """A stock client continues by its URL, and is shown a session created and what it missed, no tier 3."""
    worker, site, other = await world.worker(), await world.site(), await world.site()
    client = await site.client()
    created = await client.next()
    session_id, token = created["session"]["id"], created["resume_token"]
    client.connection.transport.abort()
    await worker.detached(session_id)
    await worker.store.append(session_id, encode_entry(ev.ClientDetached(1)))
    target = f"/v1/realtime?session_id={session_id}&resume_token={token}&last_received_server_event_seq=0"
    again = await other.client(target)
    first = await again.next()
    assert ("session.created", session_id) == (first["type"], first["session"]["id"])
    await again.send("response.create")
    await worker.speak(session_id, 1)
    types = {event["type"] for event in await again.until("rate_limits.updated")}
    assert types.isdisjoint({"response.speak", "conversation.item.created", "session.resumed"})


async def test_takeover(world: World) -> None:
    """A second client takes a live session: the first is told and closed, its old token is worth nothing."""
    await world.worker()
    site, other = await world.site(), await world.site()
    client, session_id, token = await opened(site)
    taker = await resuming(other, session_id, token, 1)
    resumed = await taker.next()
    assert "session.resumed" == resumed["type"]
    replaced = await client.get("session.replaced")
    assert ("session.replaced", False) == (replaced["type"], "server_event_seq" in replaced)
    assert 4001 == await client.closed()
    await taker.send("session.heartbeat")  # Shows that it has the new token.
    await taker.get("session.heartbeat_ack")
    loser = await resuming(site, session_id, token, 1)
    assert "invalid_resume_token" == (await loser.next())["error"]["code"]
    assert 1008 == await loser.closed()
    await taker.send("input_audio_buffer.clear")
    assert "input_audio_buffer.cleared" == (await taker.next())["type"]
    bodies = world.bodies(session_id)
    assert not [body for body in bodies if body in (ev.ClientDetached(1), ev.ClientDetached(2))]


async def test_lost_answers_cost_nothing(world: World) -> None:
    """A client whose resume answers never arrive may go on with its old token as long as it likes."""
    await world.worker()
    site, other = await world.site(), await world.site()
    client, session_id, token = await opened(site)
    await client.send("session.event_ack", server_event_seq=1)
    await client.connection.close()
    for attempt in range(3):
        lost = await resuming(other if attempt % 2 else site, session_id, token, 1)
        await lost.next()
        lost.connection.transport.abort()
    final = await resuming(other, session_id, token, 1)
    resumed = await final.next()
    assert ("session.resumed", 5) == (resumed["type"], resumed["attachment_generation"])


async def test_two_clients_with_one_token(world: World) -> None:
    """Of two that resume at once the journal takes one; the other is refused and changes nothing."""
    await world.worker()
    site, other = await world.site(), await world.site()
    client, session_id, token = await opened(site)
    await client.connection.close()
    pair = [await resuming(site, session_id, token, 1), await resuming(other, session_id, token, 1)]
    answers = [await one.next() for one in pair]
    kinds = sorted(answer["type"] for answer in answers)
    if kinds == ["session.resumed", "session.resumed"]:
        # The second came after the first: a takeover, in order.
        assert {2, 3} == {answer["attachment_generation"] for answer in answers}
    else:
        assert ["error", "session.resumed"] == kinds
        refused = next(answer for answer in answers if answer["type"] == "error")
        assert "session_resume_conflict" == refused["error"]["code"]


async def test_the_loser_leaves_the_winners_hold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two claims of one generation through one gateway share a hold; it stays as long as the winner."""
    await world.worker()
    site = await world.site()
    client, session_id, token = await opened(site)
    await client.connection.close()
    store, both = site.gateway.store, asyncio.Barrier(2)
    hold = store.hold

    async def together(process_id: str, member: str, capacity: int | None) -> bool:
        await both.wait()
        return await hold(process_id, member, capacity)

    monkeypatch.setattr(store, "hold", together)
    pair = [await resuming(site, session_id, token, 1) for _ in range(2)]
    answers = [await one.next() for one in pair]
    assert ["error", "session.resumed"] == sorted(answer["type"] for answer in answers)
    await until(lambda: site.gateway.stats.websockets == 1)
    assert [slot_member(session_id, 2)] == [*await store.held(site.gateway.gateway_id)]


@pytest.mark.parametrize(
    ("session_id", "token", "code"),
    [
        (None, "wrong", "invalid_resume_token"),
        (new_session_id(), "t", "session_resume_expired"),
        ("../../etc", "t", "session_resume_expired"),
    ],
)
async def test_bad_resume(world: World, session_id: str | None, token: str, code: str) -> None:
    """A wrong token or an unknown session is refused finally, and leaves no trace in any journal."""
    await world.worker()
    site = await world.site()
    _, real_id, _ = await opened(site)
    before = len(world.bodies(real_id))
    client = await resuming(site, session_id or real_id, token, 0)
    assert code == (await client.next())["error"]["code"]
    assert 1008 == await client.closed()
    assert before == len(world.bodies(real_id))


async def test_resume_of_an_ended_session(world: World) -> None:
    """A session that has ended cannot be resumed."""
    await world.worker()
    site = await world.site()
    client, session_id, token = await opened(site)
    await client.send("session.close")
    await client.closed()
    late = await resuming(site, session_id, token, 1)
    assert "session_resume_expired" == (await late.next())["error"]["code"]


async def test_resume_beyond_the_journal(world: World) -> None:
    """A trimmed journal, or a number it never gave, asks for a resync; never a silent skip."""
    await world.worker()
    site = await world.site(fast(snapshot_entries=0))
    client, session_id, token = await opened(site)
    ahead = await resuming(site, session_id, token, 99)
    assert ("session.resync_required", "journal_rollback") == tuple((await ahead.next()).values())[0::2]
    await client.send("session.heartbeat")
    await client.get("session.heartbeat_ack")
    last = world.server.journals[session_id].entries[-1].id
    await site.gateway.store.trim(session_id, EntryId(*last))
    behind = await resuming(site, session_id, token, 1)
    event = await behind.next()
    assert ("session.resync_required", "journal_gap") == (event["type"], event["reason"])


async def test_resume_while_the_store_is_down(world: World) -> None:
    """A resume that the store cannot answer is refused with a code that lets clients try again."""
    await world.worker()
    site = await world.site()
    client, session_id, token = await opened(site)
    await client.connection.close()
    world.server.available = False
    refused = await resuming(site, session_id, token, 1)
    assert "resource_exhausted" == (await refused.next())["error"]["code"]
    assert 1013 == await refused.closed()
    world.server.restart()
    assert "session.resumed" == (await (await resuming(site, session_id, token, 1)).next())["type"]


async def test_resume_from_a_snapshot(world: World) -> None:
    """The snapshot that a connection leaves serves the next one when the journal's beginning is trimmed."""
    worker, site = await world.worker(), await world.site()
    client, session_id, token = await opened(site)
    await client.connection.close()
    await site.released()
    await until(lambda: session_id in world.server.snapshots)
    snapshot = await worker.store.load_snapshot(session_id)
    assert snapshot is not None
    await worker.store.trim(session_id, snapshot[0])
    resumed = await resuming(site, session_id, token, 1)
    assert "session.resumed" == (await resumed.next())["type"]


async def test_snapshot_of_lost_entries_is_not_used(world: World) -> None:
    """A snapshot taken at an entry that the store lost since is void: the fold starts before it."""
    await world.worker()
    site = await world.site()
    client, session_id, token = await opened(site)
    await client.connection.close()
    await site.released()
    await until(lambda: session_id in world.server.snapshots)
    world.server.lose_tail(session_id, world.server.journals[session_id].entries[2].id)
    resumed = await resuming(site, session_id, token, 1)
    event = await resumed.next()
    assert ("session.resync_required", "journal_rollback") == (event["type"], event["reason"])


async def test_slow_reader_is_bounded_and_gets_everything(world: World) -> None:
    """A client that reads nothing while megabytes come costs a bounded buffer, and misses nothing."""
    worker, site = await world.worker(), await world.site()
    client, session_id, _ = await opened(site)
    await client.send("response.create")
    state = await worker.asked(session_id)
    client.connection.transport.pause_reading()
    chunks = [bytes([n % 251]) * 96_000 for n in range(120)]
    most = 0
    for body in worker.units(state, chunks):
        await worker.write(session_id, state, body)
        most = max(most, site.gateway.stats.pending_bytes)
    await until(lambda: site.gateway.stats.lagged > 0)
    assert most <= site.gateway.settings.pending_bytes
    client.connection.transport.resume_reading()
    events = await client.until("rate_limits.updated")
    assert list(range(2, 2 + len(events))) == numbers(events)
    deltas = [event for event in events if event["type"] == "response.output_audio.delta"]
    assert chunks == [base64.b64decode(event["delta"]) for event in deltas]
    # And it is live again.
    await client.send("session.heartbeat")
    assert "session.heartbeat_ack" == (await client.next())["type"]


async def test_cancelled_audio_behind_a_slow_reader_is_discarded(world: World) -> None:
    """Audio of a cancelled response that has not been sent keeps its numbers and loses its content."""
    worker, site = await world.worker(), await world.site()
    client, session_id, _ = await opened(site)
    await client.send("response.create")
    state = await worker.asked(session_id)
    client.connection.transport.pause_reading()
    for body in worker.units(state, [bytes(96_000)] * 100, end=False):
        await worker.write(session_id, state, body)
    await client.send("response.cancel")
    await worker.state(session_id, lambda state: state.epoch == 1)
    await until(lambda: site.gateway.stats.lagged > 0)
    client.connection.transport.resume_reading()
    events = await client.until("rate_limits.updated")
    assert list(range(2, 2 + len(events))) == numbers(events)
    deltas = [event for event in events if event["type"] == "response.output_audio.delta"]
    discarded = [
        event["delta"] == "" and event["metadata"]["discarded"] for event in deltas if not event["delta"]
    ]
    assert all(discarded)
    assert 50 < len(discarded) < 100 == len(deltas)
    await client.send("response.create")
    await worker.speak(session_id, 1, epoch=1)
    assert [3_840] == [
        len(base64.b64decode(event["delta"]))
        for event in await client.until("response.done")
        if event["type"] == "response.output_audio.delta"
    ]


async def test_stuck_reader_is_closed_and_may_resume(world: World) -> None:
    """A client that takes nothing for too long loses its socket, not its session."""
    worker, site = (
        await world.worker(),
        await world.site(fast(slow_reader_timeout_s=0.1, drain_timeout_s=0.1)),
    )
    client, session_id, token = await opened(site)
    await client.send("response.create")
    state = await worker.asked(session_id)
    client.connection.transport.pause_reading()
    for body in worker.units(state, [bytes(96_000)] * 100):
        await worker.write(session_id, state, body)
    await worker.detached(session_id)
    assert 1 == site.gateway.stats.evicted
    resumed = await resuming(site, session_id, token, 1)
    assert "session.resumed" == (await resumed.next())["type"]
    await resumed.until("rate_limits.updated")
    client.connection.transport.abort()


async def test_takeover_of_a_stuck_reader(world: World) -> None:
    """A takeover does not wait for the old client, however little that one reads."""
    worker, site = await world.worker(), await world.site(fast(drain_timeout_s=0.1))
    client, session_id, token = await opened(site)
    await client.send("response.create")
    state = await worker.asked(session_id)
    client.connection.transport.pause_reading()
    for body in worker.units(state, [bytes(96_000)] * 60):
        await worker.write(session_id, state, body)
    taker = await resuming(site, session_id, token, 1)
    assert "session.resumed" == (await taker.next())["type"]
    events = await taker.until("rate_limits.updated")
    assert list(range(2, 2 + len(events))) == numbers(events)
    await until(lambda: site.gateway.stats.sockets == 1)
    client.connection.transport.abort()


async def test_rollback_asks_for_a_resync(world: World) -> None:
    """When the store lost entries that the gateway has folded, the client is told, the session let go."""
    worker, site = await world.worker(), await world.site()
    client, session_id, _ = await opened(site)
    kept = world.server.journals[session_id].entries[2].id
    await client.send("session.heartbeat")
    await client.get("session.heartbeat_ack")
    world.server.lose_tail(session_id, kept)
    world.server.restart()
    event = await client.get("session.resync_required")
    assert "journal_rollback" == event["reason"]
    assert 1011 == await client.closed()
    await worker.detached(session_id)


# --- the reaper ---------------------------------------------------------------------------------------------


async def test_dead_worker_is_replaced(world: World) -> None:
    """When a worker's heartbeat is gone, its sessions get another worker, and its slots are freed."""
    worker, site = await world.worker(), await world.site()
    client, session_id, _ = await opened(site)
    second = await world.worker("worker-2")
    await worker.beat(0)
    state = await second.state(session_id, lambda state: state.worker.generation == 2)
    assert "worker-2" == state.worker.worker
    assert slot_member(session_id, 2) in await second.store.held("worker-2")
    await client.send("response.create")
    await second.speak(session_id, 1)
    assert "completed" == (await client.get("response.done"))["response"]["status"]
    await until(lambda: not world.server.slots.get("worker-1"))


async def test_declined_session_finds_a_worker_later(world: World) -> None:
    """A session whose worker declined waits until there is another, and then has it."""
    worker, site = await world.worker(capacity=1), await world.site()
    _, session_id, _ = await opened(site)
    await worker.store.append(session_id, encode_entry(ev.AssignmentDeclined(1, "full")))
    await worker.state(session_id, lambda state: state.worker.worker is None and state.worker.generation == 1)
    second = await world.worker("worker-2")
    state = await second.state(session_id, lambda state: state.worker.generation == 2)
    assert "worker-2" == state.worker.worker


async def test_an_outage_is_no_mistake_of_the_reaper(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer in the middle of a sweep is no failure; the reaper goes on."""
    await world.worker()
    site = await world.site()
    _, session_id, _ = await opened(site)
    reaper, reads = site.gateway.reaper, 0

    async def unavailable(*_: object) -> list[Entry]:
        nonlocal reads
        reads += 1
        reaper.suspect(session_id)
        raise StoreUnavailable("connection lost")

    with capture_logs() as logs:
        monkeypatch.setattr(site.gateway.store, "read", unavailable)
        reaper.suspect(session_id)
        await until(lambda: reads > 1)
    assert "reaper.failed" not in [line["event"] for line in logs]


async def test_dead_gateway_is_reaped(world: World) -> None:
    """What a dead gateway held is declared detached by another one, so that the grace period runs."""
    worker, site = await world.worker(), await world.site()
    client, session_id, _ = await opened(site)
    dead = await world.store()
    member = slot_member(session_id, 1)
    # Another process's name holds the attachment and has stopped beating.
    info = next(p.info for p in await dead.processes() if p.id == site.gateway.gateway_id)
    await dead.beat("gateway-dead", info, 0)
    await dead.hold("gateway-dead", member, None)
    await worker.detached(session_id)
    # The suspicion was wrong here: the living gateway reads it and lets its client come back.
    assert 1012 == await client.closed()
    await until(lambda: "gateway-dead" not in world.server.heartbeats)


async def test_dead_worker_with_nothing_real_is_forgotten(world: World) -> None:
    """Slots that name no session, or none that exists, are freed, and the dead process forgotten."""
    worker = await world.worker()
    for member in ("nonsense", "not-a-session:1", slot_member(new_session_id(), 1)):
        await worker.store.hold("worker-1", member, None)
    await worker.beat(0)
    await world.site()
    await until(lambda: "worker-1" not in world.server.heartbeats)
    assert not world.server.slots.get("worker-1")


async def test_grace_ends_a_session_nobody_resumes(world: World) -> None:
    """A session without a client ends after its grace period, by whichever gateway is there."""
    worker = await world.worker()
    site = await world.site(fast(limits=Limits(disconnect_grace_ms=50)))
    client, session_id, token = await opened(site)
    await client.connection.close()
    state = await worker.state(session_id, lambda state: state.phase == "ended")
    assert "disconnect_grace" == state.end_reason
    late = await resuming(site, session_id, token, 1)
    assert "session_resume_expired" == (await late.next())["error"]["code"]
