"""Audio that a later stage renders, part by part, and a worker that dies between two parts."""

from __future__ import annotations

import pytest

from session_core.state import State
from tests.integration.caller import SHORT, Caller, spoken
from tests.integration.plugins import HOLD_AFTER_PART
from tests.integration.record import check_reply, check_session
from tests.integration.stack import Options, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

STACK = Options(model="tests.integration.plugins:UnrulyParts")
SAID = spoken(SHORT, silence_ms=600)


async def test_a_worker_is_killed_between_two_parts(stack: Stack) -> None:
    """The next owner renders from the first missing sample: bit-equal to an undisturbed run."""
    caller = Caller()
    await caller.open(stack.url(), model="loopback_parts")
    await caller.append(SAID)
    undisturbed = await caller.turn()
    await caller.close()
    check_reply(undisturbed, SAID)
    await check_session(stack, caller)

    caller = Caller()
    await caller.open(stack.url(), model="loopback_parts", instructions=HOLD_AFTER_PART)
    await caller.append(SAID)
    held = await stack.state_when(
        caller.session_id,
        lambda state: samples_given_out(state) == 1_920 + 960,
    )
    await (await stack.owner(caller.session_id)).kill()
    reply = await caller.turn()
    await caller.close()

    assert 1 == held.worker.generation
    assert 1 == held.renders[0].next_part
    assert undisturbed == reply
    found = await check_session(stack, caller)
    assert [1, 2] == [assigned.generation for assigned in found.workers]


def samples_given_out(state: State) -> int:
    """Audio of the message that is being said."""
    response = state.response
    return 0 if response is None or response.message is None else response.message.samples
