"""Golden journals: recorded once, they fold to the same events for as long as their version is served."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from replay_tools.lint import read, violations
from session_core import wire
from session_core.config import Way
from session_core.events import SessionOpened
from session_core.journal import decode_entry, encode_entry
from session_core.reducer import REDUCER_VERSION
from tests.session_core.golden.make import GOLDEN, SCENARIOS, digests, load, pinned
from tests.session_core.scenario import folded, type_of

GA: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
NAMES = [scenario.__name__ for scenario in SCENARIOS]


def test_every_journal_is_pinned() -> None:
    """No journal lies there unused, none is missing."""
    assert sorted(NAMES) == sorted(path.stem for path in GOLDEN.glob("*.journal"))
    assert sorted(NAMES) == sorted(pinned()[str(REDUCER_VERSION)])


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_journal_folds_to_its_digest(name: str) -> None:
    """Another digest tells living sessions something else: a new reducer version (see golden/make.py)."""
    assert pinned()[str(REDUCER_VERSION)][name] == digests(load(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_journal_is_in_order(name: str) -> None:
    """The recorded sessions keep the contract too."""
    _, outbound = folded(load(name))
    events = [read(msgspec.json.encode(event)) for event, attachment_id in outbound if attachment_id is None]

    assert [] == violations(events)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_journal_is_made_of_entries_of_today(name: str) -> None:
    """Old entries stay readable; a field that is new takes its default."""
    for _, data in load(name):
        entry = decode_entry(data)
        assert entry == decode_entry(encode_entry(entry.body, entry.stamp))


def stock(name: str) -> list[wire.ServerEvent]:
    """What a stock client would be sent of this journal, had the session been opened OpenAI's way."""
    (position, opening), *rest = load(name)
    body = decode_entry(opening).body
    assert isinstance(body, SessionOpened)
    _, outbound = folded([(position, encode_entry(replace(body, way=Way.OPENAI))), *rest])
    return [event for event, _ in outbound if event.tier < 3]


@pytest.mark.parametrize("name", NAMES)
def test_stock_clients_parse_a_golden_journal(name: str) -> None:
    """OpenAI's own types, strict, accept each event of tiers 1 and 2."""
    for event in stock(name):
        GA.validate_json(msgspec.json.encode(event), strict=True)


def test_golden_journals_hold_every_event() -> None:
    """Each type that a stock client may be sent is in one of them, as the oracle's proof for all."""
    kinds = [kind for kind in vars(wire).values() if isinstance(kind, type)]
    tags = [
        kind.__struct_config__.tag for kind in kinds if issubclass(kind, wire.ServerEvent) and kind.tier < 3
    ]
    every = {tag for tag in tags if isinstance(tag, str) and tag.islower()}

    assert every == {type_of(event) for name in NAMES for event in stock(name)}


def test_the_digest_depends_on_every_entry_that_counts() -> None:
    """The pin can fail: a journal without one of its entries folds to something else."""
    entries = load("plain_turn")
    whole = digests(entries)

    assert [] == [
        cut for cut in range(len(entries) - 1) if digests(entries[:cut] + entries[cut + 1 :]) == whole
    ]
