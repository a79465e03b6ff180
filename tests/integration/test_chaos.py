"""Many sessions at once while processes are killed at random moments, one after the other."""

from __future__ import annotations

import asyncio
import random

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.integration.caller import SHORT, Caller, pieces, spoken
from tests.integration.record import check_reply, check_session
from tests.integration.stack import PATIENCE_S, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SESSIONS = 6
TURNS = 4
KILLS = 6


class Persistent(Caller):
    """
    A caller that never gives up: it resumes through whichever gateway answers, and sends again what was lost.
    """

    def __init__(self, stack: Stack, rng: random.Random) -> None:
        super().__init__()
        self.said = bytearray()
        self.resumes = 0
        self._stack = stack
        self._rng = rng

    async def talk(self) -> None:
        """So many turns, then the end."""
        await self.open(self._stack.url(self._rng.randrange(2)))
        for turn in range(1, TURNS + 1):
            await self._say(spoken(SHORT))
            while sum(event["type"] == "response.done" for event in self.numbered) < turn:
                await self._read()
        while not self.numbered or self.numbered[-1]["type"] != "session.closed":
            await self.send("session.close")
            await self._read()
        await self.rest()

    async def _say(self, pcm: bytes) -> None:
        for piece in pieces(pcm):
            self.said += piece
            await self.append(piece)
            await asyncio.sleep(0.005)  # eight times as fast as speech, so that kills find it under way

    async def _read(self) -> None:
        try:
            await self.next()
        except ConnectionClosed:
            await self._come_back()

    async def _come_back(self) -> None:
        while True:
            self.resumes += 1
            try:
                answer = await self.resume(self._stack.url(self.resumes % 2))
            except (OSError, ConnectionClosed, InvalidHandshake):
                await asyncio.sleep(0.05)
                continue
            assert "session.resumed" == answer["type"], answer
            await self.append_from(answer["input_audio_received_bytes"])
            return

    async def append_from(self, received: int) -> None:
        """Send again all that was said after the receipt."""
        for piece in pieces(bytes(self.said[received:])):
            await self.append(piece)


@pytest.mark.parametrize("seed", [20_301])
async def test_processes_die_at_random(stack: Stack, seed: int) -> None:
    """Every session gets every event once, in order, with every word of every turn, whoever dies."""
    rng = random.Random(seed)
    callers = [Persistent(stack, rng) for _ in range(SESSIONS)]

    async def havoc() -> None:
        for number in range(KILLS):
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            # Gateways and workers in turn; the next one dies only when this one is back.
            victim = rng.choice(stack.workers if number % 2 else stack.gateways)
            await victim.kill()
            await victim.start()
            await stack.ready()

    async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(havoc())
        for caller in callers:
            tasks.create_task(caller.talk())

    for caller in callers:
        found = await check_session(stack, caller)
        assert bytes(caller.said) == found.input
        responses = {event["response_id"] for event in caller.numbered if event["type"] == "response.done"}
        assert TURNS == len(responses)
        for response_id in responses:
            check_reply(caller.audio(response_id), bytes(caller.said))
    assert any(caller.resumes for caller in callers)
