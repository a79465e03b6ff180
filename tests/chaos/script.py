"""What the user of a session does: talks, is answered, talks over the answer, changes devices, and ends."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from functools import cache

from tests.chaos.user import Said, User, frame_of
from tests.integration.caller import LONG, RATE_HZ, SHORT, pieces, spoken

PIECE_MS = 80
PIECE_S = PIECE_MS / 1000
ABANDONED = 0.1
"""Share of sessions whose client leaves without a word."""
LIFE_S = (6.0, 25.0)


@cache
def speech(clip: str, ms: int, silence_ms: int) -> Sequence[Said]:
    """The beginning of a clip and silence, ready to be sent."""
    pcm = spoken(clip, 0)[: 2 * RATE_HZ * ms // 1000] + bytes(2 * RATE_HZ * silence_ms // 1000)
    return [
        Said(frame_of("input_audio_buffer.append", audio=base64.b64encode(piece).decode()), piece)
        for piece in pieces(pcm, PIECE_MS)
    ]


async def talk(user: User) -> None:
    """Do this and that for a while, then be answered once more, then end."""
    await _Talk(user).run()


class _Talk:
    """One session's talk, paced as speech is."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._rng = user.rng
        self._due_s = time.monotonic()

    async def run(self) -> None:
        """The whole of it."""
        user = self._user
        until_s = self._due_s + self._rng.uniform(*LIFE_S)
        acts = [self._turn, self._turn, self._turn, self._barge_in, self._barge_in, self._cancel]
        acts += [self._commit, self._clear, self._take_over, self._abandon_takeover, self._drop]
        while time.monotonic() < until_s and not user.world.closing.is_set():
            act = self._rng.choice(acts)
            user.doing = act.__name__
            await act()
        user.doing = "the last turn"
        await self._last_turn()
        if self._rng.random() < ABANDONED:
            user.leave()
            return
        user.doing = "closing"
        user.reached("close")
        await user.command("session.close")

    async def _mic(self, sound: Sequence[Said]) -> None:
        """Send audio at the pace of speech; what waited through a pause is sent late, at once."""
        for said in sound:
            now_s = time.monotonic()
            self._due_s = max(self._due_s + PIECE_S, now_s - 1)
            if self._due_s > now_s:
                await asyncio.sleep(self._due_s - now_s)
            self._user.reached("append")
            await self._user.say(said)

    async def _speak(self, ms: int = 0, silence_ms: int = 0) -> None:
        clip = self._rng.choice((SHORT, LONG))
        await self._mic(speech(clip, ms or self._rng.randrange(400, 2400, PIECE_MS), silence_ms))

    async def _silence(self, ms: int) -> None:
        await self._mic(speech(SHORT, 0, ms))

    async def _last_turn(self) -> None:
        completed = self._user.completed
        while True:
            await self._speak(1200, 960)
            for _ in range(30):
                if self._user.completed > completed:
                    return
                await self._silence(2 * PIECE_MS)

    async def _turn(self) -> None:
        await self._speak(silence_ms=960)
        await self._silence(self._rng.randrange(0, 2400, PIECE_MS))

    async def _until_response(self) -> None:
        await self._speak(silence_ms=640)
        for _ in range(20):
            if self._user.is_answered:
                return
            await self._silence(PIECE_MS)

    async def _barge_in(self) -> None:
        await self._until_response()
        self._user.reached("barge_in")
        await self._speak(silence_ms=480)

    async def _cancel(self) -> None:
        await self._until_response()
        await self._user.command("response.cancel")
        await self._silence(320)

    async def _commit(self) -> None:
        await self._speak()
        await self._user.command("input_audio_buffer.commit")
        if self._rng.random() < 0.5:
            await self._user.command("response.create")
        await self._silence(640)

    async def _clear(self) -> None:
        await self._speak()
        await self._user.command("input_audio_buffer.clear")
        await self._silence(160)

    async def _drop(self) -> None:
        self._user.drop()
        await self._silence(320)

    async def _take_over(self) -> None:
        await self._user.take_over()
        await self._silence(320)

    async def _abandon_takeover(self) -> None:
        await self._user.abandon_takeover()
        await self._silence(320)
