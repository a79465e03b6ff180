"""Ids, clock, backoff, server helper and store URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import (
    SHARDS,
    START,
    EntryId,
    InvalidSessionId,
    MemoryEventStore,
    MemoryServer,
    RedisEventStore,
    ValkeyServer,
    new_session_id,
    open_store,
    shard_of,
)
from eventstore.backoff import Backoff
from eventstore.clock import StoreClock
from eventstore.ids import session_keys
from tests.eventstore.support import HandClock


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_an_entry_id_survives_its_text(ms: int, seq: int) -> None:
    """Writing and parsing an id gives it back, from str and bytes."""
    entry_id = EntryId(ms, seq)
    assert entry_id == EntryId.parse(str(entry_id)) == EntryId.parse(str(entry_id).encode())


def test_ids_compare_in_journal_order() -> None:
    """Ids order as numbers, not as text, and START comes before all."""
    assert START < EntryId(9, 10) < EntryId(10, 9) < EntryId(10, 10) < EntryId(10, 10).next()


def test_a_new_session_id_names_its_shard() -> None:
    """Fresh ids are valid, distinct and spread over the shards asked for."""
    session_ids = {new_session_id(4) for _ in range(200)}
    assert 200 == len(session_ids)
    assert {0, 1, 2, 3} == {shard_of(session_id) for session_id in session_ids}


@given(st.text(max_size=40))
def test_other_text_is_no_session_id(text: str) -> None:
    """Arbitrary text is refused."""
    with pytest.raises(InvalidSessionId):
        shard_of(text)


@pytest.mark.parametrize(
    "text",
    [
        f"sess_{SHARDS}_" + "a" * 22,
        "sess_1_" + "a" * 22,
        "sess_01_" + "a" * 21,
        "sess_01_" + "a" * 22 + "\n",
        "sess_01_" + "a" * 21 + "}",
        "sess_0١_" + "a" * 22,
        "SESS_01_" + "a" * 22,
    ],
)
def test_near_misses_are_no_session_ids(text: str) -> None:
    """Ids with a wrong shard, length or character are refused."""
    with pytest.raises(InvalidSessionId):
        shard_of(text)


def test_all_keys_of_a_session_share_its_hash_tag() -> None:
    """In a cluster everything of one session lies in one slot."""
    assert all(key.startswith(b"{s07}:") for key in session_keys("sess_07_" + "a" * 22))


def test_the_clock_carries_store_time_on_and_never_back() -> None:
    """Store time runs on from the last answer; an answer that is behind does not turn it back."""
    now = HandClock(0)
    clock = StoreClock(lambda: now() / 1000)
    assert (0, float("inf")) == (clock.now_ms(), clock.last_contact_s())
    clock.sample(5000)
    now.now_ms = 250
    assert (5250, 0.25) == (clock.now_ms(), clock.last_contact_s())
    clock.at_least(5100)
    assert 5250 == clock.now_ms()
    clock.at_least(6000)
    assert 6000 == clock.now_ms()
    clock.sample(100)
    assert 6000 == clock.now_ms()


def test_backoff_grows_to_its_cap_and_resets() -> None:
    """Waiting times double up to the cap, jittered below it, and start over after a success."""
    backoff = Backoff(1, 4)
    delays_s = [backoff.next_s() for _ in range(4)]
    caps_s = [1, 2, 4, 4]
    assert all(cap / 2 <= delay <= cap for delay, cap in zip(delays_s, caps_s, strict=True))
    backoff.reset()
    assert backoff.next_s() <= 1


async def test_memory_ids_grow_though_the_clock_does_not() -> None:
    """Ids are strictly increasing while the clock stands still or goes back."""
    clock = HandClock(1000)
    async with MemoryEventStore(MemoryServer(clock)) as store:
        session_id = new_session_id()
        ids = []
        for now_ms in (1000, 1000, 900, 1001):
            clock.now_ms = now_ms
            ids.append(await store.append(session_id, b"x"))
        assert [EntryId(1000, 0), EntryId(1000, 1), EntryId(1000, 2), EntryId(1001, 0)] == ids


async def test_memory_heartbeats_expire_by_the_injected_clock() -> None:
    """Liveness in memory follows the clock that a test sets."""
    clock = HandClock(1000)
    async with MemoryEventStore(MemoryServer(clock)) as store:
        await store.beat("w", b"", 500)
        clock.now_ms = 1499
        assert [True] == [process.alive for process in await store.processes()]
        clock.now_ms = 1500
        assert [False] == [process.alive for process in await store.processes()]


async def test_the_directory_is_ordered_by_registration() -> None:
    """The directory lists the oldest session first."""
    clock = HandClock(1000)
    async with MemoryEventStore(MemoryServer(clock)) as store:
        session_ids = []
        for _ in range(5):
            clock.now_ms += 1
            session_ids.append(new_session_id())
            await store.register(session_ids[-1])
        assert session_ids == await store.sessions()


@pytest.mark.integration
async def test_a_server_keeps_its_data_and_port_over_a_restart(tmp_path: Path) -> None:
    """What was acknowledged under fsync=always is there after a crash, at the same address."""
    async with ValkeyServer(tmp_path, fsync="always") as server:
        url, session_id = server.url, new_session_id()
        async with RedisEventStore(url) as store:
            await store.append(session_id, b"1")
        await server.kill()
        await server.restart()
        assert url == server.url
        async with RedisEventStore(url) as store:
            assert [b"1"] == [entry.data for entry in await store.read(session_id)]


@pytest.mark.parametrize(
    ("url", "kind"),
    [("memory://", MemoryEventStore), ("redis://h:1", RedisEventStore), ("rediss://h", RedisEventStore)],
)
def test_a_url_chooses_the_back_end(url: str, kind: type) -> None:
    """The scheme says which store."""
    assert kind is type(open_store(url))


def test_an_unknown_scheme_is_refused() -> None:
    """There is no store for other URLs."""
    with pytest.raises(ValueError, match="ftp"):
        open_store("ftp://h")
