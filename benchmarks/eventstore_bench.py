"""
What appending and following cost: N sessions at a voice session's rate, over a real server.

    python benchmarks/eventstore_bench.py [--seconds 8] [--sessions 50,100,200] [--idle 0,1000]

One process appends and follows (both halves of a gateway's work); the server is another process. CPU is this
process's, per entry appended and followed; latency is from the append call to the follower's batch.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from eventstore import EventStore, Follower, JournalWriter, RedisEventStore, ValkeyServer, new_session_id

ENTRIES_PER_S = 12.5
ENTRY_BYTES = 3900
WARM_UP_S = 1.0


class Result(NamedTuple):
    """One line of the table."""

    sessions: int
    idle: int
    entries: int
    cpu_us: float
    server_cpu_us: float
    p50_ms: float
    p99_ms: float
    entries_per_pipeline: float
    entries_per_read: float


def process_cpu_s(pid: int) -> float:
    """CPU seconds a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def write(writer: JournalWriter, until_s: float) -> None:
    """Append at the session's rate, in its own phase, each entry with the time of its append."""
    padding = bytes(ENTRY_BYTES - 8)
    next_s = time.perf_counter() + random.random() / ENTRIES_PER_S
    while next_s < until_s:
        await asyncio.sleep(next_s - time.perf_counter())
        writer.append(struct.pack("d", time.perf_counter()) + padding)
        next_s += 1 / ENTRIES_PER_S
    await writer.flush()


async def follow(follower: Follower, latencies_ms: list[float]) -> None:
    """Note each entry's latency until the follower is closed."""
    async for batch in follower:
        now_s = time.perf_counter()
        latencies_ms += [(now_s - struct.unpack_from("d", entry.data)[0]) * 1000 for entry in batch]


async def load(store: EventStore, server_pid: int, sessions: int, idle: int, seconds: float) -> Result:
    """Run one load and measure it after a warm-up."""
    latencies_ms: list[float] = []
    session_ids = [new_session_id() for _ in range(sessions)]
    followers = [store.follow(session_id) for session_id in session_ids]
    idlers = [store.follow(new_session_id()) for _ in range(idle)]
    until_s = time.perf_counter() + WARM_UP_S + seconds
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(follow(follower, latencies_ms)) for follower in followers]
        writing = [tasks.create_task(write(store.writer(session_id), until_s)) for session_id in session_ids]
        await asyncio.sleep(WARM_UP_S)
        latencies_ms.clear()
        stats = store.stats
        pipelines, appended, reads, read = (
            stats.append_pipelines,
            stats.appended_entries,
            stats.reads,
            stats.read_entries,
        )
        cpu_s, server_cpu_s = time.process_time(), process_cpu_s(server_pid)
        await asyncio.wait(writing)
        cpu_s, server_cpu_s = time.process_time() - cpu_s, process_cpu_s(server_pid) - server_cpu_s
        for follower in followers + idlers:
            follower.close()
        await asyncio.wait(following)
    latencies_ms.sort()
    entries = len(latencies_ms)
    return Result(
        sessions=sessions,
        idle=idle,
        entries=entries,
        cpu_us=cpu_s / entries * 1e6,
        server_cpu_us=server_cpu_s / entries * 1e6,
        p50_ms=latencies_ms[entries // 2],
        p99_ms=latencies_ms[entries * 99 // 100],
        entries_per_pipeline=(stats.appended_entries - appended) / (stats.append_pipelines - pipelines),
        entries_per_read=(stats.read_entries - read) / (stats.reads - reads),
    )


async def floor_cpu_us(sessions: int, seconds: float) -> float:
    """CPU per entry of the load alone: the same timers and payloads, no store."""
    cpu_s = time.process_time()
    entries = 0

    async def tick(until_s: float) -> None:
        nonlocal entries
        padding = bytes(ENTRY_BYTES - 8)
        next_s = time.perf_counter() + random.random() / ENTRIES_PER_S
        while next_s < until_s:
            await asyncio.sleep(next_s - time.perf_counter())
            struct.pack("d", time.perf_counter()) + padding
            entries += 1
            next_s += 1 / ENTRIES_PER_S

    until_s = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(sessions):
            tasks.create_task(tick(until_s))
    return (time.process_time() - cpu_s) / entries * 1e6


def as_row(result: Result, ratio: float) -> str:
    """A result as a row of the table; `ratio` compares its CPU with the first row's."""
    latency = f"{result.p50_ms:.1f} | {result.p99_ms:.1f}"
    batches = f"{result.entries_per_pipeline:.1f} | {result.entries_per_read:.1f}"
    cpu = f"{result.cpu_us:.0f} | {ratio:.2f} | {result.server_cpu_us:.0f}"
    return f"| {result.sessions} | {result.idle} | {result.entries} | {cpu} | {latency} | {batches} |"


async def main(arguments: argparse.Namespace) -> None:
    """Run every load on one server and print the table."""
    print(f"load generator alone: {await floor_cpu_us(100, 2):.0f} us per entry (included below)\n")
    print(
        "| busy | idle | entries | CPU us | ratio | server us | p50 ms | p99 ms | per pipeline | per read |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    first_us: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        async with ValkeyServer(Path(folder), fsync=arguments.fsync) as server:
            for idle in map(int, arguments.idle.split(",")):
                for sessions in map(int, arguments.sessions.split(",")):
                    async with RedisEventStore(server.url) as store:
                        result = await load(store, server.pid or 0, sessions, idle, arguments.seconds)
                    first_us = first_us or result.cpu_us
                    print(as_row(result, result.cpu_us / first_us), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--sessions", default="50,100,200")
    parser.add_argument("--idle", default="0,500", help="sessions followed beside them, without entries")
    parser.add_argument("--fsync", default="everysec", choices=["never", "everysec", "always"])
    uvloop.run(main(parser.parse_args()))
