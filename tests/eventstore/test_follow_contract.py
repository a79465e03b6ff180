"""Following journals, on every back end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from eventstore import (
    START,
    EntryId,
    Follower,
    JournalGap,
    JournalRolledBack,
    UnknownSession,
    new_session_id,
)
from tests.eventstore.support import PATIENCE_S, Backend, collect, numbered, payloads, until


async def test_a_follower_gets_what_is_there_and_what_comes(backend: Backend) -> None:
    """Following goes over from stored entries to new ones without a seam."""
    async with backend.store() as store:
        session_id = new_session_id()
        writer = store.writer(session_id)
        await asyncio.gather(*[writer.append(data) for data in numbered(70)])
        follower = store.follow(session_id)
        assert numbered(70) == await payloads(follower, 70)
        await asyncio.gather(*[writer.append(data) for data in numbered(70, 71)])
        assert numbered(70, 71) == await payloads(follower, 70)


async def test_a_follower_may_come_before_the_journal(backend: Backend) -> None:
    """From START a follower waits for a journal that does not exist yet."""
    async with backend.store() as store:
        session_id = new_session_id()
        follower = store.follow(session_id)
        waiting = asyncio.ensure_future(anext(follower))
        await until(lambda: store.stats.sweeps >= 3)
        await store.append(session_id, b"1")
        assert [b"1"] == [entry.data for entry in await asyncio.wait_for(waiting, PATIENCE_S)]


async def test_every_follower_of_many_sessions_gets_each_entry_once(backend: Backend) -> None:
    """Several followers of many sessions, in two processes, at any cursor: each entry once, in order."""
    async with backend.store() as one, backend.store() as other:
        session_ids = [new_session_id() for _ in range(20)]
        writers = [one.writer(session_id) for session_id in session_ids]
        firsts = await asyncio.gather(*[writer.append(b"1") for writer in writers])
        jobs = []
        for session_id, first in zip(session_ids, firsts, strict=True):
            jobs += [(store.follow(session_id, START), numbered(40)) for store in (one, one, other)]
            jobs.append((one.follow(session_id, first), numbered(39, 2)))

        async def check(follower: Follower, expected: list[bytes]) -> None:
            assert expected == await payloads(follower, len(expected))

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for follower, expected in jobs:
                tasks.create_task(check(follower, expected))
            for data in numbered(39, 2):
                for writer in writers:
                    writer.append(data)
                await asyncio.sleep(0)


async def test_two_followers_at_different_cursors_do_not_mix(backend: Backend) -> None:
    """Followers of one session lag independently."""
    async with backend.store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(10)]
        late, early = store.follow(session_id, ids[6]), store.follow(session_id, ids[2])
        assert ids[7:] == [entry.id for entry in await collect(late, 3)]
        assert ids[3:] == [entry.id for entry in await collect(early, 7)]
        assert (ids[-1], ids[-1]) == (late.cursor, early.cursor)


async def test_following_below_the_trim_point_is_a_gap(scripting: Backend) -> None:
    """A follower that starts where entries were trimmed is told, not moved."""
    async with scripting.store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(5)]
        await store.trim(session_id, ids[3])
        for cursor in (START, ids[1]):
            with pytest.raises(JournalGap) as caught:
                await collect(store.follow(session_id, cursor), 1)
            assert (cursor, ids[3]) == (caught.value.cursor, caught.value.first)
        assert ids[3:] == [entry.id for entry in await collect(store.follow(session_id, ids[2]), 2)]


async def test_a_lagging_follower_gets_its_buffer_and_then_the_gap(scripting: Backend) -> None:
    """A follower overtaken by a trim hands out what it had read, in order, and then raises the gap."""
    async with scripting.store(follower_buffer_bytes=1, read_entries=4) as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(12)]
        follower = store.follow(session_id)
        await until(lambda: follower.buffered_bytes > 0)
        await store.trim(session_id, ids[10])
        assert ids[:4] == [entry.id for entry in await collect(follower, 4)]
        with pytest.raises(JournalGap) as caught:
            await collect(follower, 1)
        assert (ids[3], ids[10]) == (caught.value.cursor, caught.value.first)


async def test_a_slow_follower_is_bounded_and_hurts_no_neighbour(backend: Backend) -> None:
    """A follower that nobody reads holds at most its limit and one read; its neighbour gets everything."""
    async with backend.store(follower_buffer_bytes=1000, read_entries=5) as store:
        session_id = new_session_id()
        slow, fast = store.follow(session_id), store.follow(session_id)
        writer = store.writer(session_id)
        data = [b"%03d" % n + b"x" * 97 for n in range(100)]
        for payload in data:
            writer.append(payload)
        assert data == await payloads(fast, 100)
        assert slow.buffered_bytes <= 1000 + 5 * 100
        assert data == await payloads(slow, 100)


async def test_a_cancelled_iteration_loses_nothing(backend: Backend) -> None:
    """Whenever an iteration is cancelled, the batches handed out hold each entry once, in order."""
    async with backend.store() as store:
        session_id = new_session_id()
        follower = store.follow(session_id)
        got: list[bytes] = []
        for number, data in enumerate(numbered(30)):
            waiting = asyncio.ensure_future(anext(follower))
            if number % 3:
                await store.append(session_id, data)
            else:
                store.writer(session_id).append(data)
                await asyncio.sleep(0)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                got += [entry.data for entry in await waiting]
        got += await payloads(follower, 30 - len(got))
        assert sorted(numbered(30)) == sorted(got)
        assert [entry.data for entry in await store.read(session_id)] == got


async def test_closing_ends_the_iteration(backend: Backend) -> None:
    """A waiting iteration ends when its follower is closed; closing again changes nothing."""
    async with backend.store() as store:
        follower = store.follow(new_session_id())
        waiting = asyncio.ensure_future(anext(follower, None))
        await asyncio.sleep(0)
        follower.close()
        follower.close()
        assert await asyncio.wait_for(waiting, PATIENCE_S) is None
        assert [] == [batch async for batch in follower]


async def test_other_followers_outlive_a_closed_one(backend: Backend) -> None:
    """Closing one of a session's followers leaves the other reading."""
    async with backend.store() as store:
        session_id = new_session_id()
        closed, kept = store.follow(session_id), store.follow(session_id)
        await store.append(session_id, b"1")
        assert [b"1"] == await payloads(kept, 1)
        closed.close()
        await store.append(session_id, b"2")
        assert [b"2"] == await payloads(kept, 1)


async def test_a_cursor_of_an_unknown_session_is_refused(backend: Backend) -> None:
    """Following from the middle of a journal that does not exist is an error."""
    async with backend.store() as store:
        with pytest.raises(UnknownSession):
            await collect(store.follow(new_session_id(), EntryId(1, 0)), 1)


async def test_a_deleted_journal_ends_its_followers(backend: Backend) -> None:
    """A follower that has read entries is told when the journal is deleted."""
    async with backend.store() as store:
        session_id = new_session_id()
        await store.append(session_id, b"1")
        follower = store.follow(session_id)
        await collect(follower, 1)
        await store.delete(session_id)
        with pytest.raises(UnknownSession):
            await collect(follower, 1)


async def test_a_cursor_that_the_journal_never_held_is_a_rollback(backend: Backend) -> None:
    """A cursor beyond the end was lost by the store; the error names the survivor before it."""
    async with backend.store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(2)]
        beyond = EntryId(ids[-1].ms + 1000, 0)
        with pytest.raises(JournalRolledBack) as caught:
            await collect(store.follow(session_id, beyond), 1)
        assert (beyond, ids[-1]) == (caught.value.cursor, caught.value.last)


async def test_the_cost_follows_the_entries_not_the_sessions(backend: Backend) -> None:
    """Reading for one busy session among many idle ones reads no idle one between sweeps."""
    async with backend.store(sweep_s=3600, read_coalesce_s=0) as store:
        followers = [store.follow(new_session_id()) for _ in range(150)]
        busy = followers[70]
        await store.append(busy.session_id, b"1")
        assert [b"1"] == await payloads(busy, 1)
        # Each subscription counts as a hint once, when it takes effect; after that only appends do.
        await until(lambda: backend.name == "memory" or store.stats.hints >= 150)
        await store.append(busy.session_id, b"2")
        await collect(busy, 1)
        before = store.stats.read_positions
        for data in numbered(20, 3):
            await store.append(busy.session_id, data)
            assert [data] == await payloads(busy, 1)
        assert store.stats.read_positions - before <= 21
