"""Random sessions: journals of legal entries, mistakes of clients, stale and repeated appends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.audio import AudioFormat, Encoding
from session_core.config import (
    CommitPolicy,
    Limits,
    Modality,
    OverlapPolicy,
    RateLimit,
    SessionPatch,
    Tool,
    Transcription,
    TurnDetection,
    Way,
)
from session_core.deadlines import deadlines
from session_core.items import Item, ItemType, Part, Role
from session_core.journal import Stamp
from session_core.units import next_unit
from tests.session_core.scenario import CONFIG, PROFILE, Scenario

T = TypeVar("T")
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Move: TypeAlias = Callable[[Scenario, Draw], None]

_LIMITS = Limits(
    max_session_ms=600_000,
    disconnect_grace_ms=70_000,
    idle_timeout_ms=130_000,
    max_pending_input_bytes=60_000,
    max_history_items=6,
    min_commit_ms=10,
    max_side_responses=2,
)
_RATES = (RateLimit("requests", 3, 120), RateLimit("tokens", 4, 120))
_PROFILE = replace(PROFILE, supports_text=True, supports_tools=True)
_MODALITIES = st.sampled_from([UNSET, UNSET, Modality.AUDIO, Modality.TEXT])
_CALLS: tuple[tuple[ev.ToolCall, ...], ...] = (
    (ev.ToolCall("c1", "f", '{"a": 1}'),),
    (ev.ToolCall("c2", "f", ""), ev.ToolCall("c3", "g", "{}")),
)
_PATCHES = (
    SessionPatch(turn_detection=None),
    SessionPatch(turn_detection=TurnDetection()),
    SessionPatch(
        turn_detection=TurnDetection(prefix_padding_ms=0, create_response=False, interrupt_response=False)
    ),
    SessionPatch(input_format=AudioFormat(Encoding.G711_ULAW, 8_000)),
    SessionPatch(input_format=AudioFormat(Encoding.PCM_F32LE, 22_050)),
    SessionPatch(input_format=AudioFormat()),
    SessionPatch(output_format=AudioFormat(Encoding.G711_ALAW, 8_000)),
    SessionPatch(voice="ash"),
    SessionPatch(model="gpt"),
    SessionPatch(instructions="Be brief.", auto_response=True, max_output_tokens=None, idle_timeout_s=140),
    SessionPatch(turn_detection=TurnDetection(idle_timeout_ms=500), overlap_barge_in_ms=100),
    SessionPatch(turn_detection=TurnDetection("semantic_vad"), overlap_policy=OverlapPolicy.LISTEN_ONLY),
    SessionPatch(transcription=Transcription("whisper"), overlap_barge_in_ms=0),
    SessionPatch(transcription=None, overlap_policy=OverlapPolicy.BARGE_IN_ON_SPEECH),
    SessionPatch(playback_commit_policy=CommitPolicy.ACK_ONLY, output_modality=Modality.TEXT),
    SessionPatch(output_modality=Modality.AUDIO, tools=(Tool("f"),), tool_choice="required"),
)
_ITEMS = (
    Item("", role=Role.USER, parts=(Part("input_text", text="Hello"),)),
    Item("a", role=Role.USER, parts=(Part("input_text", text="Hello"),)),
    Item("b", role=Role.ASSISTANT, parts=(Part("output_text", text="Hello"),)),
    Item("c", role=Role.SYSTEM, parts=(Part("input_text", text="Be brief."),)),
    Item("d", ItemType.FUNCTION_CALL, call_id="c1", name="f", arguments="{}"),
    Item("e", ItemType.FUNCTION_CALL_OUTPUT, call_id="c1", output="42"),
)


def _wait(session: Scenario, draw: Draw) -> None:
    session.wait(draw(st.sampled_from([0, 20, 80, 400, 65_000])))


def _audio(session: Scenario, draw: Draw) -> None:
    session.audio(
        draw(st.sampled_from([0, 1, 960, 3_840, 4_800, 9_600, 9_600, 20_000])),
        draw(st.sampled_from([None, "e1", "e2"])),
    )


def _commit(session: Scenario, draw: Draw) -> None:
    session.client(
        cmd.CommitInput(
            draw(st.sampled_from([None, True, False])), draw(st.sampled_from([True, True, False]))
        )
    )


def _clear(session: Scenario, draw: Draw) -> None:
    session.client(cmd.ClearInput(draw(st.booleans())))


def _item(session: Scenario, draw: Draw) -> None:
    known = [item.item_id for item in session.state.history]
    after = draw(st.sampled_from([None, "root", "z", *known]))
    item = draw(st.sampled_from(_ITEMS))
    if item.item_id not in known and item.item_id in _added(session):
        # It fell out of the bounded history, so the fold cannot know that its id was taken.
        item = replace(item, item_id="")
    session.client(cmd.CreateItem(item, after, "e3"))


def _added(session: Scenario) -> set[str]:
    return {event.item.id for event in session.events if isinstance(event, wire.ItemAdded)}


def _text(session: Scenario, draw: Draw) -> None:
    session.client(cmd.AppendText(draw(st.sampled_from(["", "Hi", "Hello."]))))


def _item_command(session: Scenario, draw: Draw) -> None:
    """Shows, cuts or deletes an item; one always stays, so that the checker knows the last one as well."""
    known = [item.item_id for item in session.state.history]
    name = draw(st.sampled_from([*known, *known[-1:], "z"]))
    commands: list[cmd.AnyCommand] = [
        cmd.RetrieveItem(name),
        cmd.TruncateItem(name, draw(st.sampled_from([0, 0, 0, 1])), draw(st.sampled_from([0, 40, 80, 300]))),
    ]
    if len(known) > 1:
        commands.append(cmd.DeleteItem(name))
    session.client(draw(st.sampled_from(commands)))


def _transcript(session: Scenario, draw: Draw) -> None:
    name = draw(st.sampled_from([*session.state.transcribing, "z"]))
    error = draw(st.sampled_from([None, None, "Too loud."]))
    session.worker(ev.InputTranscribed(name, draw(st.sampled_from(["", "Hello"])), 40, error))


def _create(session: Scenario, draw: Draw) -> None:
    options = cmd.ResponseOptions(
        output_modality=draw(_MODALITIES),
        metadata=draw(st.sampled_from([None, {"k": "v"}])),
        outside=draw(st.sampled_from([False, False, True])),
    )
    session.client(cmd.CreateResponse(options))


def _cancel(session: Scenario, draw: Draw) -> None:
    active = [response.response_id for response in session.state.side]
    if session.state.response is not None:
        active.append(session.state.response.response_id)
    session.client(cmd.CancelResponse(draw(st.sampled_from([None, "resp_z", *active]))))


def _interrupt(session: Scenario, draw: Draw) -> None:
    session.client(draw(st.sampled_from([cmd.BargeIn(), cmd.ClearOutput(), cmd.SignalTurn("user_started")])))


def _side(session: Scenario, draw: Draw) -> None:
    names = [response.response_id for response in session.state.side]
    body = ev.SideOutput(
        draw(st.sampled_from([*names, *names, "resp_z"])),
        draw(st.sampled_from(["", "a", "bc"])),
        draw(st.sampled_from([b"", bytes(480)])),
        draw(st.sampled_from([(), (), *_CALLS])),
        draw(st.sampled_from([0, 2])),
        draw(st.booleans()),
    )
    session.worker(body)


def _ack(session: Scenario, draw: Draw) -> None:
    ms = st.sampled_from([-1, 0, 40, 80, 500, 10_000])
    names = st.sampled_from([None, session.state.playback.response_id, "resp_z"])
    session.client(cmd.AckPlayback(draw(ms), draw(st.none() | ms), draw(names)))


def _silence(session: Scenario) -> None:
    """The user says nothing for as long as turn detection waits."""
    for due_ms, kind in deadlines(session.state):
        if kind is ev.DeadlineKind.SILENCE:
            session.now_ms = max(session.now_ms, due_ms)
            session.fact(ev.DeadlinePassed(kind, due_ms))
            return


def _exchange(session: Scenario, draw: Draw) -> None:
    """A question and its answer, told in one piece so that random moves meet sessions that got somewhere."""
    session.audio(9_600)
    session.client(cmd.CommitInput(respond=True))
    unit = replace(session.unit_body(ev.Decision.SPEAK), text="Yes", audio=bytes(3_840), token_ids=(1,))
    session.worker(unit)
    if draw(st.booleans()):
        session.worker(replace(session.unit_body(ev.Decision.TURN_END), text="."))
        if draw(st.booleans()):
            _silence(session)


def _life_sign(session: Scenario, draw: Draw) -> None:
    session.client(draw(st.sampled_from([cmd.Heartbeat(), cmd.ConfirmAttachment()])))


def _update(session: Scenario, draw: Draw) -> None:
    session.client(cmd.UpdateSession(draw(st.sampled_from(_PATCHES)), "e4"))


def _attach(session: Scenario, draw: Draw) -> None:
    """Tokens are named like their generation: old ones may be shown, and some that never were offered."""
    held = session.state.attachment.generation
    generation = held + draw(st.sampled_from([1, 1, 1, 0, 2]))
    shown = held - draw(st.sampled_from([0, 0, 0, 1, 2, -1]))
    name = f"a{len(session.entries)}" if draw(st.booleans()) else session.state.attachment.attachment_id
    session.attach(name, shows=f"t{shown}", offers=f"t{generation}", generation=generation)


def _detach(session: Scenario, draw: Draw) -> None:
    session.fact(ev.ClientDetached(session.state.attachment.generation - draw(st.sampled_from([0, 1]))))


def _assign(session: Scenario, draw: Draw) -> None:
    generation = session.state.worker.generation + draw(st.sampled_from([1, 1, 1, 0, 2]))
    session.fact(ev.WorkerAssigned(f"w{generation}", generation))
    if draw(st.booleans()):
        session.worker(ev.ServingBegan())


def _unassign(session: Scenario, draw: Draw) -> None:
    generation = session.state.worker.generation
    if draw(st.booleans()):
        session.worker(ev.ModelFailed("boom"))
    else:
        session.fact(ev.AssignmentDeclined(generation - draw(st.sampled_from([0, 1])), "full"))


def _speech(session: Scenario, draw: Draw) -> None:
    """Mostly the fact that is due, about input that is not committed."""
    buffer = session.state.input
    received = buffer.received_samples(24_000)
    sample = draw(st.integers(draw(st.sampled_from([buffer.committed_samples, 0])), received + 100))
    starts = (buffer.speech_from is None) == draw(st.sampled_from([True, True, False]))
    session.worker(ev.SpeechStarted(sample) if starts else ev.SpeechStopped(sample))


def _unit(session: Scenario, draw: Draw) -> None:
    """A unit as the clock plans it or, where it plans none, the one that is due."""
    plan = next_unit(session.state, session.now_ms)
    active = session.state.response
    unit = replace(
        session.unit_body(draw(st.sampled_from(ev.Decision))),
        epoch=session.state.epoch - draw(st.sampled_from([0, 0, 0, 0, 1])),
        text=draw(st.sampled_from(["", "a", "bc"])),
        token_ids=(1,),
        audio=draw(st.sampled_from([None, b"", bytes(480), bytes(3_840)])),
        calls=draw(st.sampled_from([(), (), (), (), *_CALLS])),
        answers=plan.answers if plan else draw(st.sampled_from([None, active and active.response_id])),
        late=plan.late if plan else draw(st.sampled_from([False, False, True])),
    )
    session.worker(unit)


def _render(session: Scenario, draw: Draw) -> None:
    if not session.state.renders:
        return
    due = session.state.renders[draw(st.sampled_from([0, 0, 0, -1]))]
    part = due.next_part + draw(st.sampled_from([0, 0, 0, 1]))
    audio = draw(st.sampled_from([b"", bytes(480)]))
    session.worker(ev.OutputRendered(due.unit, part, due.next_sample, audio, draw(st.booleans())))


def _deadline(session: Scenario, draw: Draw) -> None:
    known = [deadline for deadline in deadlines(session.state) if deadline.kind is ev.DeadlineKind.WARNING]
    if known and draw(st.booleans()):
        due_ms, kind = known[0]
    else:
        due_ms, kind = draw(st.integers(0, session.now_ms)), draw(st.sampled_from(ev.DeadlineKind))
    session.fact(ev.DeadlinePassed(kind, due_ms))


def _digest(session: Scenario, draw: Draw) -> None:
    session.fact(session.fold.outbound_digest())


def _repeat(session: Scenario, draw: Draw) -> None:
    """An append whose outcome its writer did not hear of."""
    session.put(draw(st.sampled_from(session.entries))[1])


def _stale(session: Scenario, draw: Draw) -> None:
    """A writer out of office, or one that skipped a number."""
    shift = draw(st.sampled_from([-1, 1]))
    stamp, body = draw(
        st.sampled_from(
            [
                (session.client_stamp(), cmd.AppendAudio(bytes(960), "e9")),
                (session.client_stamp(), cmd.CancelResponse()),
                (session.worker_stamp(), session.unit_body(ev.Decision.SPEAK)),
            ]
        )
    )
    if draw(st.booleans()):
        session.append(body, Stamp(stamp.role, stamp.generation + shift, 1))
    else:
        session.append(body, Stamp(stamp.role, stamp.generation, stamp.n + shift))


def _end(session: Scenario, draw: Draw) -> None:
    """One of the ways in which a session ends."""
    known = list(deadlines(session.state))
    how = draw(st.sampled_from(["close", "deadline", "broken", "unreadable"]))
    if how == "close":
        session.client(cmd.CloseSession())
    elif how == "broken":
        session.worker(replace(session.unit_body(), unit=99))
    elif how == "unreadable":
        session.put(draw(st.binary(max_size=8)))
    elif known:
        due_ms, kind = draw(st.sampled_from(known))
        session.now_ms = max(session.now_ms, due_ms)
        session.fact(ev.DeadlinePassed(kind, due_ms))


_MOVES: tuple[Move, ...] = (
    *(_audio, _audio, _audio, _unit, _unit, _unit, _unit, _unit, _render, _render, _speech, _speech),
    *(_create, _create, _cancel, _commit, _commit, _ack, _item, _update, _clear, _wait, _life_sign),
    *(
        _exchange,
        _exchange,
        _exchange,
        _text,
        _item_command,
        _item_command,
        _transcript,
        _transcript,
        _side,
        _side,
        _interrupt,
    ),
    *(_attach, _detach, _assign, _unassign, _deadline, _digest, _repeat, _stale),
)


@st.composite
def sessions(
    draw: st.DrawFn, ways: tuple[Way, ...] = tuple(Way), moves: tuple[int, ...] = (0, 20, 40)
) -> Scenario:
    """A session of at least so many random moves. It rarely ends before the last one."""
    config = replace(
        CONFIG,
        auto_response=draw(st.booleans()),
        turn_detection=draw(st.sampled_from([None, TurnDetection(), TurnDetection(idle_timeout_ms=500)])),
        transcription=draw(st.sampled_from([None, Transcription("whisper")])),
        playback_commit_policy=draw(st.sampled_from(CommitPolicy)),
        overlap_barge_in_ms=draw(st.sampled_from([0, 0, 100])),
    )
    limits = replace(_LIMITS, rate_limits=draw(st.sampled_from([(), _RATES])))
    session = Scenario.live(draw(st.sampled_from(ways)), config=config, profile=_PROFILE, limits=limits)
    at_least = draw(st.sampled_from(moves))
    for move in draw(st.lists(st.sampled_from(_MOVES), min_size=at_least, max_size=at_least + 20)):
        move(session, draw)
    if draw(st.booleans()):
        _end(session, draw)
        _unit(session, draw)
        _audio(session, draw)
    return session
