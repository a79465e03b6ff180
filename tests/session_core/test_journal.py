"""Entries: encoded whole, refused when damaged."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from session_core import commands as cmd
from session_core import events as ev
from session_core import items
from session_core.audio import SAMPLE_RATES_HZ, AudioFormat, Encoding, ticks_to_samples
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, SessionPatch, TurnDetection, Way
from session_core.errors import UnreadableEntry
from session_core.items import Item, Part
from session_core.journal import Body, Role, Stamp, decode_entry, encode_entry
from tests.session_core.scenario import CONFIG, PROFILE

BODIES: list[Body] = [
    cmd.UpdateSession(SessionPatch(voice="ash", turn_detection=None), "e1"),
    cmd.AppendAudio(b"\x00\xff"),
    cmd.CommitInput(None, speech=False),
    cmd.ClearInput(cancel_turn=True),
    cmd.CreateItem(Item("a", role=items.Role.USER, parts=(Part("input_text", text="Hello"),)), "root"),
    cmd.CreateResponse(cmd.ResponseOptions(metadata={"k": "v"}, max_output_tokens=None)),
    cmd.CancelResponse("r"),
    cmd.AckPlayback(1, 2, "r"),
    cmd.Heartbeat(),
    cmd.ConfirmAttachment(),
    cmd.RetrieveItem("a"),
    cmd.DeleteItem("a", "e1"),
    cmd.TruncateItem("a", 0, 40, "e1"),
    cmd.AppendText("Hello"),
    cmd.ClearOutput(),
    cmd.BargeIn("e1"),
    cmd.SignalTurn("user_started"),
    cmd.CloseSession(),
    ev.SessionOpened("s", PROFILE, CONFIG, Limits(), Way.DUPLEX, Dialect.BETA, 1),
    ev.ClientAttached("a", "g", 1, None, b"h"),
    ev.ClientDetached(1),
    ev.WorkerAssigned("w", 1),
    ev.ServingBegan(),
    ev.AssignmentDeclined(1, "full"),
    ev.SpeechStarted(1),
    ev.SpeechStopped(2),
    ev.ModelUnitCompleted(0, 0, 0, 1, 2, ev.Decision.SPEAK, (1, 2), b"c", "t", None, "r"),
    ev.OutputRendered(0, 0, 0, b"a", last=True),
    ev.SideOutput("r", "t", b"a", (ev.ToolCall("c", "f", "{}"),), 3, last=False),
    ev.InputTranscribed("a", "Hello", 40),
    ev.ModelFailed("boom"),
    ev.DeadlinePassed(ev.DeadlineKind.IDLE, 1),
    ev.OutboundDigest(1, b"h"),
]


def test_every_entry_has_an_example() -> None:
    """What can be journaled is encoded, decoded and cut below."""
    assert set(get_args(Body)) == {type(body) for body in BODIES}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
@pytest.mark.parametrize("stamp", [None, Stamp(Role.WORKER, 2, 3)])
def test_an_entry_comes_back_as_it_was(body: Body, stamp: Stamp | None) -> None:
    """Bytes stay bytes, absent stays absent, None stays None."""
    entry = decode_entry(encode_entry(body, stamp))

    assert (body, stamp) == (entry.body, entry.stamp)


def test_audio_lies_raw_in_an_entry() -> None:
    """No base64, and few bytes around it."""
    pcm = bytes(range(256)) * 15

    data = encode_entry(cmd.AppendAudio(pcm), Stamp(Role.CLIENT, 1, 1))
    assert pcm in data
    assert len(data) < len(pcm) + 20


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_cut_entry_is_unreadable(body: Body) -> None:
    """Every proper prefix of an entry is refused."""
    data = encode_entry(body)
    for end in range(len(data)):
        with pytest.raises(UnreadableEntry):
            decode_entry(data[:end])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(ev.SpeechStarted(-1), id="negative"),
        pytest.param(ev.SpeechStarted(1 << 60), id="beyond counting"),
        pytest.param(cmd.TruncateItem("a", -1, 0), id="an index from the end"),
        pytest.param(cmd.TruncateItem("a", 0, -1), id="an end before the beginning"),
        pytest.param(ev.SideOutput("r", tokens=1 << 60), id="more tokens than there are"),
        pytest.param(ev.InputTranscribed("a", duration_ms=-1), id="audio of negative length"),
        pytest.param(
            cmd.CreateItem(Item("a", parts=(Part("output_audio", heard_samples=-1),))),
            id="heard less than nothing",
        ),
        pytest.param(
            cmd.CreateItem(Item("a", parts=(Part("output_audio", marks=(items.Mark(-1, 0),)),))),
            id="said before the beginning",
        ),
        pytest.param(cmd.UpdateSession(SessionPatch(idle_timeout_s=-1)), id="idle before the beginning"),
        pytest.param(cmd.UpdateSession(SessionPatch(overlap_barge_in_ms=-1)), id="interrupted before"),
        pytest.param(
            cmd.UpdateSession(SessionPatch(turn_detection=TurnDetection(idle_timeout_ms=-1))),
            id="silent before",
        ),
        pytest.param(
            ev.SessionOpened(
                "s", ModelProfile("m", input_sample_rate_hz=0), CONFIG, Limits(), Way.DUPLEX, Dialect.GA, 1
            ),
            id="a rate of zero",
        ),
        pytest.param(
            cmd.UpdateSession(SessionPatch(input_format=AudioFormat(sample_rate_hz=7_999))),
            id="an unknown rate",
        ),
        pytest.param(
            ev.SessionOpened("s", PROFILE, CONFIG, Limits(max_history_items=0), Way.DUPLEX, Dialect.GA, 1),
            id="a history without bound",
        ),
    ],
)
def test_a_number_that_the_fold_cannot_compute_with_is_unreadable(body: Body) -> None:
    """Counts are checked where bytes become entries, so that no rule has to."""
    with pytest.raises(UnreadableEntry):
        decode_entry(encode_entry(body))


def test_an_unknown_tag_is_unreadable() -> None:
    """An entry of a later version."""
    with pytest.raises(UnreadableEntry):
        decode_entry(msgspec.msgpack.encode([None, ["aa2", b""]]))


# --- what entries are made of -------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("rate", SAMPLE_RATES_HZ)
def test_audio_time_is_exact(encoding: Encoding, rate: int) -> None:
    """A second is a second at every rate in every encoding, down to its last sample."""
    audio_format = AudioFormat(encoding, rate)
    second = rate * audio_format.sample_bytes

    assert (1_000, rate) == (
        audio_format.ms(second),
        audio_format.samples(second + audio_format.sample_bytes - 1),
    )
    assert rate == ticks_to_samples(
        sum(audio_format.ticks(audio_format.sample_bytes) for _ in range(rate)), rate
    )


def test_a_patch_tells_absent_from_none() -> None:
    """Absent keeps, None switches off."""
    config = SessionConfig("m", temperature=0.5, max_output_tokens=9)

    assert SessionConfig("m", max_output_tokens=9) == SessionPatch(temperature=None).onto(config)
    assert config == SessionPatch().onto(config)
