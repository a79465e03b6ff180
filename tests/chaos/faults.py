"""Faults at random moments, in every phase of the clients' lives."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from eventstore.errors import StoreUnavailable
from session_core.fleet import ProcessRole
from tests.chaos.network import Relay
from tests.chaos.world import PHASES, Kill, World
from tests.integration.stack import LIVENESS_MS, Child, Stack, http_get

PAUSE_S = (0.3, 2.0)
MOMENT_S = 3.0
"""How long a fault waits for its phase."""
STORE_OUT_S = 5.0
DOWN_S = 1.5
BACK_S = 60.0
"""How long a process may take to serve again."""
AT_ONCE = 2


class Injector:
    """
    Lives as long as the run's bad time. At least one gateway and, but for one kind, one worker stay well.
    """

    def __init__(self, stack: Stack, relays: Sequence[Relay], world: World, rng: random.Random) -> None:
        self.complaints: list[str] = []
        self._stack = stack
        self._relays = relays
        self._world = world
        self._rng = rng
        self._unwell: set[Child] = set()
        self._store_is_well = True
        self._kinds: dict[str, tuple[int, Callable[[int | None], Awaitable[bool]]]] = {
            "gateway_kill": (4, self._kill_gateway),
            "gateway_suspend": (2, self._suspend_gateway),
            "gateway_stop": (2, self._stop_gateway),
            "worker_kill": (4, self._kill_worker),
            "worker_suspend": (2, self._suspend_worker),
            "worker_stop": (2, self._stop_worker),
            "all_workers_kill": (1, self._kill_all_workers),
            "connections_cut": (5, self._cut),
            "store_suspend": (1, self._suspend_store),
            "store_kill": (2, self._kill_store),
        }

    async def run(self, seconds: float) -> None:
        """Do harm for so long; returns when everything is well again."""
        until_s = time.monotonic() + seconds
        gate = asyncio.Semaphore(AT_ONCE)
        names = [*self._kinds]
        weights = [weight for weight, _ in self._kinds.values()]
        # Each kind once, then by weight.
        queue = self._rng.sample(names, len(names))
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until_s:
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))
                name = queue.pop() if queue else self._rng.choices(names, weights)[0]
                await gate.acquire()
                tasks.create_task(self._harm(name)).add_done_callback(lambda _: gate.release())

    async def _harm(self, name: str) -> None:
        phase = self._rng.choice(PHASES)
        gateway = await self._world.moment(phase, MOMENT_S)
        # Some strike in the very moment, some while its consequences are under way.
        await asyncio.sleep(self._rng.choice((0, self._rng.uniform(0, 0.05), self._rng.uniform(0, 0.5))))
        if await self._kinds[name][1](gateway):
            self._world.faults[name] += 1
            self._world.phases[phase if gateway is not None else "any"] += 1

    # --- gateways -------------------------------------------------------------------------------------------

    async def _kill_gateway(self, gateway: int | None) -> bool:
        if (child := self._victim(self._stack.gateways, gateway)) is None:
            return False
        self._world.gateway_killed(self._stack.gateways.index(child))
        await child.kill()
        await self._restart(child)
        return True

    async def _suspend_gateway(self, gateway: int | None) -> bool:
        child = self._victim(self._stack.gateways, gateway)
        return child is not None and await self._suspend(child)

    async def _stop_gateway(self, gateway: int | None) -> bool:
        child = self._victim(self._stack.gateways, gateway)
        return child is not None and await self._stop(child)

    # --- workers --------------------------------------------------------------------------------------------

    async def _kill_worker(self, _: int | None) -> bool:
        if (child := self._victim(self._stack.workers)) is None:
            return False
        await self._kill(child)
        await self._restart(child)
        return True

    async def _kill_all_workers(self, _: int | None) -> bool:
        if self._unwell.intersection(self._stack.workers):
            return False
        self._unwell.update(self._stack.workers)
        for child in self._stack.workers:
            await self._kill(child)
        await asyncio.gather(*map(self._restart, self._stack.workers))
        return True

    async def _kill(self, child: Child) -> None:
        if child.worker_id is not None:
            self._world.kills.append(Kill(child.worker_id, time.time() * 1000))
        await child.kill()

    async def _suspend_worker(self, _: int | None) -> bool:
        child = self._victim(self._stack.workers)
        return child is not None and await self._suspend(child)

    async def _stop_worker(self, _: int | None) -> bool:
        child = self._victim(self._stack.workers)
        return child is not None and await self._stop(child)

    # --- any process ----------------------------------------------------------------------------------------

    def _victim(self, children: Sequence[Child], wanted: int | None = None) -> Child | None:
        """Choose one that is well, if another one is too."""
        well = [child for child in children if child not in self._unwell]
        if len(well) < 2:
            return None
        if wanted is not None and children[wanted] in well:
            well = [children[wanted]]
        child = self._rng.choice(well)
        self._unwell.add(child)
        return child

    async def _suspend(self, child: Child) -> bool:
        child.suspend()
        await asyncio.sleep(LIVENESS_MS / 1000 + self._rng.uniform(0.5, 3))
        child.resume()
        await self._back(child)
        return True

    async def _stop(self, child: Child) -> bool:
        try:
            code = await child.stop()
        except TimeoutError:
            self.complaints.append(f"{child.name} did not stop when asked to")
            await child.kill()
        else:
            if code:
                self.complaints.append(f"{child.name} stopped with {code}")
        await self._restart(child)
        return True

    async def _restart(self, child: Child) -> None:
        await asyncio.sleep(self._rng.uniform(0, DOWN_S))
        await child.start()
        await self._back(child)

    async def _back(self, child: Child) -> None:
        """Wait until a process serves again; one that ended by itself is a complaint, and started again."""
        try:
            async with asyncio.timeout(BACK_S):
                while not await self._serves(child):
                    await asyncio.sleep(0.1)
                    if not child.running:
                        code = await child.ended()
                        if self._store_is_well:
                            self.complaints.append(f"{child.name} ended by itself with {code}")
                        await asyncio.sleep(0.5)
                        await child.start()
        except TimeoutError:
            self.complaints.append(f"{child.name} did not come back")
        self._unwell.discard(child)

    async def _serves(self, child: Child) -> bool:
        if child in self._stack.gateways:
            with suppress(OSError, TimeoutError):
                await http_get(f"{self._stack.url(self._stack.gateways.index(child), 'http')}/health")
                return True
            return False
        with suppress(StoreUnavailable):
            workers = await self._stack.processes(ProcessRole.WORKER)
            return any(process.alive and process.id == child.worker_id for process in workers)
        return False

    # --- network and store ----------------------------------------------------------------------------------

    async def _cut(self, gateway: int | None) -> bool:
        relay = self._rng.choice(self._relays) if gateway is None else self._relays[gateway]
        cut = relay.cut_some(self._rng, 0.4)
        self._world.faults["connections"] += cut
        return cut > 0

    async def _suspend_store(self, _: int | None) -> bool:
        return await self._without_store(partial(self._stack.suspend_store, STORE_OUT_S))

    async def _kill_store(self, _: int | None) -> bool:
        return await self._without_store(partial(self._stack.crash_store, self._rng.uniform(0, 3)))

    async def _without_store(self, outage: Callable[[], Awaitable[None]]) -> bool:
        if not self._store_is_well:
            return False
        self._store_is_well = False
        await outage()
        self._store_is_well = True
        return True
