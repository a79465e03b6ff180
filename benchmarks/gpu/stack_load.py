"""
The load of `stack_bench`: sessions with a past, which speak in real time straight into their journals.

Started by `stack_bench` as a process of its own. It is gateway and client at once, but for the socket: it
opens sessions, gives them a past of recorded units, assigns them to the worker, then appends 80 ms of audio
to each every 80 ms. Afterwards it reads the journals: a unit took from the entry that completed its input to
its own entry, by the store's clock.

Says `begin` and `end` around what is measured, and `kill` when the first worker is to die; waits for a line
then. What else it says is the result, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import uvloop

from eventstore.connect import open_store
from eventstore.ids import EntryId, new_session_id
from eventstore.store import EventStore
from gpu_worker.frames_lm import LEVELS, UNIT_SAMPLES, Position
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.fleet import slot_member
from session_core.journal import Body, Role, Stamp, decode_entry, encode_entry
from session_core.reducer import REDUCER_VERSION

UNIT_S = 0.08
_WARM_UP_UNITS = 25
_SEED_WORKER = "worker-before"


def chunks() -> list[bytes]:
    """Give units of noise as PCM16, as loud as speech is."""
    noise = np.random.default_rng(1)
    return [
        (noise.standard_normal(UNIT_SAMPLES) * loudness).astype("<i2").tobytes()
        for loudness in (20, 200, 800, 2_000, 5_000)
    ]


class Session:
    """One session, and the numbers of what was appended to it."""

    def __init__(self, store: EventStore, profile: ModelProfile) -> None:
        self.session_id = new_session_id()
        self.generation = 1
        self.cursor = EntryId(0, 0)
        """What was appended later is measured."""
        self._store = store
        self._writer = store.writer(self.session_id)
        self._profile = profile
        self._n = 0

    async def seed(self, units: int, vocabulary: int) -> None:
        """Open the session and give it a past: units of silence in which the model only listened."""
        config = SessionConfig(self._profile.model, auto_response=True)
        opened = ev.SessionOpened(
            self.session_id, self._profile, config, Limits(), Way.DUPLEX, Dialect.GA, REDUCER_VERSION
        )
        for body in (
            opened,
            ev.WorkerAssigned(_SEED_WORKER, 1),
            ev.ClientAttached("attachment-1", "gateway-a", 1, None, b"hash"),
        ):
            self._append(body)
        encoder = msgspec.msgpack.Encoder()
        said = 7
        for unit in range(units):
            token, said = said * LEVELS % vocabulary, (said * 1_103_515_245 + 12_345) % vocabulary
            codes = encoder.encode(Position(token, prompt=None if unit else (1,)))
            listened = ev.ModelUnitCompleted(
                unit, 0, 0, 0, UNIT_SAMPLES, ev.Decision.LISTEN, token_ids=(said,), codes=codes
            )
            self._append(listened, Stamp(Role.WORKER, 1, unit + 1))
            if unit % 500 == 0:
                await self._writer.room()
        await self._writer.flush()

    async def assign(self, worker: str) -> None:
        """Assign the next generation."""
        self.generation += 1
        await self._store.hold(worker, slot_member(self.session_id, self.generation), None)
        self._append(ev.WorkerAssigned(worker, self.generation))

    def speak(self, audio: bytes) -> None:
        """Append a unit of input."""
        self._n += 1
        self._append(cmd.AppendAudio(audio), Stamp(Role.CLIENT, 1, self._n))

    async def until_answered(self, audio: bytes) -> None:
        """Append a unit of input and wait until it was worked on: the context is there."""
        self.speak(audio)
        await self._writer.flush()
        while (entries := await self.entries())[-1].kind != "unit":  # noqa: ASYNC110 - one reader is enough
            await asyncio.sleep(0.05)
        self.cursor = entries[-1].at

    async def close(self) -> None:
        """End the session."""
        self._n += 1
        self._append(cmd.CloseSession(), Stamp(Role.CLIENT, 1, self._n))
        await self._writer.flush()
        self._writer.close()

    async def entries(self) -> list[Seen]:
        """Give what came after the cursor."""
        read = await self._store.read(self.session_id, self.cursor, limit=100_000)
        return [_seen(entry.id, entry.data) for entry in read]

    def _append(self, body: Body, stamp: Stamp | None = None) -> None:
        self._writer.append(encode_entry(body, stamp))


class Seen(NamedTuple):
    """An entry, as far as it is of interest."""

    at: EntryId
    kind: str
    spoken: bool = False
    generation: int = 0


def _seen(at: EntryId, data: bytes) -> Seen:
    entry = decode_entry(data)
    match entry.body:
        case cmd.AppendAudio():
            return Seen(at, "input")
        case ev.ModelUnitCompleted() as unit:
            assert entry.stamp is not None
            return Seen(at, "unit", bool(unit.audio), entry.stamp.generation)
        case ev.WorkerAssigned():
            return Seen(at, "assigned")
        case body:
            return Seen(at, type(body).__name__)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Give the middle, the worst of a hundred, and the worst."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "p50_ms": round(ordered[last // 2], 2),
        "p99_ms": round(ordered[last * 99 // 100], 2),
        "max_ms": round(ordered[-1], 2),
    }


async def speak(sessions: list[Session], units: int, *, spread: bool) -> float:
    """
    Append to all sessions in real time.

    Returns:
        By how many ms this process was late at worst.
    """
    audio, began, worst = chunks(), time.perf_counter() + 0.02, 0.0
    share = UNIT_S / len(sessions) if spread else 0.0
    for unit in range(units):
        for number, session in enumerate(sessions):
            wait_s = began + unit * UNIT_S + number * share - time.perf_counter()
            if wait_s > 0.001:
                await asyncio.sleep(wait_s)
            worst = max(worst, -wait_s)
            session.speak(audio[(unit * 7 + number * 3) % len(audio)])
        if share == 0.0:
            await asyncio.sleep(0)
    return worst * 1e3


async def measured(sessions: list[Session], units: int, *, spread: bool) -> dict[str, Any]:
    """Speak, and read afterwards how long each unit took."""
    await speak(sessions, _WARM_UP_UNITS, spread=spread)
    await asyncio.sleep(0.5)
    for session in sessions:
        session.cursor = (await session.entries())[-1].at
    print("begin", flush=True)
    late_ms = await speak(sessions, units, spread=spread)
    print("end", flush=True)
    await asyncio.sleep(1.0)
    times: list[float] = []
    spoken = missing = 0
    for session in sessions:
        entries = await session.entries()
        came = [entry.at.ms for entry in entries if entry.kind == "input"]
        done = [entry for entry in entries if entry.kind == "unit"]
        missing += len(came) - len(done)
        times += [unit.at.ms - ms for ms, unit in zip(came, done, strict=False)]
        spoken += sum(unit.spoken for unit in done)
    return {
        "sessions": len(sessions),
        "phase": "spread" if spread else "together",
        **quantiles(times),
        "units": len(times),
        "over_80_ms": sum(ms > 80 for ms in times),
        "spoken": round(spoken / max(1, len(times)), 2),
        "missing": missing,
        "load_late_ms": round(late_ms, 1),
    }


async def failed_over(store: EventStore, sessions: list[Session]) -> dict[str, Any]:
    """Have the worker killed while all speak, assign the other one at once, and see when each goes on."""
    await speak(sessions, _WARM_UP_UNITS, spread=True)
    print("kill", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for session in sessions:
        session.cursor = (await session.entries())[-1].at
    for session in sessions:
        await session.assign("worker-b")
    await speak(sessions, 50, spread=True)
    await asyncio.sleep(0.5)
    waits = []
    for session in sessions:
        entries = await session.entries()
        assigned = next(entry for entry in entries if entry.kind == "assigned")
        waits += [
            entry.at.ms - assigned.at.ms
            for entry in entries
            if entry.kind == "unit" and entry.generation == session.generation
        ][:1]
    return {"failover": len(sessions), **quantiles(waits), "went_on": len(waits)}


async def run(options: argparse.Namespace) -> None:
    """Make the sessions, then measure."""
    profile = msgspec.json.decode(options.profile, type=ModelProfile)
    async with open_store(options.store) as store:
        sessions = [Session(store, profile) for _ in range(options.sessions)]
        began = time.perf_counter()
        for session in sessions:
            await session.seed(options.context, options.vocabulary)
        seeded = time.perf_counter()
        for session in sessions:
            await session.assign("worker-a")
        await asyncio.gather(*(session.until_answered(chunks()[0]) for session in sessions))
        ready = {
            "seeded_s": round(seeded - began, 1),
            "opened_s": round(time.perf_counter() - seeded, 2),
        }
        if options.failover:
            print(json.dumps(await failed_over(store, sessions) | ready), flush=True)
        else:
            for spread in (True, False):
                result = await measured(sessions, options.units, spread=spread)
                print(json.dumps(result | ready), flush=True)
        for session in sessions:
            await session.close()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--profile", required=True, help="the model's profile, as JSON")
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--context", type=int, default=1_000)
    parser.add_argument("--units", type=int, default=150)
    parser.add_argument("--failover", action="store_true")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
