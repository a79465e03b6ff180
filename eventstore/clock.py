"""Estimate of the store's time between its answers."""

from __future__ import annotations

import time
from collections.abc import Callable


class StoreClock:
    """
    The store's time in ms, carried on by this process's monotonic clock. Lives as long as the store object.

    Every process takes time from the store, so that clocks which disagree cannot matter.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_ms: float | None = None
        """Store time minus monotonic time; None before the first answer."""
        self._last_ms = 0
        self._contact_s = float("-inf")

    def contact(self) -> None:
        """Note that the store answered just now."""
        self._contact_s = self._monotonic()

    def sample(self, store_ms: float) -> None:
        """Take the store's own clock, as it was told just now."""
        self._contact_s = self._monotonic()
        self._offset_ms = store_ms - self._contact_s * 1000

    def at_least(self, store_ms: float) -> None:
        """
        Note that the store's time has reached an entry's id; an id is never ahead, but may be read late.
        """
        self._contact_s = self._monotonic()
        offset_ms = store_ms - self._contact_s * 1000
        if self._offset_ms is None or offset_ms > self._offset_ms:
            self._offset_ms = offset_ms

    def now_ms(self) -> int:
        """Estimated store time; never goes back. 0 before the first answer."""
        if self._offset_ms is not None:
            self._last_ms = max(self._last_ms, int(self._monotonic() * 1000 + self._offset_ms))
        return self._last_ms

    def last_contact_s(self) -> float:
        """Seconds since the store last answered; infinite if it never did."""
        return self._monotonic() - self._contact_s
