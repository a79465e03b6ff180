"""What clients and faults share: where the gateways are, what is going on, and what was done."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

PHASES = ("handshake", "append", "response", "barge_in", "resume", "takeover", "close")
KILL_SEEN_S = 3.0
"""A connection that breaks so soon after its gateway was killed broke because of that."""


class Kill(NamedTuple):
    """A worker that was killed."""

    worker_id: str
    at_ms: float
    """Wall clock, which the store reads too."""


class World:
    """
    One run; lives as long as it.

    Attributes:
        urls: of the gateways, each through its relay.
        closing: set when no new session is begun any more.
        faults: what was done, by kind.
        phases: what was done, by the phase that was waited for.
        errors: codes of the errors that clients were told.
        resumes_ms: from a gateway's kill until its client was resumed.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.closing = asyncio.Event()
        self.faults: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.resumes_ms: list[float] = []
        self.kills: list[Kill] = []
        self._gateway_kills_s: dict[int, float] = {}
        self._awaited: dict[str, asyncio.Future[int]] = {}

    def reached(self, phase: str, gateway: int) -> None:
        """
        A client is about to do something through a gateway: the moment that a fault may have waited for.
        """
        if (awaited := self._awaited.pop(phase, None)) is not None and not awaited.done():
            awaited.set_result(gateway)

    async def moment(self, phase: str, patience_s: float) -> int | None:
        """Wait for some client to reach a phase; gives its gateway, or None if none comes in time."""
        awaited = self._awaited.setdefault(phase, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(patience_s):
                return await awaited
        except TimeoutError:
            return None

    def gateway_killed(self, gateway: int) -> None:
        """Note when."""
        self._gateway_kills_s[gateway] = time.monotonic()

    def killed_s(self, gateway: int) -> float | None:
        """When this gateway was killed, if that was just now."""
        at_s = self._gateway_kills_s.get(gateway)
        return at_s if at_s is not None and time.monotonic() - at_s < KILL_SEEN_S else None
