"""
What the whole stack costs over the engine alone, journal, worker and `frames_lm`; and what a failover costs.

    python -m benchmarks.gpu.stack_bench --shape 7b --sessions 1,16,64,96,128
    python -m benchmarks.gpu.stack_bench --shape tiny --sessions 1,4 --context 60 --units 40 --dtype float32 \
        --kv-gib 0.25 --eager

One process holds engine and worker, one the load (`stack_load`), one the journals (Valkey). Sessions have a
past of so many units, and go on in real time, in units of 80 ms; in one run their units begin spread over the
80 ms, as they would, in the other all at the same moment. First the engine alone is measured the same way, in
the same process. A failover kills the worker as a crash would, in its process, and has a second worker on the
same engine go on; it is counted from the assignment.

Weights are random: speed does not depend on what the model says. Prints one JSON line for each measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from benchmarks.engine_bench import write_config
from benchmarks.gpu.stack_load import UNIT_S, quantiles
from eventstore.connect import open_store
from eventstore.server import ValkeyServer
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling
from gpu_worker.engine.stream import EngineStream
from gpu_worker.frames_lm import FramesLmPlugin, FramesLmSettings
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import Worker

_WARM_UP_UNITS = 15
_GREEDY = UnitSampling(max_tokens=1)


class SharedPlugin(FramesLmPlugin):
    """A worker's plugin on an engine that others use too: it neither loads nor stops it."""

    def __init__(self, settings: FramesLmSettings, engine: Engine) -> None:
        super().__init__(settings)
        self._shared = engine

    async def start(self) -> None:
        """Take the engine that is there."""
        self.use(self._shared)

    async def aclose(self) -> None:
        """Leave the engine to the others."""


async def engine_alone(engine: Engine, sessions: int, options: argparse.Namespace) -> None:
    """Measure streams without anything around them: as fast as they go, and in real time."""
    context = [7 + at % 300 for at in range(options.context)]
    streams = [engine.open(f"stream {number}", context) for number in range(sessions)]
    began = time.perf_counter()
    await asyncio.gather(*(stream.prefill() for stream in streams))
    result: dict[str, Any] = {
        "engine_alone": sessions,
        "prefill_ms": round((time.perf_counter() - began) * 1e3, 1),
    }
    times = [await _together(streams) for _ in range(options.units + _WARM_UP_UNITS)][_WARM_UP_UNITS:]
    result["lockstep"] = quantiles(times)
    for spread in (True, False):
        times = await _in_real_time(streams, options.units, spread=spread)
        result["spread" if spread else "together"] = quantiles(times)
    for stream in streams:
        await stream.aclose()
    print(json.dumps(result), flush=True)


async def _unit(stream: EngineStream) -> None:
    await stream.append((5,), _GREEDY, in_place_of=stream.sampled)


async def _together(streams: list[EngineStream]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(_unit(stream) for stream in streams))
    return (time.perf_counter() - began) * 1e3


async def _in_real_time(streams: list[EngineStream], units: int, *, spread: bool) -> list[float]:
    began = time.perf_counter() + 0.05
    times: list[float] = []

    async def run(stream: EngineStream, begins: float) -> None:
        for unit in range(units + _WARM_UP_UNITS):
            due = begins + unit * UNIT_S
            await asyncio.sleep(due - time.perf_counter())
            await _unit(stream)
            if unit >= _WARM_UP_UNITS:
                times.append((time.perf_counter() - due) * 1e3)

    share = UNIT_S / len(streams) if spread else 0.0
    await asyncio.gather(*(run(stream, began + number * share) for number, stream in enumerate(streams)))
    return times


class Bench:
    """The whole stack around one loaded engine."""

    def __init__(
        self, engine: Engine, settings: FramesLmSettings, url: str, options: argparse.Namespace
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._url = url
        self._options = options

    async def stack(self, sessions: int) -> None:
        """Measure so many sessions through one worker."""
        async with open_store(self._url) as store:
            worker = Worker(store, self._plugin(), self._worker_settings("worker-a"))
            serving = asyncio.create_task(worker.run())
            await self._load(sessions, None)
            worker.stop()
            await serving

    async def failover(self, sessions: int) -> None:
        """Measure how soon a second worker goes on with so many sessions."""
        async with open_store(self._url) as one, open_store(self._url) as other:
            doomed = Worker(one, self._plugin(), self._worker_settings("worker-a"))
            heir = Worker(other, self._plugin(), self._worker_settings("worker-b"))
            serving = [asyncio.create_task(doomed.run()), asyncio.create_task(heir.run())]
            await self._load(sessions, serving[0])
            heir.stop()
            await serving[1]

    def _plugin(self) -> SharedPlugin:
        return SharedPlugin(self._settings, self._engine)

    def _worker_settings(self, name: str) -> WorkerSettings:
        return WorkerSettings(worker_id=name, store_url=self._url, capacity=self._settings.max_sessions)

    async def _load(self, sessions: int, doomed: asyncio.Task[None] | None) -> None:
        options = self._options
        profile = msgspec.json.encode(self._plugin().profile).decode()
        load = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.gpu.stack_load", "--store", self._url, "--profile", profile),
            *("--vocabulary", str(self._engine.vocabulary), "--sessions", str(sessions)),
            *("--context", str(options.context), "--units", str(options.units)),
            *(["--failover"] if doomed is not None else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert load.stdin is not None
        assert load.stdout is not None
        cpu_s, began, used = 0.0, 0.0, {}
        while line := (await load.stdout.readline()).decode().strip():
            match line:
                case "begin":
                    cpu_s, began = time.process_time(), time.perf_counter()
                case "end":
                    share = (time.process_time() - cpu_s) / (time.perf_counter() - began)
                    used = {"worker_cpu": round(share, 2)}
                case "kill":
                    assert doomed is not None
                    doomed.cancel()
                    with suppress(asyncio.CancelledError):
                        await doomed
                    load.stdin.write(b"killed\n")
                case _:
                    print(json.dumps({"stack": sessions} | json.loads(line) | used), flush=True)
        await load.wait()


async def run(options: argparse.Namespace) -> None:
    """Load the model once, then measure each number of sessions."""
    counts = [int(count) for count in options.sessions.split(",")]
    failovers = [int(count) for count in options.failovers.split(",") if count]
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), options.shape)
        settings = FramesLmSettings(
            checkpoint=folder,
            window_tokens=options.window,
            max_sessions=max(*counts, *failovers, 1),
            dtype=options.dtype,
            kv_cache_bytes=int(options.kv_gib * 2**30) if options.kv_gib else None,
            prefix_caching=False,
            eager=options.eager,
            random_weights=True,
            silence_grace_ms=2_000,
            max_batched_tokens=options.batched_tokens,
        )
        began = time.perf_counter()
        engine = await Engine.start(settings)
        boot_s = round(time.perf_counter() - began, 1)
        print(
            json.dumps({"boot_s": boot_s, "kv": engine.kv_budget._asdict(), "capacity": engine.capacity}),
            flush=True,
        )
        async with ValkeyServer(Path(folder), fsync="never") as valkey:
            bench = Bench(engine, settings, valkey.url, options)
            for count in counts:
                if not options.stack_only:
                    await engine_alone(engine, count, options)
                await bench.stack(count)
            for count in failovers:
                await bench.failover(count)
        await engine.aclose()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("tiny", "7b"), default="tiny")
    parser.add_argument("--sessions", default="1,4", help="numbers of sessions, with commas")
    parser.add_argument("--failovers", default="1,32", help="numbers of sessions that fail over at once")
    parser.add_argument("--context", type=int, default=1_000, help="units of each session's past")
    parser.add_argument("--window", type=int, default=1_536, help="tokens that a context may hold")
    parser.add_argument("--units", type=int, default=150, help="units that are measured, of each session")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, help="size of the KV cache; what is free by default")
    parser.add_argument("--batched-tokens", type=int, help="tokens of one engine step at most")
    parser.add_argument("--eager", action="store_true", help="neither compile nor capture")
    parser.add_argument("--stack-only", action="store_true", help="leave the engine alone out")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options))


if __name__ == "__main__":
    main()
