"""
The chaos suite: real processes, real sockets, many sessions, and whatever may break does, at random moments.

    python -m tests.chaos.run [--minutes 3] [--sessions 24] [--seed N]

Afterwards each session's events as they came over every connection, and everything that its client said, are
compared with the session's journal. Prints one line of JSON: a `Summary`. Exit code 1 if anything is wrong;
then the store's data and the logs are kept.

Not covered: a store that loses what it acknowledged (`relaxed`), clocks that jump, the archive, clients that
read slowly, Redis Cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from eventstore.errors import UnknownSession
from eventstore.store import EventStore
from replay_tools.reader import read_steps
from session_core.state import Phase
from tests.chaos.check import Account, check, check_unheard
from tests.chaos.faults import Injector
from tests.chaos.network import Relay
from tests.chaos.script import talk
from tests.chaos.user import User
from tests.chaos.world import World
from tests.integration.stack import Options, Stack, run_duplex

GRACE_S = 30
SETTLE_S = 90.0
"""After the last fault every client is answered and has closed within this time, or it is stuck."""
SHOWN = 10
"""Journals that are written down when something is wrong with them."""
OPTIONS = Options(
    fsync="always",
    settings={
        "gateway.durability": "durable",
        "gateway.limits.disconnect_grace_ms": str(GRACE_S * 1000),
        # Workers are killed faster here than a session is given up for.
        "gateway.limits.max_barren_workers": "20",
        "worker.durability": "durable",
        "worker.speech_model": "energy",
    },
)


class Summary(Struct, kw_only=True):
    """What a run came to. The counts from `lost` on must be 0."""

    seed: int
    seconds: float
    sessions: int
    unheard: int
    """Sessions whose opening broke off before the client heard of them."""
    ended: dict[str, int]
    faults: dict[str, int]
    phases: dict[str, int]
    errors: dict[str, int]
    events: int
    input_bytes: int
    verified: int
    late_entries: int
    resume_ms: dict[str, float]
    failover_ms: dict[str, float]
    failover_to_unit_ms: dict[str, float]
    lost: int
    duplicated: int
    out_of_order: int
    altered: int
    stuck: int
    problems: int


class Run:
    """One run of the suite."""

    def __init__(self, folder: Path, seed: int, sessions: int) -> None:
        self._folder = folder
        self._seed = seed
        self._sessions = sessions
        self._stack = Stack(folder, OPTIONS, gateways=3, workers=3)
        self._users: list[User] = []
        self._world = World(())
        self._complaints: list[str] = []
        self._unheard = 0

    async def run(self, minutes: float) -> Summary:
        """Bad times, then quiet, then the account."""
        began_s = time.monotonic()
        async with AsyncExitStack() as everything:
            await everything.enter_async_context(self._stack)
            relays = [
                await everything.enter_async_context(Relay(self._stack.port(gateway)))
                for gateway in range(len(self._stack.gateways))
            ]
            self._world = World([f"ws://127.0.0.1:{relay.port}" for relay in relays])
            stuck = await self._live(relays, minutes * 60)
            stuck += await self._unended()
            await self._at_rest()
            account = await self._account()
        self._complaints += self._stack.complaints()
        return self._summary(account, stuck, time.monotonic() - began_s)

    async def _live(self, relays: Sequence[Relay], seconds: float) -> int:
        """Clients come and go while faults happen; gives how many could not go on in the quiet afterwards."""
        injector = Injector(self._stack, relays, self._world, random.Random(f"{self._seed}:faults"))
        residents = [
            asyncio.create_task(self._resident(number), name=f"resident {number}")
            for number in range(self._sessions)
        ]
        await injector.run(seconds)
        self._complaints += injector.complaints
        self._world.closing.set()
        done, late = await asyncio.wait(residents, timeout=SETTLE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()
        stuck = [user for user in self._users if user.session_id and not user.over]
        self._complaints += [f"{user.session_id}: stuck while {user.doing}" for user in stuck]
        return len(stuck)

    async def _resident(self, number: int) -> None:
        """One session after the other."""
        rng = random.Random(f"{self._seed}:{number}")
        await asyncio.sleep(rng.uniform(0, 5))
        while not self._world.closing.is_set():
            user = User(self._world, rng)
            self._users.append(user)
            await user.run(talk)

    async def _unended(self) -> int:
        """Wait until every session in the directory is over, those too whose clients never heard of them."""
        sessions = set(await self._stack.store.sessions())
        over: set[str] = set()
        until_s = time.monotonic() + GRACE_S + 30
        while (rest := sessions - over) and time.monotonic() < until_s:
            over |= {session_id for session_id in rest if await _is_over(self._stack.store, session_id)}
            await asyncio.sleep(1)
        self._complaints += [f"{session_id}: is not over" for session_id in rest]
        return len(rest)

    async def _at_rest(self) -> None:
        """Nothing is held for sessions that are over, and no gauge says otherwise."""
        try:
            await self._stack.settled()
        except TimeoutError:
            self._complaints.append(f"something is still held: {await self._held()}")
        for gateway in range(len(self._stack.gateways)):
            stats = (await self._stack.health(gateway)).stats
            gauges = {name: stats[name] for name in ("websockets", "sockets", "followers", "pending_bytes")}
            if any(gauges.values()):
                self._complaints.append(f"gateway {gateway} is not at rest: {gauges}")

    async def _held(self) -> dict[str, list[str]]:
        store = self._stack.store
        return {process.id: [*await store.held(process.id)] for process in await store.processes()}

    async def _account(self) -> Account:
        account, store = Account(), self._stack.store
        users = {user.session_id: user for user in self._users if user.session_id}
        known = await store.sessions()
        for session_id in known:
            user = users.get(session_id)
            try:
                if user is None:
                    self._unheard += 1
                    found = await check_unheard(store, session_id)
                else:
                    found = await check(store, user, self._world.kills)
            except UnknownSession:
                found = Account(problems=[] if user is None else ["there is no journal"])
            if not found.sound:
                ended = user.over if user is not None else "unheard"
                print(
                    f"--- {session_id} ({ended}), seed {self._seed}",
                    *found.problems,
                    sep="\n",
                    file=sys.stderr,
                )
                await self._show(session_id)
            account.add(found)
        if missing := users.keys() - set(known):
            self._complaints.append(f"not in the directory: {missing}")
        return account

    async def _show(self, session_id: str) -> None:
        """Keep the journal of a session that something is wrong with, as the replay tools show it."""
        shown = self._folder / f"{session_id}.txt"
        if len([*self._folder.glob("*.txt")]) < SHOWN:
            url = self._stack.store_url
            _, text = await run_duplex("replay", "show", session_id, "--events", "--redis", url)
            shown.write_text(text)
            print(f"its journal: {shown}", file=sys.stderr)

    def _summary(self, account: Account, stuck: int, seconds: float) -> Summary:
        for complaint in self._complaints[:50]:
            print(complaint[:2000], file=sys.stderr)
        world = self._world
        ended: dict[str, int] = {}
        for user in self._users:
            if user.session_id:
                ended[user.over] = ended.get(user.over, 0) + 1
        return Summary(
            seed=self._seed,
            seconds=round(seconds, 1),
            sessions=sum(ended.values()),
            unheard=self._unheard,
            ended=ended,
            faults=dict(world.faults),
            phases=dict(world.phases),
            errors=dict(world.errors),
            events=account.events,
            input_bytes=account.input_bytes,
            verified=account.verified,
            late_entries=account.late,
            resume_ms=_percentiles(world.resumes_ms),
            failover_ms=_percentiles(account.failovers_ms),
            failover_to_unit_ms=_percentiles(account.failover_gaps_ms),
            lost=account.lost,
            duplicated=account.duplicated,
            out_of_order=account.out_of_order,
            altered=account.altered,
            stuck=stuck,
            problems=len(account.problems) + len(self._complaints),
        )


async def _is_over(store: EventStore, session_id: str) -> bool:
    """Whether the journal says that the session ended, or that it never began: an opening that broke off."""
    phase = Phase.NEW
    try:
        async for step in read_steps(store, session_id):
            phase = step.after.state.phase
    except UnknownSession:
        return True
    return phase is not Phase.OPEN


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    ordered = sorted(values)
    return {
        "n": len(ordered),
        "p50": round(ordered[len(ordered) // 2]),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]),
    }


def main() -> int:
    """Run once; gives the exit code."""
    parser = argparse.ArgumentParser(description="Break everything, and account for every event.")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long things break")
    parser.add_argument("--sessions", type=int, default=24, help="at a time")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="duplex-chaos-"))
    try:
        summary = uvloop.run(Run(folder, seed, given.sessions).run(given.minutes))
    except BaseException:
        print(f"data and logs are kept in {folder}", file=sys.stderr)
        raise
    print(msgspec.json.encode(summary).decode())
    if any((summary.lost, summary.duplicated, summary.out_of_order, summary.stuck, summary.problems)):
        print(f"data and logs are kept in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
