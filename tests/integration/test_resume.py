"""A client loses its connection, its gateway, or its place to another client, and the session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from duplex.client import Opening, SessionClient
from session_core.state import State
from tests.integration.caller import LONG, RATE_HZ, SHORT, Caller, Event, audio_of, pieces, spoken
from tests.integration.record import check_journal, check_reply, check_session, record
from tests.integration.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

DELTA = "response.output_audio.delta"


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def whole(stack: Stack) -> AsyncIterator[None]:
    """Every test begins with a whole stack."""
    for gateway in stack.gateways:
        if not gateway.running:
            await gateway.start()
    await stack.ready()
    yield


async def in_mid_response(stack: Stack, *, gateway: int = 0, deltas: int = 3) -> Caller:
    """A caller that has spoken and has heard the beginning of the answer; the rest comes in real time."""
    caller = Caller()
    await caller.open(stack.url(gateway))
    await caller.append(spoken(SHORT, silence_ms=600))
    for _ in range(deltas):
        await caller.get(DELTA)
    return caller


async def test_an_undisturbed_turn(stack: Stack) -> None:
    """The user's words come back, and what the client read is what the journal says."""
    caller = Caller()
    await caller.open(stack.url())
    await caller.append(spoken(SHORT))
    reply = await caller.turn()
    await caller.close()

    check_reply(reply, spoken(SHORT))
    found = await check_session(stack, caller)
    assert spoken(SHORT) == found.input


async def test_a_client_resumes_through_the_other_gateway(stack: Stack) -> None:
    """A client that drops in mid-response gets every event once, in order, and the audio without a seam."""
    caller = await in_mid_response(stack)
    await caller.drop()
    resumed = await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()

    assert "session.resumed" == resumed["type"]
    assert 2 == resumed["attachment_generation"]
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_a_second_client_takes_the_session_over(stack: Stack) -> None:
    """The first client is told and its connection closed; the second goes on, and the token is its alone."""
    first = await in_mid_response(stack)
    second = first.twin()
    resumed = await second.resume(stack.url(1))
    await second.send("session.heartbeat")
    code = await first.rest()
    await second.get("response.done")
    late = first.twin()
    refused = await late.resume(stack.url())
    await second.close()

    assert "session.resumed" == resumed["type"]
    assert "session.replaced" == first.events[-1]["type"]
    assert 4001 == code
    assert "invalid_resume_token" == refused["error"]["code"]
    assert 1008 == await late.rest()
    found = await record(stack.store, second.session_id)
    assert found.outbound[-len(second.numbered) :] == second.numbered
    assert found.outbound[: len(first.numbered)] == first.numbered
    check_reply(audio_of(found.outbound), spoken(SHORT))
    await check_journal(stack.store, second.session_id)


async def test_a_gateway_is_killed_in_mid_response(stack: Stack) -> None:
    """Kill -9 of the client's gateway: through the other one nothing is missing and nothing comes twice."""
    caller = await in_mid_response(stack)
    await stack.gateways[0].kill()
    await caller.rest()
    await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()

    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_a_gateway_is_killed_while_the_user_speaks(stack: Stack) -> None:
    """What the client sends again from the receipt on is neither lost nor doubled in the journal."""
    said = spoken(LONG)
    caller = Caller()
    await caller.open(stack.url())
    sent = pieces(said)
    for piece in sent[: len(sent) // 2]:
        await caller.append(piece)
    await stack.state_when(caller.session_id, lambda state: state.input.received_bytes > 0)
    await stack.gateways[0].kill()
    for piece in sent[len(sent) // 2 : len(sent) // 2 + 5]:
        await caller.append(piece)  # into the void
    await caller.rest()
    resumed = await caller.resume(stack.url(1))
    received = resumed["input_audio_received_bytes"]
    for piece in pieces(said[received:]):
        await caller.append(piece)
    reply = await caller.turn()
    await caller.close()

    assert 0 < received <= len(said)
    found = await check_session(stack, caller)
    assert said == found.input
    check_reply(reply, said)


async def test_our_own_client_survives_a_killed_gateway(stack: Stack) -> None:
    """`SessionClient` finds the other gateway, sends again what is missing, and reads on, all by itself."""
    said = spoken(SHORT)
    urls = (stack.url(0), stack.url(1))
    killed = False
    heard = b""
    async with asyncio.timeout(30), SessionClient(Opening(urls=urls, rate_hz=RATE_HZ)) as client:
        for piece in pieces(said):
            await client.append(piece)
        async for event in client.events():
            if event.type == DELTA:
                heard += event.audio()
                if not killed:
                    killed = True
                    await stack.gateways[0].kill()
            elif event.type == "response.done":
                await client.close()

    assert (1, 0) == (client.resumes, client.missed)
    check_reply(heard, said)
    found = await record(stack.store, client.session_id)
    assert said == found.input
    assert audio_of(found.outbound) == heard
    await check_journal(stack.store, client.session_id)


async def test_three_answers_to_a_resume_are_lost(stack: Stack) -> None:
    """A token counts until its client has shown a newer one: rotations that never arrive cost nothing."""
    caller = await in_mid_response(stack)
    await caller.drop()
    for generation in (2, 3, 4):
        lost = caller.twin()
        await lost.ask_to_resume(stack.url(generation % 2))
        await stack.state_when(caller.session_id, _attached(generation))
        await lost.drop()
    resumed = await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()

    assert "session.resumed" == resumed["type"]
    assert 5 == resumed["attachment_generation"]
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_a_takeover_is_abandoned(stack: Stack) -> None:
    """A second client that takes the session and never speaks leaves the first one's token good."""
    caller = await in_mid_response(stack)
    silent = caller.twin()
    await silent.resume(stack.url(1))
    code = await caller.rest()
    await silent.drop()
    resumed = await caller.resume(stack.url(0))
    reply = await caller.turn()
    await caller.close()

    assert 4001 == code
    assert "session.resumed" == resumed["type"]
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_two_clients_resume_at_once(stack: Stack) -> None:
    """Of two that present one token at the same time through two gateways, one wins and one learns so."""
    caller = await in_mid_response(stack)
    await caller.drop()
    rivals = [caller.twin(), caller.twin()]
    answers = await asyncio.gather(*(rival.resume(stack.url(n)) for n, rival in enumerate(rivals)))
    # Both may have won, one after the other; then the first of them has been replaced.
    winners = [
        rival for rival, answer in zip(rivals, answers, strict=True) if answer["type"] == "session.resumed"
    ]
    holder = max(winners, key=lambda rival: _generation(rival.events[0]))
    await holder.send("session.heartbeat")
    for rival, answer in zip(rivals, answers, strict=True):
        if rival is not holder:
            code = await rival.rest()
            told = rival.events[-1]["type"] if rival in winners else answer["error"]["code"]
            assert (code, told) in {(4001, "session.replaced"), (1008, "session_resume_conflict")}
    await holder.get("response.done")
    await holder.close()

    found = await record(stack.store, caller.session_id)
    assert found.outbound == caller.numbered + holder.numbered
    check_reply(audio_of(found.outbound), spoken(SHORT))
    await check_journal(stack.store, caller.session_id)


async def test_a_gateway_stops_in_good_order(stack: Stack) -> None:
    """SIGTERM: the client is told to go elsewhere (1012), and its session goes on there."""
    caller = await in_mid_response(stack)
    stopping = asyncio.create_task(stack.gateways[0].stop())
    code = await caller.rest()
    await caller.resume(stack.url(1))
    reply = await caller.turn()
    await caller.close()

    assert 1012 == code
    assert 0 == await stopping
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


def _attached(generation: int) -> Callable[[State], bool]:
    return lambda state: state.attachment.generation == generation


def _generation(event: Event) -> int:
    generation: int = event["attachment_generation"]
    return generation


async def test_a_gateway_stands_still_and_is_suspected(stack: Stack) -> None:
    """A client whose gateway was taken for dead by mistake is sent away (1012) and loses nothing."""
    caller = await in_mid_response(stack)
    stack.gateways[0].suspend()
    await stack.state_when(caller.session_id, lambda state: not state.attachment.attached and state.seq > 1)
    stack.gateways[0].resume()
    code = await caller.rest()
    await caller.resume(stack.url(0))
    reply = await caller.turn()
    await caller.close()

    assert 1012 == code
    check_reply(reply, spoken(SHORT))
    await check_session(stack, caller)


async def test_what_a_replaced_client_still_sends_counts_for_nothing(stack: Stack) -> None:
    """Input that lay in a gateway which stood still during a takeover is not the session's any more."""
    said = spoken(SHORT, silence_ms=600)
    first = await in_mid_response(stack)
    stack.gateways[0].suspend()
    second = first.twin()
    await second.resume(stack.url(1))
    for piece in pieces(said):
        await first.append(piece)
    await second.get("response.done")
    stack.gateways[0].resume()
    code = await first.rest()
    await second.close()

    assert 4001 == code
    assert "session.replaced" == first.events[-1]["type"]
    found = await record(stack.store, second.session_id)
    assert said == found.input
    assert 0 == found.late_effects
    check_reply(audio_of(found.outbound), said)
    await check_journal(stack.store, second.session_id)
