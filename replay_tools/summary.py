"""One session in one line: what `ls` shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from eventstore import CursorLost, EventStore, UnknownSession
from session_core.state import State

from .errors import JournalCut
from .reader import read_steps

CONCURRENT_READS = 8
"""Journals read at once: a listing must not slow the service down."""


class Summary(Struct, frozen=True):
    """
    A session at its present end. `problem`: why its journal could not be folded, and then the rest is empty.
    """

    session_id: str
    started: str = ""
    model: str = ""
    way: str = ""
    phase: str = ""
    duration_ms: int = 0
    entries: int = 0
    outbound_events: int = 0
    worker_generation: int = 0
    attachment_generation: int = 0
    end_reason: str | None = None
    problem: str | None = None


async def summarise(store: EventStore, session_id: str) -> Summary:
    """Fold one session's journal to its end; a journal that cannot be folded is a summary too."""
    state, entries = State(), 0
    try:
        async for step in read_steps(store, session_id):
            state, entries = step.after.state, step.number
    except (UnknownSession, CursorLost, JournalCut) as error:
        return Summary(session_id, problem=str(error))
    pinned = state.pinned
    return Summary(
        session_id,
        started=datetime.fromtimestamp(pinned.opened_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        model=pinned.profile.model,
        way=pinned.way,
        phase=state.phase,
        duration_ms=state.now_ms - pinned.opened_ms,
        entries=entries,
        outbound_events=state.seq,
        worker_generation=state.worker.generation,
        attachment_generation=state.attachment.generation,
        end_reason=state.end_reason,
    )


async def summarise_all(store: EventStore) -> list[Summary]:
    """Every session of the directory, oldest first."""
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def bounded(session_id: str) -> Summary:
        async with gate:
            return await summarise(store, session_id)

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(bounded(session_id)) for session_id in await store.sessions()]
    return [job.result() for job in jobs]


def table(summaries: Sequence[Summary]) -> list[str]:
    """The summaries as aligned lines below a head line."""
    head = (
        "SESSION",
        "STARTED",
        "MODEL",
        "WAY",
        "PHASE",
        "SECONDS",
        "ENTRIES",
        "EVENTS",
        "WORKER",
        "CLIENT",
        "END",
    )
    rows = [head, *(_row(summary) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(summary: Summary) -> tuple[str, ...]:
    if summary.problem is not None:
        return (summary.session_id, *[""] * 9, summary.problem)
    return (
        summary.session_id,
        summary.started,
        summary.model,
        summary.way,
        summary.phase,
        f"{summary.duration_ms / 1000:.1f}",
        str(summary.entries),
        str(summary.outbound_events),
        str(summary.worker_generation),
        str(summary.attachment_generation),
        summary.end_reason or "",
    )
