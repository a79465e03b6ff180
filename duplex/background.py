"""Work beside other work, and pauses between its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

STEADY_S = 10.0
"""Whatever ran for so long is in no crash loop: its next pause is the shortest again."""


class Backoff:
    """Pauses between restarts of one process, doubled each time."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._pause_s = least_s

    def next_s(self, lived_s: float) -> float:
        """The pause after a process that lived so long."""
        if lived_s >= STEADY_S:
            self._pause_s = self._least_s
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._most_s)
        return pause_s


@asynccontextmanager
async def background(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Run `work` for as long as the context lasts. The context's own exceptions pass through as they are."""
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    task = tasks.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await tasks.__aexit__(None, None, None)
