"""Crashes and cut connections: on a real server, and on the memory server's switches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from eventstore import (
    Entry,
    EventStore,
    Follower,
    JournalRolledBack,
    MemoryServer,
    RedisEventStore,
    StoreUnavailable,
    ValkeyServer,
    new_session_id,
)
from tests.eventstore.support import (
    PATIENCE_S,
    collect,
    memory_backend,
    numbered,
    options,
    payloads,
    until,
)


def folded(entries: Iterable[Entry]) -> list[int]:
    """The numbers that a fold takes: of the next expected number only, everything else is dropped."""
    taken: list[int] = []
    for entry in entries:
        if int(entry.data.split(b":")[0]) == len(taken) + 1:
            taken.append(len(taken) + 1)
    return taken


async def append_numbered(store: EventStore, session_id: str, count: int) -> None:
    """Append numbered payloads of 1 kB as fast as there is room, and wait for all acknowledgements."""
    writer = store.writer(session_id)
    for number in range(1, count + 1):
        await writer.room()
        writer.append(b"%d:" % number + b"x" * 1000)
        await asyncio.sleep(0.001)
    await writer.flush()


async def follow_numbered(follower: Follower, count: int) -> list[Entry]:
    """Follow until the fold has taken `count` numbers."""
    entries: list[Entry] = []
    async for batch in follower:
        entries += batch
        if len(folded(entries)) == count:
            break
    return entries


async def check_under_faults(writing: EventStore, reading: EventStore, fault: AsyncIterator[None]) -> None:
    """
    Write and follow several sessions while faults happen; every payload must be there, in order, read once.
    """
    count = 300
    session_ids = [new_session_id() for _ in range(5)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        following = [
            tasks.create_task(follow_numbered(reading.follow(session_id), count))
            for session_id in session_ids
        ]
        for session_id in session_ids:
            tasks.create_task(append_numbered(writing, session_id, count))
        async for _ in fault:
            pass
    for session_id, followed in zip(session_ids, following, strict=True):
        stored = await reading.read(session_id, limit=10_000)
        assert list(range(1, count + 1)) == folded(stored)
        assert stored[: len(followed.result())] == followed.result()


@pytest.mark.integration
@pytest.mark.parametrize("durability", ["relaxed", "durable"])
async def test_nothing_is_lost_or_reordered_when_the_server_is_killed(
    tmp_path: Path, durability: str
) -> None:
    """Kill -9 of a server with an always-synced file, twice under load: writers resend, followers go on."""
    async with ValkeyServer(tmp_path, fsync="always") as server:
        writing = RedisEventStore(server.url, durability="durable", options=options())
        if durability == "relaxed":
            writing = RedisEventStore(server.url, options=options())
        reading = RedisEventStore(server.url, options=options())

        async def killing() -> AsyncIterator[None]:
            for kills in (1, 2):
                target = writing.stats.appended_entries + 200
                await until(lambda target=target: writing.stats.appended_entries >= target)  # type: ignore[misc]
                await server.kill()
                await server.start()
                await until(lambda kills=kills: reading.stats.reader_connects > kills)  # type: ignore[misc]
                yield

        async with writing, reading:
            await check_under_faults(writing, reading, killing())
            assert writing.stats.append_failures > 0


@pytest.mark.integration
async def test_cut_connections_lose_nothing(tmp_path: Path) -> None:
    """Every connection is cut again and again under load: writers resend, followers and hints reconnect."""
    async with ValkeyServer(tmp_path, fsync="never") as server:
        writing = RedisEventStore(server.url, options=options())
        reading = RedisEventStore(server.url, options=options())
        admin = Redis.from_url(server.url, protocol=2)

        async def cutting() -> AsyncIterator[None]:
            for cuts in range(1, 6):
                target = writing.stats.appended_entries + 100
                await until(lambda target=target: writing.stats.appended_entries >= target)  # type: ignore[misc]
                for kind in ("normal", "pubsub"):
                    await admin.client_kill_filter(_type=kind, skipme=True)
                await until(lambda cuts=cuts: reading.stats.reader_connects > cuts)  # type: ignore[misc]
                yield

        async with writing, reading:
            await check_under_faults(writing, reading, cutting())
        await admin.aclose()


@pytest.mark.integration
async def test_a_full_server_delays_appends_but_drops_none(tmp_path: Path) -> None:
    """Appends that the server refuses for want of memory are sent again, in order, until it takes them."""
    async with ValkeyServer(tmp_path, fsync="never") as server:
        admin = Redis.from_url(server.url, protocol=2)
        async with RedisEventStore(server.url, options=options()) as store:
            session_id = new_session_id()
            writer = store.writer(session_id)
            await writer.append(b"1")
            await admin.config_set("maxmemory", "1")
            later = [writer.append(data) for data in numbered(9, 2)]
            await until(lambda: store.stats.append_failures >= 3)
            assert not any(future.done() for future in later)
            await admin.config_set("maxmemory", "0")
            await asyncio.wait_for(writer.flush(), PATIENCE_S)
            assert numbered(10) == [entry.data for entry in await store.read(session_id)]
        await admin.aclose()


@pytest.mark.integration
async def test_a_server_that_lost_entries_is_noticed(tmp_path: Path) -> None:
    """A server that comes back without its data ends the followers that had read it."""
    server = ValkeyServer(tmp_path, fsync="never")
    async with server, RedisEventStore(server.url, options=options()) as store:
        session_id = new_session_id()
        await store.append(session_id, b"1")
        follower = store.follow(session_id)
        await collect(follower, 1)
        await server.kill()
        await server.start()
        await store.append(session_id, b"other")
        with pytest.raises(JournalRolledBack):
            await collect(follower, 1)


@pytest.mark.integration
async def test_opening_without_a_server_is_an_error(tmp_path: Path) -> None:
    """Opening a store says at once that there is no server."""
    server = ValkeyServer(tmp_path)
    with pytest.raises(StoreUnavailable):
        async with RedisEventStore(server.url):
            pass


@pytest.mark.integration
async def test_a_cancelled_call_leaves_no_reply_behind(tmp_path: Path) -> None:
    """After calls cancelled at any moment, the next one gets its own reply."""
    async with ValkeyServer(tmp_path, fsync="never") as server, RedisEventStore(server.url) as store:
        session_ids = [new_session_id() for _ in range(30)]
        for number, session_id in enumerate(session_ids):
            await store.append(session_id, b"%d" % number)
        for number, session_id in enumerate(session_ids):
            call = asyncio.ensure_future(store.read(session_ids[0]))
            for _ in range(number % 6):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            assert [b"%d" % number] == [entry.data for entry in await store.read(session_id)]


async def test_an_outage_delays_appends_and_followers() -> None:
    """While the server is down appends wait; then all arrive in order and followers go on."""
    server = MemoryServer()
    async with memory_backend(server).store() as store:
        session_id = new_session_id()
        writer, follower = store.writer(session_id), store.follow(session_id)
        await writer.append(b"1")
        server.available = False
        for data in numbered(9, 2):
            writer.append(data)
        await until(lambda: store.stats.append_failures >= 2)
        server.restart()
        assert numbered(10) == await payloads(follower, 10)


async def test_lost_hints_only_delay() -> None:
    """Without any hint the sweep finds the entries."""
    server = MemoryServer()
    async with memory_backend(server).store() as store:
        session_id = new_session_id()
        follower = store.follow(session_id)
        server.losing_hints = True
        for data in numbered(5):
            await store.append(session_id, data)
        assert numbered(5) == await payloads(follower, 5)


async def test_a_lost_tail_ends_the_followers_that_read_it() -> None:
    """A rollback names the newest survivor and hands out nothing that was lost, even behind new entries."""
    server = MemoryServer()
    async with memory_backend(server).store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(5)]
        reader, idle = store.follow(session_id), store.follow(session_id)
        await collect(reader, 5)
        await until(lambda: idle.buffered_bytes == 5)
        server.available = False
        server.lose_tail(session_id, ids[2])
        server.restart()
        await store.append(session_id, b"new")
        with pytest.raises(JournalRolledBack) as caught:
            await collect(reader, 1)
        assert (ids[4], ids[2]) == (caught.value.cursor, caught.value.last)
        assert ids[:3] == [entry.id for entry in await collect(idle, 3)]
        with pytest.raises(JournalRolledBack):
            await collect(idle, 1)
