"""
Makes the golden journals and pins what they fold to: `python -m tests.session_core.golden.make`.

A journal is text, an entry a line: milliseconds, number, the entry's bytes in base64. `digests.json` has
what each journal gives clients, for each reducer version. Another digest for a journal that exists means that
living sessions would be told something else: that needs a new reducer version, under which this script pins
anew, and leaves the digests of the other versions alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core.audio import AudioFormat, Encoding
from session_core.config import (
    CommitPolicy,
    Limits,
    Modality,
    RateLimit,
    SessionPatch,
    Tool,
    Transcription,
    TurnDetection,
    Way,
)
from session_core.events import ToolCall
from session_core.items import Item, ItemType, Part, Role
from session_core.journal import Position
from session_core.reducer import REDUCER_VERSION
from tests.session_core.scenario import CONFIG, PROFILE, Scenario, folded

GOLDEN = Path(__file__).parent
DIGESTS = GOLDEN / "digests.json"

Entries: TypeAlias = list[tuple[Position, bytes]]

SMALL = replace(PROFILE, unit_samples=240)
"""Units of 10 ms, to keep the journals short."""
G711 = AudioFormat(Encoding.G711_ULAW, 8_000)


def plain_turn() -> Scenario:
    """An utterance and its answer, with an ack, a heartbeat and a graceful end."""
    session = Scenario.live(
        config=replace(CONFIG, turn_detection=TurnDetection(), output_format=G711), profile=SMALL
    )
    session.audio(480, "e1")
    session.worker(ev.SpeechStarted(0))
    session.listens()
    session.audio(480, "e2")
    session.worker(ev.SpeechStopped(400))
    session.listens(answers=None)
    session.speaks("Hello", bytes(80))
    session.speaks(" there.", bytes(80), last=True)
    session.client(cmd.AckPlayback(15, 10))
    session.client(cmd.Heartbeat("e3"))
    session.client(cmd.CloseSession())
    return session


def barge_in() -> Scenario:
    """OpenAI's way: an answer is talked over, a late unit is muted, the next answer is cancelled."""
    session = Scenario.live(Way.OPENAI, config=replace(CONFIG, turn_detection=TurnDetection()), profile=SMALL)
    session.audio(960)
    session.asks()
    session.speaks("It is", bytes(480))
    late = replace(session.unit_body(ev.Decision.SPEAK), text=" half", audio=bytes(480))
    session.worker(ev.SpeechStarted(120))
    session.worker(late)
    session.worker(ev.SpeechStopped(480))
    session.speaks("Yes", bytes(480))
    session.client(cmd.CancelResponse())
    session.client(cmd.ClearInput(cancel_turn=True))
    return session


def failover() -> Scenario:
    """A worker dies with audio half rendered, a client resumes past a lost answer and is replaced."""
    session = Scenario.live(config=replace(CONFIG, auto_response=True), profile=SMALL)
    session.audio(480)
    session.speaks("One", None)
    session.speaks(" two.", None, last=True)
    session.worker(ev.OutputRendered(0, 0, 0, bytes(240), last=False))
    session.fact(ev.ClientDetached(1))
    session.fact(ev.WorkerAssigned("w2", 2))
    session.attach("a2", shows="t1", offers="t2", received_seq=4)
    session.worker(ev.OutputRendered(0, 1, 120, bytes(240), last=True))
    session.attach("a3", shows="t1", offers="t3", received_seq=4)
    session.client(cmd.ConfirmAttachment())
    session.worker(ev.OutputRendered(1, 0, 0, bytes(480), last=True))
    session.attach("a4", shows="t3", offers="t4", received_seq=9)
    session.attach("a5", shows="t3", offers="t5", generation=4)
    session.worker(ev.ModelFailed("out of memory"))
    return session


def errors() -> Scenario:
    """Everything that is refused, items of all types, the warning and the maximum."""
    session = Scenario.live(limits=Limits(max_session_ms=100_000, max_pending_input_bytes=960), profile=SMALL)
    session.client(cmd.CommitInput(event_id="e1"))
    session.audio(481)
    session.audio(962)
    session.client(cmd.CancelResponse(event_id="e2"))
    session.client(cmd.UpdateSession(SessionPatch(model="gpt")))
    session.client(
        cmd.UpdateSession(SessionPatch(instructions="Be brief.", temperature=None, turn_detection=None))
    )
    session.client(cmd.CreateItem(Item("a", role=Role.USER, parts=(Part("input_text", text="Hi"),))))
    session.client(cmd.CreateItem(Item("a")))
    session.client(
        cmd.CreateItem(Item("b", ItemType.FUNCTION_CALL, call_id="c", name="f", arguments="{}"), "root")
    )
    session.client(cmd.CreateItem(Item("c", ItemType.FUNCTION_CALL_OUTPUT, call_id="c", output="42"), "z"))
    for command in (
        cmd.RetrieveItem("z"),
        cmd.DeleteItem("z"),
        cmd.TruncateItem("z", 0, 0),
        cmd.AppendText("z"),
    ):
        session.client(command)
    session.asks()
    session.client(cmd.CreateResponse())
    session.speaks("No", bytes(480))
    session.client(cmd.UpdateSession(SessionPatch(voice="ash")))
    session.attach("a2", shows="t0", offers="t2")
    session.fact(session.fold.outbound_digest())
    opened_ms = session.state.pinned.opened_ms
    session.now_ms = opened_ms + 40_000
    session.fact(ev.DeadlinePassed(ev.DeadlineKind.WARNING, opened_ms + 40_000))
    session.now_ms = opened_ms + 100_000
    session.fact(ev.DeadlinePassed(ev.DeadlineKind.MAXIMUM, opened_ms + 100_000))
    session.audio(480)
    return session


def tools() -> Scenario:
    """Text, two calls, text, cancelled; outputs in the wrong order; then a call that waits for its audio."""
    session = Scenario.live(
        Way.OPENAI,
        config=replace(
            CONFIG, tools=(Tool("f", "Find.", {"type": "object"}), Tool("g")), tool_choice="required"
        ),
        profile=replace(SMALL, supports_tools=True),
    )
    f, g = ToolCall("call_f", "f", '{"of": 1}'), ToolCall("call_g", "g", "{}")
    session.asks(metadata={"k": "v"})
    session.speaks("Let me see.", bytes(480), calls=(f, g))
    session.speaks("It is", bytes(480))
    session.client(cmd.AckPlayback(12))
    session.client(cmd.CancelResponse())
    session.client(cmd.CreateItem(Item("out_g", ItemType.FUNCTION_CALL_OUTPUT, call_id="call_g", output="2")))
    session.client(cmd.CreateItem(Item("out_f", ItemType.FUNCTION_CALL_OUTPUT, call_id="call_f", output="1")))
    session.client(
        cmd.CreateItem(Item("out_h", ItemType.FUNCTION_CALL_OUTPUT, call_id="call_h"), event_id="e1")
    )
    session.asks()
    session.speaks("One moment.", None, calls=(g,), last=True)
    session.worker(ev.OutputRendered(2, 0, 0, bytes(480), last=True))
    return session


def text() -> Scenario:
    """Text into the turn, a text answer, one that is cancelled, and one that speaks all the same."""
    session = Scenario.live(
        config=replace(CONFIG, output_modality=Modality.TEXT), profile=replace(SMALL, supports_text=True)
    )
    session.client(cmd.AppendText("Hel"))
    session.client(cmd.AppendText("lo", "e1"))
    session.client(cmd.CommitInput(respond=True))
    session.speaks("Hel", b"")
    session.speaks("lo", b"", last=True)
    session.asks()
    session.speaks("And", bytes(480))
    session.client(cmd.BargeIn())
    session.client(cmd.SignalTurn("user_started"))
    session.asks(output_modality=Modality.AUDIO, instructions="Aloud.")
    session.speaks("Yes", bytes(480), last=True)
    session.client(cmd.UpdateSession(SessionPatch(output_modality=Modality.AUDIO)))
    return session


def transcription() -> Scenario:
    """Transcripts out of order, one that fails, one of an item that is gone; silence that is answered."""
    detection = TurnDetection(prefix_padding_ms=0, idle_timeout_ms=500)
    session = Scenario.live(
        config=replace(CONFIG, turn_detection=detection, transcription=Transcription("whisper", "en")),
        profile=SMALL,
        limits=Limits(min_commit_ms=10),
    )
    first, second, third = session.commits(10), session.commits(10), session.commits(10)
    session.worker(ev.InputTranscribed(second, "there", 10))
    session.worker(ev.InputTranscribed(first, error="Too loud."))
    session.client(cmd.DeleteItem(third))
    session.worker(ev.InputTranscribed(third, "gone"))
    session.asks()
    session.speaks("Hello?", bytes(480), last=True)
    due_ms = session.state.playback.ends_ms + 500
    session.now_ms = due_ms
    session.fact(ev.DeadlinePassed(ev.DeadlineKind.SILENCE, due_ms))
    session.worker(ev.InputTranscribed(session.state.history[-1].item_id, "", 0))
    return session


def heard() -> Scenario:
    """Short speech that is listened to, long speech that is not; the heard point moves, is cut, is fixed."""
    session = Scenario.live(
        config=replace(
            CONFIG,
            turn_detection=TurnDetection(),
            overlap_barge_in_ms=20,
            playback_commit_policy=CommitPolicy.ACK_ONLY,
        ),
        profile=SMALL,
    )
    session.asks()
    for word in ("One", " two", " three", " four"):
        session.speaks(word, bytes(480))
    session.audio(1_920)
    session.worker(ev.SpeechStarted(0))
    session.speaks(" five", bytes(480))
    session.worker(ev.SpeechStopped(240))
    session.worker(ev.SpeechStarted(480))
    session.speaks(" six", bytes(480))
    session.client(cmd.AckPlayback(15, 12))
    session.speaks(" seven", bytes(480))
    session.speaks(" eight", bytes(480))
    item_id = session.state.playback.item_id
    session.client(cmd.AckPlayback(25))
    session.client(cmd.RetrieveItem(item_id))
    session.client(cmd.TruncateItem(item_id, 0, 35))
    session.client(cmd.TruncateItem(item_id, 0, 3_500, "e1"))
    session.client(cmd.AckPlayback(60))
    session.client(cmd.RetrieveItem(item_id))
    session.client(cmd.ClearOutput())
    return session


def side_responses() -> Scenario:
    """Two responses beside the default one: one is cancelled, one ends; the limits count all."""
    limits = Limits(
        max_side_responses=2, rate_limits=(RateLimit("requests", 4), RateLimit("tokens", 100, 30))
    )
    session = Scenario.live(profile=SMALL, limits=limits)
    first = session.asks(outside=True, metadata={"k": "v"}, output_modality=Modality.TEXT)
    session.asks()
    second = session.asks(outside=True, input=(Item("a", role=Role.USER),))
    session.client(cmd.CreateResponse(cmd.ResponseOptions(outside=True), "e1"))
    session.worker(ev.SideOutput(first, "Hm", tokens=3, last=False))
    session.speaks("Hello", bytes(480), last=True)
    session.client(cmd.CancelResponse(first))
    session.asks(outside=True)
    session.client(cmd.CreateResponse(event_id="e2"))
    session.worker(ev.SideOutput(second, "Ha", bytes(480), (ToolCall("c", "f", "{}"),), tokens=5))
    session.client(cmd.CloseSession())
    return session


SCENARIOS: tuple[Callable[[], Scenario], ...] = (
    plain_turn,
    barge_in,
    failover,
    errors,
    tools,
    text,
    transcription,
    heard,
    side_responses,
)


def dump(entries: Entries) -> str:
    """Give a journal as text."""
    return "".join(f"{ms} {n} {base64.b64encode(data).decode()}\n" for (ms, n), data in entries)


def load(name: str) -> Entries:
    """Read a golden journal."""
    entries = []
    for line in (GOLDEN / f"{name}.journal").read_text(encoding="ascii").splitlines():
        ms, n, data = line.split(" ")
        entries.append(((int(ms), int(n)), base64.b64decode(data, validate=True)))
    return entries


def digests(entries: Iterable[tuple[Position, bytes]]) -> dict[str, str | int]:
    """What a journal gives: the chain over session events and their count, a hash of the addressed ones."""
    fold, outbound = folded(entries)
    addressed = [one for one in outbound if one.attachment_id is not None]
    return {
        "events": fold.state.seq,
        "sha256": fold.digest.hex(),
        "addressed_sha256": hashlib.sha256(msgspec.msgpack.encode(addressed)).hexdigest(),
    }


def pinned() -> dict[str, dict[str, dict[str, str | int]]]:
    """Reducer version -> journal -> digests."""
    loaded: dict[str, dict[str, dict[str, str | int]]] = json.loads(DIGESTS.read_text(encoding="ascii"))
    return loaded


def main() -> None:
    """Write the journals of all scenarios, and what they fold to under the present reducer version."""
    known = pinned() if DIGESTS.exists() else {}
    known[str(REDUCER_VERSION)] = {}
    for scenario in SCENARIOS:
        name, entries = scenario.__name__, scenario().entries
        (GOLDEN / f"{name}.journal").write_text(dump(entries), encoding="ascii")
        known[str(REDUCER_VERSION)][name] = digests(entries)
    DIGESTS.write_text(json.dumps(known, indent=2) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
