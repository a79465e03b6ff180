"""Waiting times between attempts."""

from __future__ import annotations

import random


class Backoff:
    """Exponentially growing, capped, jittered waiting times; `reset` after a success."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s

    def next_s(self) -> float:
        """How long to wait before the next attempt."""
        delay_s = self._next_s
        self._next_s = min(self._max_s, delay_s * 2)
        # Jitter: processes that lost the same server must not come back in step.
        return delay_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._next_s = self._min_s
