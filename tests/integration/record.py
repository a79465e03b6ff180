"""What the journal says: the other side of every comparison."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from api.codec.server import Projection
from duplex.wav import correlation
from eventstore.store import EventStore
from replay_tools.lint import read, violations
from replay_tools.reader import Step, read_steps
from replay_tools.verify import Outcome, verify
from session_core import commands as cmd
from session_core import events as ev
from session_core.journal import Role
from tests.integration.caller import Caller, Event
from tests.integration.stack import Stack, until


class Record(NamedTuple):
    """A session's journal, folded."""

    outbound: list[Event]
    """Every numbered event, as this session's clients read it."""
    input: bytes
    """All audio that the session received."""
    workers: list[ev.WorkerAssigned]
    """Assignments that counted."""
    late: int
    """Entries of a worker or an attachment whose generation was over, and"""
    late_effects: int
    """how many of them changed anything: none may."""
    undecodable: int


async def record(store: EventStore, session_id: str) -> Record:
    """Read a session's journal up to its present end."""
    outbound: list[Event] = []
    pcm, workers = bytearray(), list[ev.WorkerAssigned]()
    late = late_effects = undecodable = 0
    projection: Projection | None = None
    async for step in read_steps(store, session_id):
        before, after = step.before.state, step.after.state
        if projection is None:
            projection = Projection(after.pinned.way, after.pinned.dialect)
        for event, attachment_id in step.reduction.outbound:
            text = None if attachment_id else projection.encode(event)
            if text is not None:
                outbound.append(msgspec.json.decode(text))
        body = step.entry.body if step.entry is not None else None
        undecodable += step.entry is None
        if _is_late(step):
            late += 1
            late_effects += replace(before, position=after.position) != after
        if isinstance(body, cmd.AppendAudio) and after.input.received_bytes > before.input.received_bytes:
            pcm += body.audio
        if isinstance(body, ev.WorkerAssigned) and after.worker.generation > before.worker.generation:
            workers.append(body)
    return Record(outbound, bytes(pcm), workers, late, late_effects, undecodable)


def _is_late(step: Step) -> bool:
    if step.entry is None or step.entry.stamp is None:
        return False
    stamp, state = step.entry.stamp, step.before.state
    holder = state.worker if stamp.role is Role.WORKER else state.attachment
    return stamp.generation < holder.generation


def check_reply(reply: bytes, said: bytes) -> None:
    """The reply is what was said: sample for sample, and it sounds like it."""
    assert reply
    assert said.find(reply) >= 0, "the reply is no stretch of what was said"
    assert correlation(reply, said) > 0.9


async def check_session(stack: Stack, caller: Caller) -> Record:
    """
    What a client read to the session's end is what its journal says: all of it, once, in order.

    The journal itself is whole, and vouched for by what gateways recorded while it was live.
    """
    found = await record(stack.store, caller.session_id)
    assert found.outbound == caller.numbered
    assert [] == violations(read(frame) for frame in caller.frames)
    assert 0 == found.undecodable
    assert 0 == found.late_effects
    await check_journal(stack.store, caller.session_id)
    return found


async def check_journal(store: EventStore, session_id: str) -> None:
    """The journal verifies, as soon as the gateway has appended its last digest."""

    async def compared() -> bool:
        return (await verify(store, session_id)).outcome is not Outcome.NOTHING_TO_COMPARE

    await until(compared)
    report = await verify(store, session_id)
    assert Outcome.VERIFIED is report.outcome, report
