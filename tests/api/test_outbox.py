"""The outbox alone: what the journal answers to an attachment, and what comes due."""

from __future__ import annotations

import asyncio

import pytest

from api.errors import ResumeFailed
from api.outbox import Outbox, Verdict
from api.stats import Stats
from eventstore.ids import new_session_id
from eventstore.memory import MemoryEventStore
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.journal import Body, Role, Stamp, encode_entry
from session_core.reducer import REDUCER_VERSION
from tests.api.conftest import World

PATIENCE_S = 10


async def opened(store: MemoryEventStore) -> str:
    """A session with one attachment, `att-1`, whose token's hash is `h1`."""
    session_id = new_session_id()
    await write(
        store,
        session_id,
        ev.SessionOpened(
            session_id,
            ModelProfile("loopback"),
            SessionConfig("loopback"),
            Limits(),
            Way.DUPLEX,
            Dialect.GA,
            REDUCER_VERSION,
        ),
        ev.ClientAttached("att-1", "gateway", 1, None, b"h1"),
    )
    return session_id


async def write(store: MemoryEventStore, session_id: str, *bodies: Body, stamp: Stamp | None = None) -> None:
    """Append entries."""
    for body in bodies:
        await store.append(session_id, encode_entry(body, stamp))


def outbox(store: MemoryEventStore, session_id: str, attachment_id: str, limit_bytes: int = 9_999) -> Outbox:
    """An outbox from the journal's beginning."""
    return Outbox(store, session_id, attachment_id, stats=Stats(), limit_bytes=limit_bytes)


async def test_loser_of_a_race_is_refused(world: World) -> None:
    """Of two attachments of one generation the second in the journal gets `session_resume_conflict`."""
    store = await world.store()
    session_id = await opened(store)
    await write(
        store,
        session_id,
        ev.ClientAttached("att-2", "gateway", 2, b"h1", b"h2", 0),
        ev.ClientAttached("att-3", "gateway", 2, b"h1", b"h3", 0),
    )
    loser, winner = outbox(store, session_id, "att-3"), outbox(store, session_id, "att-2")
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        assert Verdict.REFUSED is await loser.follow()
        following = tasks.create_task(winner.follow())
        assert isinstance(await winner.welcome, wire.SessionResumed)
        following.cancel()
    with pytest.raises(ResumeFailed) as caught:
        await loser.welcome
    assert "session_resume_conflict" == caught.value.code


async def test_end_before_the_attachment(world: World) -> None:
    """A session that ends before it has an attachment never welcomes it."""
    store = await world.store()
    session_id = await opened(store)
    await write(store, session_id, cmd.CloseSession(), stamp=Stamp(Role.CLIENT, 1, 1))
    await write(store, session_id, ev.ClientAttached("att-2", "gateway", 2, b"h1", b"h2", 0))
    late = outbox(store, session_id, "att-2")
    async with asyncio.timeout(PATIENCE_S):
        assert Verdict.ENDED is await late.follow()
    with pytest.raises(ResumeFailed) as caught:
        await late.welcome
    assert "session_resume_expired" == caught.value.code


@pytest.mark.parametrize("limit_bytes", [0, 2_500, 1_000_000])
async def test_what_is_due_does_not_depend_on_the_buffer(world: World, limit_bytes: int) -> None:
    """Every event comes due once and in order, whether it waited in the buffer or is read again."""
    store = await world.store()
    session_id = await opened(store)
    box = outbox(store, session_id, "att-1", limit_bytes)
    for n in range(1, 51):
        await write(store, session_id, cmd.ClearInput(), stamp=Stamp(Role.CLIENT, 1, n))
    await write(store, session_id, cmd.CloseSession(), stamp=Stamp(Role.CLIENT, 1, 51))
    async with asyncio.timeout(PATIENCE_S):
        assert Verdict.ENDED is await box.follow()
        assert box.pending_bytes <= limit_bytes
        due = [event.server_event_seq async for event, _ in box.due()]
    assert list(range(1, 52)) == due
    assert 0 == box.pending_bytes


async def test_overflow_in_the_middle_of_an_entry(world: World) -> None:
    """A buffer that is dropped while one entry's events are going out repeats none of them."""
    store = await world.store()
    session_id = await opened(store)
    box = outbox(store, session_id, "att-1", 5_000)
    n = 0

    async def clear_and_cancel(times: int) -> None:
        nonlocal n
        for _ in range(times):
            await write(store, session_id, cmd.CreateResponse(), stamp=Stamp(Role.CLIENT, 1, n + 1))
            await write(store, session_id, cmd.CancelResponse(), stamp=Stamp(Role.CLIENT, 1, n + 2))
            n += 2

    seen: list[object] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(box.follow())
        await box.welcome
        await clear_and_cancel(1)
        async for event, _ in box.due():
            seen.append(event.server_event_seq)
            if isinstance(event, wire.ResponseDone) and len(seen) == 2:
                await clear_and_cancel(10)
                while not box.lagging:  # noqa: ASYNC110 - the follower announces nothing
                    await asyncio.sleep(0)
            if len(seen) == 33:
                break
        following.cancel()
    assert list(range(1, 34)) == seen
