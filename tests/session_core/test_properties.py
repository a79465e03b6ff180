"""What holds for every journal, legal or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from replay_tools.lint import read, violations
from session_core import commands as cmd
from session_core import wire
from session_core.config import Way
from session_core.deadlines import next_deadline
from session_core.errors import UnreadableEntry
from session_core.fold import Fold, decode_snapshot, encode_snapshot
from session_core.journal import Role, Stamp, decode_entry
from session_core.reducer import reduce_bytes
from session_core.state import Phase, State
from session_core.units import next_unit
from tests.session_core.golden.make import SCENARIOS, load
from tests.session_core.scenario import Scenario, folded
from tests.session_core.strategies import sessions

GA: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


@given(sessions())
def test_replay_equals_live(session: Scenario) -> None:
    """The same entries give the same state, digests and outbound events, byte for byte."""
    fold, outbound = folded(session.entries)

    assert session.fold == fold
    assert _msgpack.encode(session.outbound) == _msgpack.encode(outbound)


@given(sessions(), st.data())
def test_a_snapshot_and_the_rest_equal_the_whole(session: Scenario, data: st.DataObject) -> None:
    """Any prefix may be replaced by its snapshot."""
    cut = data.draw(st.integers(0, len(session.entries)))
    before, heard = folded(session.entries[:cut])
    restored = decode_snapshot(encode_snapshot(before))

    assert before == restored
    after, rest = folded(session.entries[cut:], restored)
    assert session.fold == after
    assert session.outbound == heard + rest


@given(sessions())
def test_repeated_and_stale_appends_change_nothing(session: Scenario) -> None:
    """A stamped entry that comes again, its number taken or its generation over, moves the position only."""
    for _, data in list(session.entries):
        try:
            stamp = decode_entry(data).stamp
        except UnreadableEntry:
            continue
        due = session.client_stamp() if stamp and stamp.role is Role.CLIENT else session.worker_stamp()
        if stamp is None or stamp == due:
            continue
        before = session.state
        assert [] == session.put(data)
        assert replace(before, position=session.state.position) == session.state


@given(sessions())
def test_clients_read_events_in_order(session: Scenario) -> None:
    """The contract of order and cardinality holds for the session events of every journal."""
    events = [read(_json.encode(event)) for event in session.events]

    assert [] == violations(events)
    assert list(range(1, session.state.seq + 1)) == [event.server_event_seq for event in events]


@given(sessions())
def test_nothing_comes_of_a_response_that_is_over(session: Scenario) -> None:
    """Not a delta, not an item; only its audio is played or dropped, and its items are cut or deleted."""
    over: set[str] = set()
    for event in session.events:
        response_id = getattr(event, "response_id", None)
        if isinstance(event, wire.PlaybackAcknowledged | wire.OutputAudioCleared):
            continue
        assert response_id not in over
        if isinstance(event, wire.ResponseDone):
            over.add(event.response_id)
    assert session.state.phase is not Phase.ENDED or over == {
        event.response_id for event in session.events if isinstance(event, wire.ResponseCreated)
    }


@given(sessions())
def test_the_worker_asks_and_answers_along_every_journal(session: Scenario) -> None:
    """The unit clock and the deadlines have an answer to every state."""
    state = State()
    for position, data in session.entries:
        state = reduce_bytes(state, position, data).state
        plan, due = next_unit(state, position[0]), next_deadline(state)
        assert plan is None or plan.unit == state.clock.next_unit
        assert (state.phase is Phase.OPEN) == (due is not None)


@given(sessions(ways=(Way.OPENAI,)))
def test_strict_clients_parse_every_event(session: Scenario) -> None:
    """OpenAI's own types accept each event that a session opened OpenAI's way sends."""
    for event, _ in session.outbound:
        if event.tier < 3:
            GA.validate_json(_json.encode(event), strict=True)


@given(sessions())
def test_numbers_stay_within_their_bounds(session: Scenario) -> None:
    """Along every journal: input is taken once, ledgers and numbers never go back, memory is bounded."""
    states = [State()]
    for position, data in session.entries:
        states.append(reduce_bytes(states[-1], position, data).state)
    for before, state in pairwise(states):
        received = state.input.received_samples(24_000)
        ledger, limits = state.playback, state.pinned.limits
        assert state.clock.consumed_samples <= received
        assert 0 <= state.input.committed_samples <= received
        assert 0 <= state.input.pending_bytes <= limits.max_pending_input_bytes
        assert len(state.history) <= limits.max_history_items
        assert 0 <= ledger.committed_ms <= ledger.played_ms <= ledger.sent_ms
        assert before.seq <= state.seq
        assert before.epoch <= state.epoch <= before.epoch + 1
        assert before.clock.next_unit <= state.clock.next_unit <= before.clock.next_unit + 1
        assert before.input.received_bytes <= state.input.received_bytes
        assert 0 <= state.clock.next_unit
        assert len(state.side) <= limits.max_side_responses
        assert len(state.transcribing) <= limits.max_history_items
        assert all(
            0 <= (part.heard_samples or 0) <= part.samples for item in state.history for part in item.parts
        )
        assert not state.renders or (state.response is not None and state.response.message is not None)
        assert state.response is None or not state.response.calls or state.renders


@given(
    st.lists(st.integers(1, 400).map(lambda samples: 2 * samples), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.booleans()), max_size=20),
)
def test_a_writer_that_resends_loses_and_doubles_nothing(
    sizes: list[int], faults: list[tuple[int, bool]]
) -> None:
    """After a failure it sends again from its first unacknowledged append, arrived or not."""
    session = Scenario.live()
    acknowledged = 0
    for sent, arrived in [*faults, (len(sizes) - 1, True)]:
        for n in range(acknowledged, min(sent + 1, len(sizes))):
            if n == sent and not arrived:
                break  # the connection broke before this one, and everything after it
            session.append(cmd.AppendAudio(bytes(sizes[n])), Stamp(Role.CLIENT, 1, n + 1))
        acknowledged = max(acknowledged, sent // 2)  # it heard of half of them

    assert sum(sizes) == session.state.input.received_bytes


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_arbitrary_bytes_never_raise(entries: list[bytes], opened: bool) -> None:
    """What cannot be folded ends the session; it never leaves the fold as an exception."""
    session = Scenario.live() if opened else Scenario()
    for data in entries:
        session.put(data)
    encode_snapshot(session.fold)


@given(sessions(moves=(0, 10)), st.data())
def test_a_damaged_byte_never_raises(session: Scenario, data: st.DataObject) -> None:
    """One flipped byte anywhere: every later state and event can still be made, kept and sent."""
    filled = [at for at, (_, entry) in enumerate(session.entries) if entry]
    at = data.draw(st.sampled_from(filled), label="entry")
    position, entry = session.entries[at]
    byte = data.draw(st.integers(0, len(entry) - 1), label="byte")
    damaged = bytearray(entry)
    damaged[byte] ^= data.draw(st.integers(1, 255), label="flip")
    entries = [*session.entries[:at], (position, bytes(damaged)), *session.entries[at + 1 :]]

    fold, outbound = folded(entries)
    assert decode_snapshot(encode_snapshot(fold)) is not None
    for event, _ in outbound:
        _json.encode(event)


NAMES = [scenario.__name__ for scenario in SCENARIOS]
WILD = (-(2**63), -1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**64 - 1)
"""Numbers at the edges of what the encoding, the limits and the arithmetic hold."""


def wild(value: object) -> Iterator[object]:
    """Give a decoded entry once for each number in it and each wild one in its place."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in wild(part))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from (value | {key: other} for other in wild(part))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from WILD


@pytest.mark.parametrize("name", NAMES)
def test_a_wild_number_never_raises(name: str) -> None:
    """Any number of an entry at its extremes: every later state and event can be made, kept and sent."""
    before, entries = Fold(), load(name)
    for at, (position, data) in enumerate(entries):
        for entry in wild(msgspec.msgpack.decode(data)):
            fold, outbound = folded([(position, _msgpack.encode(entry)), *entries[at + 1 :]], before)
            assert decode_snapshot(encode_snapshot(fold)) == fold
            for event, _ in outbound:
                _json.encode(event)
            next_unit(fold.state, position[0])
            next_deadline(fold.state)
        before, _ = before.step(position, data)


def test_the_oracle_can_refuse() -> None:
    """The strict types do not accept what OpenAI does not send."""
    details = wire.StatusDetails(type="cancelled", reason="barge_in")
    response = wire.ResponseView(id="r", status="cancelled", status_details=details, conversation_id="c")
    bad = wire.ResponseDone(event_id="e", response_id="r", response=response)

    with pytest.raises(ValueError, match="turn_detected"):
        GA.validate_json(_json.encode(bad), strict=True)
