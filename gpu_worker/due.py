"""
Work that is due while the fold says so: one task for each thing, begun when it appears and cancelled with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine


class DueTasks:
    """
    Keeps one task for each key that is due; lives inside a task group, which gets what they raise.

    A task that has ended is not begun again: its outcome may not be folded yet. Keys never come back.

    Args:
        tasks: where they run.
        work: does the work of one key.
    """

    def __init__(self, tasks: asyncio.TaskGroup, work: Callable[[str], Coroutine[None, None, None]]) -> None:
        self._tasks = tasks
        self._work = work
        self._running: dict[str, asyncio.Task[None]] = {}

    def look(self, due: Collection[str]) -> None:
        """Bring the tasks in line with what is due now."""
        if not due and not self._running:
            return
        for key in [key for key in self._running if key not in due]:
            self._running.pop(key).cancel()
        for key in due:
            if key not in self._running:
                self._running[key] = self._tasks.create_task(self._work(key))
