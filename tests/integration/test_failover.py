"""A worker dies, stands still, or is killed by what it works on; the session goes on in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from session_core.fleet import ProcessRole
from session_core.state import State
from tests.integration.caller import SHORT, Caller, spoken
from tests.integration.plugins import HOLD_AFTER_UNIT, POISON
from tests.integration.record import Record, check_reply, check_session
from tests.integration.stack import PATIENCE_S, Options, Stack, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

STACK = Options(model="tests.integration.plugins:Unruly")
DELTA = "response.output_audio.delta"
SAID = spoken(SHORT, silence_ms=600)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def whole(stack: Stack) -> AsyncIterator[None]:
    """Every test begins with a whole stack."""
    for worker in stack.workers:
        if not worker.running:
            await worker.start()
    await stack.ready()
    yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(stack: Stack) -> bytes:
    """What the model answers when nothing goes wrong. It is deterministic."""
    await stack.ready()
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    reply = await caller.turn()
    await caller.close()
    check_reply(reply, SAID)
    return reply


def check_failover(found: Record, most: int = 2) -> None:
    """More than one owner had the session, each another than the one before, generation after generation."""
    names = [assigned.worker for assigned in found.workers]
    assert list(range(1, len(names) + 1)) == [assigned.generation for assigned in found.workers]
    assert 2 <= len(names) <= most
    assert all(one != other for one, other in pairwise(names))


async def test_a_worker_is_killed_in_mid_response(stack: Stack, undisturbed: bytes) -> None:
    """Another one goes on with the sentence; the client hears every sample, as if nothing had been."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    await (await stack.owner(caller.session_id)).kill()
    reply = await caller.turn()
    await caller.close()

    assert undisturbed == reply
    check_failover(await check_session(stack, caller))


async def test_a_worker_is_killed_right_after_a_unit(stack: Stack, undisturbed: bytes) -> None:
    """The unit that is in the journal counts, and the next owner begins with the next one."""
    caller = Caller()
    await caller.open(stack.url(), instructions=HOLD_AFTER_UNIT)
    await caller.append(SAID)
    held = await stack.state_when(caller.session_id, lambda state: _spoken_units(state) == 3)
    await (await stack.owner(caller.session_id)).kill()
    reply = await caller.turn()
    await caller.close()

    assert 1 == held.worker.generation
    assert undisturbed == reply
    check_failover(await check_session(stack, caller))


async def test_a_worker_is_killed_while_it_listens(stack: Stack, undisturbed: bytes) -> None:
    """What was heard before and after is one utterance to the next owner."""
    caller = Caller()
    await caller.open(stack.url())
    middle = len(spoken(SHORT, 0)) // 4 * 2
    await caller.append(SAID[:middle])
    await stack.state_when(caller.session_id, lambda state: state.clock.next_unit > 3)
    await (await stack.owner(caller.session_id)).kill()
    await caller.append(SAID[middle:])
    reply = await caller.turn()
    await caller.close()

    check_reply(reply, SAID)
    found = await check_session(stack, caller)
    assert SAID == found.input
    check_failover(found)


async def test_worker_and_gateway_die_together(stack: Stack, undisturbed: bytes) -> None:
    """With both gone at once the client comes back through the other gateway to the other worker."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    owner = await stack.owner(caller.session_id)
    await asyncio.gather(owner.kill(), stack.gateways[0].kill())
    await caller.rest()
    await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()
    await stack.gateways[0].start()

    assert undisturbed == reply
    check_failover(await check_session(stack, caller))


async def test_every_worker_dies(stack: Stack, undisturbed: bytes) -> None:
    """With nobody left the session waits, and goes on with whoever comes."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    await asyncio.gather(*(worker.kill() for worker in stack.workers))
    await until(lambda: _forgotten(stack))
    await stack.workers[0].start()
    reply = await caller.turn()
    await caller.close()

    assert undisturbed == reply
    # Of two that die at once, the second may be taken for alive when the first is missed.
    check_failover(await check_session(stack, caller), most=3)


async def test_everything_but_the_store_dies(stack: Stack, undisturbed: bytes) -> None:
    """The journal is all that a session is: new processes and the client's token bring it back."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    await asyncio.gather(*(child.kill() for child in stack.children))
    await caller.rest()
    await asyncio.gather(*(child.start() for child in stack.children))
    await stack.ready()
    await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()

    assert undisturbed == reply
    # Of two that die at once, the second may be taken for alive when the first is missed.
    check_failover(await check_session(stack, caller), most=3)


async def test_a_worker_leaves_in_good_order(stack: Stack, undisturbed: bytes) -> None:
    """SIGTERM in mid-response: the worker hands over between two units and ends with 0."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    owner = await stack.owner(caller.session_id)
    code = await owner.stop()
    reply = await caller.turn()
    await caller.close()

    assert 0 == code
    assert undisturbed == reply
    check_failover(await check_session(stack, caller))


async def test_a_worker_stands_still(stack: Stack, undisturbed: bytes) -> None:
    """One that is taken for dead and comes back changes nothing, and serves others again."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(SAID)
    for _ in range(3):
        await caller.get(DELTA)
    owner = await stack.owner(caller.session_id)
    owner.suspend()
    await stack.state_when(caller.session_id, lambda state: state.worker.generation == 2)
    owner.resume()
    reply = await caller.turn()
    other = next(worker for worker in stack.workers if worker is not owner)
    await other.stop()
    others = Caller()
    await others.open(stack.url())
    await others.append(SAID)
    others_reply = await others.turn()
    served_by = await stack.owner(others.session_id)
    await others.close()
    await caller.close()

    assert undisturbed == reply == others_reply
    assert owner is served_by
    assert owner.running
    await check_session(stack, others)
    await check_session(stack, caller)


async def test_poison(stack: Stack, undisturbed: bytes) -> None:
    """A session that kills whoever works on it ends after three; the workers that came back serve others."""
    async with stack.keeping_workers():
        idle, poisoned = Caller(), Caller()
        await idle.open(stack.url(1))
        await poisoned.open(stack.url(), instructions=POISON)
        starts = sum(worker.starts for worker in stack.workers)
        await poisoned.append(SAID)
        ending = asyncio.create_task(poisoned.rest())
        # From its second victim on: who dies with it at most twice is not given up.
        await stack.state_when(poisoned.session_id, lambda state: state.worker.generation == 2)
        others = [await _turn(stack)]
        async with asyncio.timeout(PATIENCE_S):
            while not ending.done():
                others.append(await _turn(stack))
        code = await ending
        await idle.append(SAID)
        reply = await idle.turn()
        await idle.close()
        await until(lambda: _all_running(stack))

    assert 1011 == code
    assert ["engine_error"] == [e["error"]["code"] for e in poisoned.events if e["type"] == "error"]
    assert 3 == sum(worker.starts for worker in stack.workers) - starts
    assert {undisturbed} == {reply, *others}
    await check_session(stack, idle)
    found = await check_session(stack, poisoned)
    assert 3 == len(found.workers)


async def test_poison_and_a_bystander(stack: Stack) -> None:
    """A session in mid-response that loses its worker to a poisoned one three times outlives it."""
    async with stack.keeping_workers():
        poisoned, bystander = Caller(), Caller()
        await poisoned.open(stack.url(), instructions=POISON)
        await bystander.open(stack.url())
        await poisoned.append(SAID)
        ending = asyncio.create_task(poisoned.rest())
        replies: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not ending.done():
                    await bystander.append(SAID)
                    replies.append(await bystander.turn())
            await bystander.close()
        finally:
            await ending
            await bystander.rest()
            await until(lambda: _all_running(stack))

    # Time in which nobody worked is silence to the model, so answers may be cut; it does answer, and lives.
    assert all(replies)
    assert [] == [event for event in bystander.events if event["type"] == "error"]
    await check_session(stack, bystander)


async def _turn(stack: Stack) -> bytes:
    caller = Caller()
    await caller.open(stack.url(1))
    await caller.append(SAID)
    reply = await caller.turn()
    await caller.close()
    await check_session(stack, caller)
    return reply


def _spoken_units(state: State) -> int:
    response = state.response
    return 0 if response is None or response.message is None else response.message.samples // 1_920


async def _forgotten(stack: Stack) -> bool:
    return not any(process.alive for process in await stack.processes(ProcessRole.WORKER))


async def _all_running(stack: Stack) -> bool:
    return all(worker.running for worker in stack.workers)
