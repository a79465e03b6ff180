"""Snapshots, directory, deadlines, processes, slots and time, on every back end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from eventstore import EntryId, InvalidProcessId, new_session_id
from tests.eventstore.support import PATIENCE_S, Backend


async def test_the_newest_snapshot_at_or_before_a_cursor_is_loaded(backend: Backend) -> None:
    """Snapshots are found by the entry they were taken at, in numeric order."""
    async with backend.store() as store:
        session_id = new_session_id()
        assert await store.load_snapshot(session_id) is None
        for seq in (2, 10, 9):
            await store.save_snapshot(session_id, EntryId(5, seq), b"state %d" % seq)
        assert (EntryId(5, 10), b"state 10") == await store.load_snapshot(session_id)
        assert (EntryId(5, 9), b"state 9") == await store.load_snapshot(session_id, EntryId(5, 9))
        assert (EntryId(5, 2), b"state 2") == await store.load_snapshot(session_id, EntryId(5, 8))
        assert await store.load_snapshot(session_id, EntryId(5, 1)) is None


async def test_only_the_newest_snapshots_are_kept(backend: Backend) -> None:
    """Older snapshots make room for newer ones."""
    async with backend.store(snapshots_kept=2) as store:
        session_id = new_session_id()
        for ms in (1, 2, 3):
            await store.save_snapshot(session_id, EntryId(ms, 0), b"%d" % ms)
        assert await store.load_snapshot(session_id, EntryId(1, 9)) is None
        assert (EntryId(2, 0), b"2") == await store.load_snapshot(session_id, EntryId(2, 9))


async def test_the_directory_lists_each_session_once(backend: Backend) -> None:
    """Registering again changes nothing."""
    async with backend.store() as store:
        session_ids = [new_session_id() for _ in range(10)]
        for session_id in session_ids + session_ids[:3]:
            await store.register(session_id)
        assert sorted(session_ids) == sorted(await store.sessions())


async def test_due_deadlines_come_most_overdue_first(backend: Backend) -> None:
    """A deadline is due from its ms on, can be moved and removed, and the list is limited."""
    async with backend.store() as store:
        a, b, c, d = [new_session_id() for _ in range(4)]
        for session_id, due_ms in ((a, 30), (b, 10), (c, 20), (d, 99), (a, 5)):
            await store.schedule(session_id, due_ms)
        assert [a, b, c] == await store.due(20, 10)
        assert [a, b] == await store.due(20, 2)
        assert [] == await store.due(4, 10)
        await store.schedule(b, None)
        assert [a, c] == await store.due(20, 10)


async def test_a_process_lives_as_long_as_its_heartbeat(backend: Backend) -> None:
    """A process whose heartbeat expired is still listed, as not alive, until it is forgotten."""
    async with backend.store() as store:
        await store.beat("worker-1", b"long", 60_000)
        await store.beat("worker-2", b"short", 1)

        async with asyncio.timeout(PATIENCE_S):
            while [True, False] != [p.alive for p in await store.processes()]:  # noqa: ASYNC110 - expiry sends no event
                await asyncio.sleep(0.002)
        expected = [("worker-1", b"long", True), ("worker-2", b"short", False)]
        assert expected == await store.processes()
        await store.beat("worker-2", b"back", 60_000)
        assert ("worker-2", b"back", True) == (await store.processes())[1]


async def test_a_process_is_forgotten_only_without_slots(scripting: Backend) -> None:
    """A slot taken on a dead process meanwhile keeps it listed, so that somebody sees to the slot."""
    async with scripting.store() as store:
        await store.beat("worker-1", b"", 60_000)
        await store.hold("worker-1", "a:1", None)

        assert not await store.forget_process("worker-1")
        assert ["worker-1"] == [process.id for process in await store.processes()]
        await store.release("worker-1", "a:1")
        assert await store.forget_process("worker-1")
        assert [] == await store.processes()


async def test_slots_are_members_up_to_a_capacity(scripting: Backend) -> None:
    """Taking a slot twice holds it once; a full process refuses new members but confirms old ones."""
    async with scripting.store() as store:
        assert await store.hold("w", "a:1", 2)
        assert await store.hold("w", "a:1", 2)
        assert await store.hold("w", "b:1", 2)
        assert not await store.hold("w", "c:1", 2)
        assert await store.hold("w", "a:1", 2)
        assert await store.hold("w", "c:1", None)
        assert {"a:1", "b:1", "c:1"} == set(await store.held("w"))
        await store.release("w", "a:1")
        await store.release("w", "a:1")
        assert {"b:1", "c:1"} == set(await store.held("w"))
        assert {} == await store.held("other")


async def test_racing_holds_never_exceed_the_capacity(scripting: Backend) -> None:
    """Many takers at once, from two processes, get exactly as many slots as there are."""
    async with scripting.store() as one, scripting.store() as other:
        taken = await asyncio.gather(
            *[store.hold("w", f"{n}:{store is one}", 7) for n in range(20) for store in (one, other)]
        )
        assert 7 == sum(taken) == len(await one.held("w"))


async def test_a_slot_says_when_it_was_taken(scripting: Backend) -> None:
    """A slot carries the store's time, which a second hold leaves as it is."""
    async with scripting.store() as store:
        before_ms = (await store.append(new_session_id(), b"x")).ms
        await store.hold("w", "a:1", None)
        taken = await store.held("w")
        after_ms = (await store.append(new_session_id(), b"x")).ms
        assert before_ms <= taken["a:1"] <= after_ms
        await store.hold("w", "a:1", None)
        assert taken == await store.held("w")


async def test_watching_slots_sees_every_change(scripting: Backend) -> None:
    """A watcher gets the slots at once, and again after each change by another process."""
    async with (
        asyncio.timeout(PATIENCE_S),
        scripting.store() as worker,
        scripting.store() as gateway,
        aclosing(worker.watch_holds("w")) as watching,
    ):
        assert {} == await anext(watching)
        await gateway.hold("w", "a:1", None)
        async for slots in watching:
            if set(slots) == {"a:1"}:
                break
        await gateway.release("w", "a:1")
        async for slots in watching:
            if not slots:
                break


@pytest.mark.parametrize("process_id", ["", "a b", "{w}", "x" * 129, "ä"])
async def test_process_ids_are_checked(backend: Backend, process_id: str) -> None:
    """What could break a key is not a process id."""
    async with backend.store() as store:
        with pytest.raises(InvalidProcessId):
            await store.beat(process_id, b"", 1)


async def test_store_time_runs_with_the_ids_and_never_back(backend: Backend) -> None:
    """The estimate is never behind an acknowledged entry and never goes back."""
    async with backend.store() as store:
        session_id = new_session_id()
        seen_ms = 0
        for _ in range(20):
            entry_id = await store.append(session_id, b"x")
            now_ms = store.now_ms()
            assert max(entry_id.ms, seen_ms) <= now_ms
            seen_ms = now_ms
        assert 0 <= store.last_contact_s() < PATIENCE_S
