"""
What the service costs: fold speed, the round trip beside a bare echo, memory a session. `duplex bench`.

    python benchmarks/load_bench.py [--quick] [--sessions 25,50,100,200] [--rounds 3] [--seconds 8]

Prints Markdown tables and one line of JSON. Nothing here passes or fails: times depend on the machine and on
what else it does. Compare ratios of one run, and medians of several.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import msgspec

from benchmarks import fold_bench, report, round_trip
from benchmarks.round_trip import Trip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("duplex bench", description="Measure the service on this machine.")
    parser.add_argument("--quick", action="store_true", help="under a minute: two loads, one short round")
    parser.add_argument("--sessions", help="numbers of sessions (default: 25,50,100,200; quick: 50,100)")
    parser.add_argument("--rounds", type=int, help="rounds over all loads (default: 3; quick: 1)")
    parser.add_argument("--seconds", type=float, help="measured seconds of a load (default: 8; quick: 5)")
    parser.add_argument("--idle", type=int, default=200, help="idle sessions to weigh; 0: none")
    given = parser.parse_args()
    quick: bool = given.quick
    counts = [int(count) for count in (given.sessions or ("50,100" if quick else "25,50,100,200")).split(",")]
    rounds, seconds = given.rounds or (1 if quick else 3), given.seconds or (5.0 if quick else 8.0)
    found = asyncio.run(measure(counts, rounds, seconds, given.idle))
    print(report.markdown(found))
    print()
    print(msgspec.json.encode(found).decode())


async def measure(counts: list[int], rounds: int, seconds: float, idle: int) -> report.Report:
    """
    Run everything, one after the other; rounds go over all loads, so that a bad minute falls on each alike.
    """
    load_average = os.getloadavg()[0]
    _progress("fold")
    fold = fold_bench.measure(entries=8_000, rounds=2 * rounds + 1)
    session_bytes: dict[str, float] = {}
    if idle:
        _progress(f"{idle} idle sessions")
        session_bytes = await round_trip.session_bytes(idle)
    trips: dict[int, list[Trip]] = {count: [] for count in counts}
    for number in range(1, rounds + 1):
        for count in counts:
            _progress(f"round {number} of {rounds}: {count} sessions")
            try:
                trip = await round_trip.trip(count, seconds)
            except RuntimeError as error:
                _progress(f"not counted: {error}")
                continue
            trips[count].append(trip)
            _progress(f"{trip.service.p50_ms:.1f} ms, gateway/echo {trip.ratio:.2f}")
    return report.Report(
        machine=report.machine(),
        load_average=load_average,
        fold=fold,
        rows=[report.row(count, trips[count]) for count in counts if trips[count]],
        session_bytes=session_bytes,
    )


def _progress(what: str) -> None:
    print(f"bench: {what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
