"""Wakes the tasks of one session when its fold has moved on."""

from __future__ import annotations

import asyncio


class Pulse:
    """
    A condition without a lock, for the tasks of one event loop.

    Waiters check, then `wait`, with no other await in between, in a loop.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake everyone who waits now."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _wake(waiter)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next `fire`, or for so many seconds. The caller checks again in either case."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if timeout_s is None:
            await waiter
            return
        timer = loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
