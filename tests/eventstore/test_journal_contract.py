"""Appending, reading and trimming, on every back end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventstore import (
    START,
    EntryId,
    EntryTooLarge,
    InvalidSessionId,
    JournalGap,
    StoreClosed,
    UnknownSession,
    new_session_id,
)
from tests.eventstore.support import Backend, numbered


async def test_entries_are_read_in_the_order_of_their_appends(backend: Backend) -> None:
    """One writer's entries stand in the journal in order, each once, with growing ids."""
    async with backend.store() as store:
        session_id = new_session_id()
        writer = store.writer(session_id)
        ids = await asyncio.gather(*[writer.append(data) for data in numbered(100)])
        entries = await store.read(session_id)
        assert numbered(100) == [entry.data for entry in entries]
        assert ids == [entry.id for entry in entries]
        assert sorted(set(ids)) == ids


async def test_read_goes_on_from_a_cursor_up_to_its_limit(backend: Backend) -> None:
    """A read returns the entries after its cursor, at most as many as asked for, and none at the end."""
    async with backend.store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(5)]
        assert ids[1:3] == [entry.id for entry in await store.read(session_id, ids[0], limit=2)]
        assert [] == await store.read(session_id, ids[-1])


async def test_binary_payloads_survive(backend: Backend) -> None:
    """A payload is any bytes, also none at all."""
    async with backend.store() as store:
        session_id = new_session_id()
        data = [b"", bytes(range(256)), b"\r\n" * 5000]
        for payload in data:
            await store.append(session_id, payload)
        assert data == [entry.data for entry in await store.read(session_id)]


async def test_reading_an_unknown_session_is_an_error(backend: Backend) -> None:
    """A journal that does not exist is told apart from one with nothing new."""
    async with backend.store() as store:
        session_id = new_session_id()
        with pytest.raises(UnknownSession) as caught:
            await store.read(session_id)
        assert session_id == caught.value.session_id


@pytest.mark.parametrize("call", ["read", "append", "follow", "register", "load_snapshot"])
async def test_only_session_ids_of_ours_are_taken(backend: Backend, call: str) -> None:
    """What is not a session id never becomes part of a key."""
    async with backend.store() as store:
        arguments = (b"x",) if call == "append" else ()
        method: Callable[..., Any] = getattr(store, call)

        async def called() -> None:
            await method("sess_17_{evil}", *arguments)

        with pytest.raises(InvalidSessionId):
            await called()


async def test_a_gap_is_raised_exactly_below_the_newest_trimmed_entry(scripting: Backend) -> None:
    """START and cursors before the newest trimmed entry are gaps; that entry and later ones are not."""
    async with scripting.store() as store:
        session_id = new_session_id()
        ids = [await store.append(session_id, data) for data in numbered(5)]
        assert 3 == await store.trim(session_id, ids[3])
        for cursor in (START, ids[0], ids[1]):
            with pytest.raises(JournalGap) as caught:
                await store.read(session_id, cursor)
            assert (cursor, ids[3]) == (caught.value.cursor, caught.value.first)
        assert ids[3:] == [entry.id for entry in await store.read(session_id, ids[2])]
        assert ids[4:] == [entry.id for entry in await store.read(session_id, ids[3])]


async def test_trimming_everything_leaves_a_journal_that_goes_on(scripting: Backend) -> None:
    """An emptied journal still exists: its end is a good cursor, before and after the next append."""
    async with scripting.store() as store:
        session_id = new_session_id()
        last = [await store.append(session_id, data) for data in numbered(3)][-1]
        assert 3 == await store.trim(session_id, last.next())
        assert await store.bounds(session_id) is None
        assert [] == await store.read(session_id, last)
        with pytest.raises(JournalGap):
            await store.read(session_id)
        await store.append(session_id, b"4")
        assert [b"4"] == [entry.data for entry in await store.read(session_id, last)]


async def test_trimming_nothing_makes_no_gap(scripting: Backend) -> None:
    """A trim that removes nothing changes nothing."""
    async with scripting.store() as store:
        session_id = new_session_id()
        first = await store.append(session_id, b"1")
        assert 0 == await store.trim(session_id, first)
        assert 0 == await store.trim(session_id, START)
        assert 0 == await store.trim(new_session_id(), first)
        assert [b"1"] == [entry.data for entry in await store.read(session_id)]


async def test_bounds_are_the_first_and_last_retained_entries(scripting: Backend) -> None:
    """Bounds follow appends and trims; a journal that does not exist has none."""
    async with scripting.store() as store:
        session_id = new_session_id()
        assert await store.bounds(session_id) is None
        ids = [await store.append(session_id, data) for data in numbered(4)]
        assert (ids[0], ids[3]) == await store.bounds(session_id)
        await store.trim(session_id, ids[2])
        assert (ids[2], ids[3]) == await store.bounds(session_id)


async def test_a_deleted_session_is_unknown(backend: Backend) -> None:
    """Deleting removes the journal, its snapshots, its directory entry and its deadline."""
    async with backend.store() as store:
        session_id = new_session_id()
        at = await store.append(session_id, b"1")
        await store.register(session_id)
        await store.schedule(session_id, 1)
        await store.save_snapshot(session_id, at, b"state")
        await store.delete(session_id)
        with pytest.raises(UnknownSession):
            await store.read(session_id)
        assert await store.load_snapshot(session_id) is None
        assert [] == await store.sessions()
        assert [] == await store.due(2, 10)


async def test_two_stores_share_one_server(backend: Backend) -> None:
    """What one process appends, another reads."""
    async with backend.store() as one, backend.store() as other:
        session_id = new_session_id()
        entry_id = await one.append(session_id, b"1")
        assert [(entry_id, b"1")] == await other.read(session_id)


async def test_what_is_queued_together_goes_out_together(backend: Backend) -> None:
    """Appends of many sessions, queued while nothing is in flight, cost one pipeline."""
    async with backend.store() as store:
        writers = [store.writer(new_session_id()) for _ in range(50)]
        await asyncio.gather(*[writer.append(b"x") for writer in writers for _ in range(4)])
        assert (1, 200) == (store.stats.append_pipelines, store.stats.appended_entries)


async def test_a_large_queue_goes_out_in_bounded_pipelines(backend: Backend) -> None:
    """A pipeline is bounded in bytes, and the writers' order holds over its border."""
    async with backend.store(pipeline_bytes=1000) as store:
        session_id = new_session_id()
        writer = store.writer(session_id)
        data = [b"%d:" % n + b"x" * 300 for n in range(10)]
        await asyncio.gather(*[writer.append(payload) for payload in data])
        assert data == [entry.data for entry in await store.read(session_id)]
        assert 3 < store.stats.append_pipelines <= 10


async def test_an_entry_over_the_limit_is_refused(backend: Backend) -> None:
    """An entry that is too large is refused at once, and the writer goes on."""
    async with backend.store(entry_bytes=10) as store:
        session_id = new_session_id()
        writer = store.writer(session_id)
        with pytest.raises(EntryTooLarge) as caught:
            writer.append(b"x" * 11)
        assert (11, 10) == (caught.value.size_bytes, caught.value.limit_bytes)
        await writer.append(b"x" * 10)
        assert 0 == writer.pending_bytes


async def test_flush_waits_for_what_was_appended_before(backend: Backend) -> None:
    """After a flush every earlier append is acknowledged."""
    async with backend.store() as store:
        writer = store.writer(new_session_id())
        acknowledged = [writer.append(data) for data in numbered(20)]
        assert 31 == writer.pending_bytes == store.pending_bytes
        await writer.flush()
        assert all(future.done() for future in acknowledged)
        assert 0 == writer.pending_bytes == store.pending_bytes


async def test_room_comes_back_when_entries_are_acknowledged(backend: Backend) -> None:
    """A writer over its limit of pending bytes waits for room until the store has caught up."""
    async with backend.store(writer_pending_bytes=100) as store:
        writer = store.writer(new_session_id())
        await writer.room()
        writer.append(b"x" * 100)
        assert not writer.has_room
        await writer.room()
        assert 0 == writer.pending_bytes


async def test_one_full_store_stops_every_writer(backend: Backend) -> None:
    """The limit over all writers holds back also a writer that has nothing pending."""
    async with backend.store(store_pending_bytes=100) as store:
        full, idle = store.writer(new_session_id()), store.writer(new_session_id())
        full.append(b"x" * 100)
        assert not idle.has_room
        await idle.room()
        assert idle.has_room


async def test_closing_a_writer_cancels_what_is_pending(backend: Backend) -> None:
    """A closed writer takes nothing more, its futures are cancelled and its bytes are free again."""
    async with backend.store() as store:
        writer = store.writer(new_session_id())
        acknowledged = writer.append(b"x")
        writer.close()
        writer.close()
        assert acknowledged.cancelled()
        assert 0 == store.pending_bytes
        with pytest.raises(StoreClosed):
            writer.append(b"y")
        with pytest.raises(StoreClosed):
            await writer.flush()


async def test_a_cancelled_append_leaves_the_others_alone(backend: Backend) -> None:
    """Cancelling one append's future takes nothing back and hurts no other."""
    async with backend.store() as store:
        session_id = new_session_id()
        writer = store.writer(session_id)
        given_up, kept = writer.append(b"1"), writer.append(b"2")
        given_up.cancel()
        assert isinstance(await kept, EntryId)
        assert numbered(2) == [entry.data for entry in await store.read(session_id)]


async def test_a_closed_store_takes_nothing(backend: Backend) -> None:
    """After close, writers and followers are refused and pending ones told."""
    async with backend.store() as store:
        session_id = new_session_id()
        writer, follower = store.writer(session_id), store.follow(session_id)
    with pytest.raises(StoreClosed):
        writer.append(b"x")
    with pytest.raises(StoreClosed):
        await anext(follower)
    with pytest.raises(StoreClosed):
        store.writer(session_id)
    with pytest.raises(StoreClosed):
        store.follow(session_id)
