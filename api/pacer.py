"""Coalescing of cumulative commands: the first at once, then at most one per interval, the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from session_core.commands import AnyCommand


class Pacer:
    """Passes one kind of command of one connection on. Lives as long as the connection."""

    def __init__(self, interval_s: float, append: Callable[[AnyCommand], object]) -> None:
        self._interval_s = interval_s
        self._append = append
        self._waiting: AnyCommand | None = None
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, command: AnyCommand) -> None:
        """Pass it on now or, if one went within the interval, at its end, unless a newer one comes before."""
        if self._timer is not None:
            self._waiting = command
            return
        self._append(command)
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._elapsed)

    def flush(self) -> None:
        """Pass on what waits, and stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            command, self._waiting = self._waiting, None
            self._append(command)

    def _elapsed(self) -> None:
        self._timer = None
        if self._waiting is not None:
            command, self._waiting = self._waiting, None
            self.offer(command)
