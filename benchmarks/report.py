"""What a run found, as Markdown for people and as one line of JSON for comparison."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct

from benchmarks.fold_bench import Speed
from benchmarks.load_client import Load
from benchmarks.round_trip import Trip

FOLD_AIM_PER_S = 150_000
RATIO_AIM = 4.5
RATIO_AIM_SESSIONS = 100
P50_AIM_MS = 8.0
P50_AIM_SESSIONS = 50


class Row(Struct, frozen=True, kw_only=True):
    """One number of sessions: medians over the rounds. CPU in microseconds per answered frame."""

    sessions: int
    rounds: int
    p50_ms: float
    p99_ms: float
    gateway_us: float
    worker_us: float
    valkey_us: float
    client_us: float
    echo_us: float
    echo_p50_ms: float
    echo_p99_ms: float
    ratio: float
    """Gateway over echo: the median of the rounds' ratios."""
    unanswered: int
    late: int
    """Frames of all rounds that the load itself sent late: with many of them the latencies say little."""


class Report(Struct, frozen=True, kw_only=True):
    """One run."""

    machine: str
    load_average: float
    """Of the last minute, when the run began: what else the machine was doing."""
    fold: list[Speed]
    rows: list[Row]
    session_bytes: dict[str, float]
    """Memory of an open, idle session, by process."""


def machine() -> str:
    """What this ran on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def row(sessions: int, trips: Sequence[Trip]) -> Row:
    """Sum up the rounds of one number of sessions."""
    served, echoed = [trip.service for trip in trips], [trip.echo for trip in trips]
    return Row(
        sessions=sessions,
        rounds=len(trips),
        p50_ms=statistics.median(load.p50_ms for load in served),
        p99_ms=statistics.median(load.p99_ms for load in served),
        gateway_us=_cpu_us(served, "gateway"),
        worker_us=_cpu_us(served, "worker"),
        valkey_us=_cpu_us(served, "valkey"),
        client_us=_cpu_us(served, "client"),
        echo_us=_cpu_us(echoed, "echo"),
        echo_p50_ms=statistics.median(load.p50_ms for load in echoed),
        echo_p99_ms=statistics.median(load.p99_ms for load in echoed),
        ratio=statistics.median(trip.ratio for trip in trips),
        unanswered=sum(load.unanswered for load in served),
        late=sum(load.late for load in served),
    )


def _cpu_us(loads: Sequence[Load], process: str) -> float:
    return statistics.median(load.cpu_us[process] for load in loads)


def markdown(report: Report) -> str:
    """The tables."""
    return "\n".join([*_head(report), *_fold(report), *_trips(report), *_memory(report), *_aims(report)])


def _head(report: Report) -> Iterator[str]:
    yield f"{report.machine}; load average at the start {report.load_average:.1f}"


def _fold(report: Report) -> Iterator[str]:
    yield from ("", "| fold, one core | entries/s | of decoding |", "|---|--:|--:|")
    for speed in report.fold:
        yield f"| {speed.what} | {speed.entries_per_s:,.0f} | {speed.of_decoding:.2f} |"


def _trips(report: Report) -> Iterator[str]:
    yield ""
    yield (
        "| sessions | p50 ms | p99 ms | gateway µs | worker µs | Valkey µs | client µs | echo µs "
        "| gateway/echo | echo p50 ms | echo p99 ms | sent late |"
    )
    yield "|--:" * 12 + "|"
    for each in report.rows:
        yield (
            f"| {each.sessions} | {each.p50_ms:.1f} | {each.p99_ms:.1f} | {each.gateway_us:.0f} "
            f"| {each.worker_us:.0f} | {each.valkey_us:.0f} | {each.client_us:.0f} | {each.echo_us:.0f} "
            f"| {each.ratio:.2f} | {each.echo_p50_ms:.1f} | {each.echo_p99_ms:.1f} | {each.late} |"
        )


def _memory(report: Report) -> Iterator[str]:
    if report.session_bytes:
        yield from ("", "| memory of an idle session | KiB |", "|---|--:|")
        for name, size in report.session_bytes.items():
            yield f"| {name} | {size / 1024:.0f} |"


def _aims(report: Report) -> Iterator[str]:
    yield from ("", "| aim | found | met |", "|---|--:|---|")
    folded = report.fold[1].entries_per_s
    yield _aim(
        f"{report.fold[1].what}: {FOLD_AIM_PER_S:,} entries/s", f"{folded:,.0f}", folded >= FOLD_AIM_PER_S
    )
    for each in report.rows:
        if each.sessions == RATIO_AIM_SESSIONS:
            aim = f"gateway at most {RATIO_AIM} times the echo's CPU at {RATIO_AIM_SESSIONS} sessions"
            yield _aim(aim, f"{each.ratio:.2f}", each.ratio <= RATIO_AIM)
        if each.sessions == P50_AIM_SESSIONS:
            aim = f"p50 at most {P50_AIM_MS:.0f} ms at {P50_AIM_SESSIONS} sessions"
            yield _aim(aim, f"{each.p50_ms:.1f}", each.p50_ms <= P50_AIM_MS)
    if len(report.rows) > 1:
        first, last = report.rows[0], report.rows[-1]
        growth = last.gateway_us / first.gateway_us
        aim = f"gateway CPU per frame flat or falling from {first.sessions} to {last.sessions} sessions"
        yield _aim(aim, f"x {growth:.2f}", growth <= 1.05)


def _aim(aim: str, found: str, met: bool) -> str:
    return f"| {aim} | {found} | {'yes' if met else 'no'} |"
