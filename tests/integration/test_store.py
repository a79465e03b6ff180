"""The store itself is killed. Its disk has everything that it acknowledged, so nothing may be missing."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.caller import SHORT, Caller, spoken
from tests.integration.record import check_reply, check_session
from tests.integration.stack import LIVENESS_MS, Options, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

STACK = Options(fsync="always")
SAID = spoken(SHORT, silence_ms=600)


@pytest.mark.parametrize("down_ms", [0, 2 * LIVENESS_MS])
async def test_the_store_is_killed_in_mid_response(stack: Stack, down_ms: int) -> None:
    """Nobody is blamed for the outage: same attachment, same worker, and the sentence goes on."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get("response.output_audio.delta")
    await stack.crash_store(down_ms / 1000)
    reply = await caller.turn()
    await caller.close()

    check_reply(reply, SAID)
    found = await check_session(stack, caller)
    assert SAID == found.input
    assert 1 == len(found.workers)
    assert 1 == (await stack.state(caller.session_id)).attachment.generation


async def test_what_is_said_during_an_outage_is_heard_after_it(stack: Stack) -> None:
    """Input sent while there is no store waits in the gateway; not a byte of it is lost or doubled."""
    caller = Caller()
    await caller.open(stack.url())
    middle = len(SAID) // 4 * 2
    await caller.append(SAID[:middle])
    outage = asyncio.create_task(stack.crash_store(0.5))
    await caller.append(SAID[middle:])
    await outage
    reply = await caller.turn()
    await caller.close()

    found = await check_session(stack, caller)
    assert SAID == found.input
    check_reply(reply, SAID)
