"""
The reducer: where a session's journal becomes its state, and the state becomes what clients hear.

Theory
------
A session is its journal. Every process that cares for it folds the same entries in the same order and so
holds the same state; nobody sends state to anybody. One entry goes through four steps:

    gate      Is the writer in office, is this its next append, and is the entry legal in this phase?
              The table below answers, and nothing after it asks again. A stale entry moves the position,
              nothing else.
    decide    What does the entry mean now?      (state, body) -> changes
    evolve    What is the state after a change?  (state, change) -> state
    project   What do clients hear of it?        (before, change, after) -> outbound events

Three numbers refuse and none of them orders: an attachment's generation, a worker's generation, and the
number n of an append within one of them. The *epoch* refuses nothing. It mutes: a unit of the worker in
office that was begun in an epoch that is over counts for the unit clock and stands in the context, because
the model did hear and say it, but no client hears of it. What advances the epoch is a change like any other:
a cancel, an interruption, a model that yields.

Who wins when two things compete is never a question of time but of place in the journal. Two clients resume
with one token: the first `ClientAttached` takes the next generation, the second names one that is taken. Ten
reapers append one deadline: the first moves the state, so that the others name a deadline that the session no
longer has.

A client's mistake is a change too (`Refused`): journaled, replayed, and told as an `error` event. An entry
that cannot be decoded, or that contradicts the state though it passed the gate, ends this session, everywhere
alike, and nothing else.

Time is the position's milliseconds, ids are made from the position, randomness does not exist: the fold of
the same bytes gives the same state and the same outbound events, byte for byte, on any machine, live or years
later.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.decide import holders, inputs, outputs
from session_core.decide.common import Changes, Decide
from session_core.errors import BrokenInvariant, UnreadableEntry
from session_core.evolve import evolve
from session_core.journal import Body, JournalEntry, Position, Role, Stamp, decode_entry
from session_core.project import project
from session_core.state import Phase, State
from session_core.wire import Outbound as Outbound

START: Position = (0, 0)
"""Before every entry."""

REDUCER_VERSION = 1
"""Pinned in `SessionOpened`. Another outbound event for the same journal needs another version."""


class Rule(NamedTuple):
    """
    One row of the table: in which phase the entry counts, whose stamp it must carry, what it means.

    `role` None: anybody may write it.
    """

    phase: Phase
    role: Role | None
    decide: Decide


TABLE: dict[type[Body], Rule] = {
    # What opens the session. Legal as the first entry only.
    ev.SessionOpened: Rule(Phase.NEW, None, holders.opened),
    # Who holds it. Each names the generation it is about: anybody may append it, and repeats change nothing.
    ev.ClientAttached: Rule(Phase.OPEN, None, holders.client_attached),
    ev.ClientDetached: Rule(Phase.OPEN, None, holders.client_detached),
    ev.WorkerAssigned: Rule(Phase.OPEN, None, holders.worker_assigned),
    ev.AssignmentDeclined: Rule(Phase.OPEN, None, holders.assignment_declined),
    # What runs out.
    ev.DeadlinePassed: Rule(Phase.OPEN, None, holders.deadline_passed),
    # What the client asks for.
    cmd.UpdateSession: Rule(Phase.OPEN, Role.CLIENT, holders.update_session),
    cmd.AppendAudio: Rule(Phase.OPEN, Role.CLIENT, inputs.append_audio),
    cmd.CommitInput: Rule(Phase.OPEN, Role.CLIENT, inputs.commit_input),
    cmd.ClearInput: Rule(Phase.OPEN, Role.CLIENT, inputs.clear_input),
    cmd.AppendText: Rule(Phase.OPEN, Role.CLIENT, inputs.append_text),
    cmd.CreateItem: Rule(Phase.OPEN, Role.CLIENT, inputs.create_item),
    cmd.RetrieveItem: Rule(Phase.OPEN, Role.CLIENT, inputs.retrieve_item),
    cmd.DeleteItem: Rule(Phase.OPEN, Role.CLIENT, inputs.delete_item),
    cmd.TruncateItem: Rule(Phase.OPEN, Role.CLIENT, inputs.truncate_item),
    cmd.CreateResponse: Rule(Phase.OPEN, Role.CLIENT, outputs.create_response),
    cmd.CancelResponse: Rule(Phase.OPEN, Role.CLIENT, outputs.cancel_response),
    cmd.ClearOutput: Rule(Phase.OPEN, Role.CLIENT, outputs.clear_output),
    cmd.BargeIn: Rule(Phase.OPEN, Role.CLIENT, outputs.barge_in),
    cmd.SignalTurn: Rule(Phase.OPEN, Role.CLIENT, outputs.signal_turn),
    cmd.AckPlayback: Rule(Phase.OPEN, Role.CLIENT, outputs.ack_playback),
    cmd.Heartbeat: Rule(Phase.OPEN, Role.CLIENT, holders.heartbeat),
    cmd.ConfirmAttachment: Rule(Phase.OPEN, Role.CLIENT, holders.confirm_attachment),
    cmd.CloseSession: Rule(Phase.OPEN, Role.CLIENT, holders.close_session),
    # What the model heard, chose and said.
    ev.ServingBegan: Rule(Phase.OPEN, Role.WORKER, holders.serving_began),
    ev.SpeechStarted: Rule(Phase.OPEN, Role.WORKER, inputs.speech_started),
    ev.SpeechStopped: Rule(Phase.OPEN, Role.WORKER, inputs.speech_stopped),
    ev.ModelUnitCompleted: Rule(Phase.OPEN, Role.WORKER, outputs.unit_completed),
    ev.OutputRendered: Rule(Phase.OPEN, Role.WORKER, outputs.output_rendered),
    ev.SideOutput: Rule(Phase.OPEN, Role.WORKER, outputs.side_output),
    ev.InputTranscribed: Rule(Phase.OPEN, Role.WORKER, inputs.input_transcribed),
    ev.ModelFailed: Rule(Phase.OPEN, Role.WORKER, holders.model_failed),
    # What a gateway saw itself project.
    ev.OutboundDigest: Rule(Phase.OPEN, None, holders.outbound_digest),
}


class Reduction(Struct, frozen=True):
    """What one entry led to."""

    state: State
    changes: tuple[ch.Change, ...] = ()
    outbound: tuple[Outbound, ...] = ()


def reduce(state: State, position: Position, entry: JournalEntry) -> Reduction:
    """
    Fold one entry.

    Args:
        state: the fold of everything before.
        position: the entry's place in the journal.
        entry: what stands there.

    Raises:
        BrokenInvariant: the entry passed the gate and cannot be true.
    """
    rule = TABLE[type(entry.body)]
    if _refuses(state, rule, entry.stamp):
        return Reduction(replace(state, position=position))
    state = _admit(state, position, rule, entry)
    return _apply(state, rule.decide(state, entry.body))


def reduce_bytes(state: State, position: Position, data: bytes) -> Reduction:
    """Fold one entry as it lies in the store. What cannot be folded ends the session and never raises."""
    try:
        return reduce(state, position, decode_entry(data))
    except (UnreadableEntry, BrokenInvariant):
        state = replace(state, position=position)
        return _apply(state, holders.unreadable(state))


def _refuses(state: State, rule: Rule, stamp: Stamp | None) -> bool:
    """The one function that refuses: wrong phase, a writer out of office, or not its next append."""
    if state.phase is not rule.phase or (rule.phase is Phase.NEW and state.position != START):
        return True
    if rule.role is None:
        return False
    if stamp is None or stamp.role is not rule.role:
        return True
    if rule.role is Role.CLIENT:
        client = state.attachment
        return not client.attached or stamp.generation != client.generation or stamp.n != client.last_n + 1
    worker = state.worker
    return worker.worker is None or stamp.generation != worker.generation or stamp.n != worker.last_n + 1


def _admit(state: State, position: Position, rule: Rule, entry: JournalEntry) -> State:
    """
    Move the position and the writer's count on.

    A client's first append also confirms the token it was offered.
    """
    if rule.role is Role.CLIENT:
        client, buffer = state.attachment, state.input
        client = replace(
            client,
            last_n=client.last_n + 1,
            confirmed_hash=client.offered_hash or client.confirmed_hash,
            offered_hash=None,
        )
        event_id: str | None = getattr(entry.body, "event_id", None)
        if event_id is not None:
            buffer = replace(buffer, last_client_event_id=event_id)
        return replace(state, position=position, attachment=client, input=buffer, active_ms=position[0])
    if rule.role is Role.WORKER:
        worker = replace(state.worker, last_n=state.worker.last_n + 1)
        return replace(state, position=position, worker=worker)
    return replace(state, position=position)


def _apply(state: State, decided: Changes) -> Reduction:
    """Evolve through the changes, and number what clients hear of them."""
    if not decided:
        return Reduction(state)
    outbound: list[Outbound] = []
    for change in decided:
        after = evolve(state, change)
        for item in project(state, change, after):
            if isinstance(item, Outbound):
                outbound.append(_named(item, after.position, len(outbound)))
                continue
            seq = after.seq + 1
            after = replace(after, seq=seq)
            event = replace(item, event_id=f"event_{seq}", server_event_seq=seq, epoch=state.epoch)
            outbound.append(Outbound(event))
        state = after
    return Reduction(state, tuple(decided), tuple(outbound))


def _named(addressed: Outbound, position: Position, index: int) -> Outbound:
    """Give an unnumbered event its id, from its place."""
    event_id = f"event_{position[0]}_{position[1]}_{index}"
    return Outbound(replace(addressed.event, event_id=event_id), addressed.attachment_id)
