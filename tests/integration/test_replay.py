"""What stands behind the service afterwards: journals that verify, damage that is found, and nothing held."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from eventstore.ids import session_keys
from session_core import commands as cmd
from session_core import events as ev
from session_core.journal import Body, decode_entry
from session_core.state import EndReason, Phase
from tests.integration.caller import SHORT, Caller, spoken
from tests.integration.record import check_session
from tests.integration.stack import Stack, run_duplex

pytestmark = pytest.mark.asyncio(loop_scope="module")


FIELD = b"d"
"""The only field of a journal's entries in Redis."""


async def talked(stack: Stack) -> Caller:
    """A session with a turn in it, ended."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(spoken(SHORT))
    await caller.turn()
    await caller.close()
    await check_session(stack, caller)
    return caller


async def verified(stack: Stack, session_id: str) -> tuple[int, str]:
    """Run `duplex replay verify`."""
    return await run_duplex("replay", "verify", session_id, "--redis", stack.store_url)


@pytest.mark.parametrize(
    ("kind", "offset"),
    [
        (cmd.AppendAudio, -1_000),
        (ev.ModelUnitCompleted, -100),
        (ev.ClientAttached, -3),
        (ev.SessionOpened, 30),
    ],
)
async def test_one_changed_byte_is_found(stack: Stack, kind: type[Body], offset: int) -> None:
    """A journal verifies with exit code 0; one bit changed: 1; put right: 0 again."""
    caller = await talked(stack)
    whole = await verified(stack, caller.session_id)
    entries = await stack.store.read(caller.session_id, limit=1_000_000)
    at = [type(decode_entry(entry.data).body) for entry in entries].index(kind)
    damaged = bytearray(entries[at].data)
    damaged[offset] ^= 1
    await rewrite(stack, caller.session_id, at, bytes(damaged))
    found = await verified(stack, caller.session_id)
    await rewrite(stack, caller.session_id, at, entries[at].data)
    mended = await verified(stack, caller.session_id)

    assert (0, "verified") == (whole[0], whole[1][:8])
    assert (1, "FAILED") == (found[0], found[1][:6])
    assert whole == mended


async def rewrite(stack: Stack, session_id: str, at: int, data: bytes) -> None:
    """Put an ended session's stream back with one entry's bytes replaced; Redis itself changes no entry."""
    key = session_keys(session_id).journal
    entries = await stack.store.read(session_id, limit=1_000_000)
    async with Redis.from_url(stack.store_url) as redis:
        await redis.delete(key)
        for number, entry in enumerate(entries):
            await redis.xadd(key, {FIELD: data if number == at else entry.data}, id=str(entry.id))


async def test_nothing_is_held_in_the_end(stack: Stack) -> None:
    """However sessions end (closed, dropped, left): no slot, no attachment, every gauge at zero."""
    closed, dropped, silent, left = Caller(), Caller(), Caller(), Caller()
    for number, caller in enumerate((closed, dropped, silent, left)):
        await caller.open(stack.url(number % 2))
    for caller in (closed, dropped, left):
        await caller.append(spoken(SHORT))
    held = [len(await stack.store.held(process.id)) for process in await stack.store.processes()]
    sockets = [(await stack.health(gateway)).stats["sockets"] for gateway in (0, 1)]
    await closed.turn()
    await closed.close()
    await dropped.drop()
    await silent.close()
    assert left.connection is not None
    await left.connection.close()
    await stack.settled()

    assert 8 == sum(held), "four slots and four attachments"
    assert [2, 2] == sockets
    for caller, reason in (
        (closed, EndReason.CLOSED),
        (dropped, EndReason.GRACE),
        (silent, EndReason.CLOSED),
        (left, EndReason.GRACE),
    ):
        state = await stack.state(caller.session_id)
        assert (Phase.ENDED, reason) == (state.phase, state.end_reason)
