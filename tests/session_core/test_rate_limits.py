"""Rate limits: derived from the limits of the opening and this session's journal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Limits, RateLimit, Way
from tests.session_core.scenario import CONFIG, Scenario, one, types

AUTO = replace(CONFIG, auto_response=True)


def limited(way: Way = Way.DUPLEX, **limits: int) -> Scenario:
    """A session with limits by name, in windows of ten seconds."""
    rates = tuple(RateLimit(name, limit, 10) for name, limit in limits.items())
    return Scenario.live(way, config=AUTO, limits=Limits(rate_limits=rates))


def left(events: list[wire.ServerEvent]) -> list[tuple[str, int, int]]:
    """What `rate_limits.updated` says is left of each limit."""
    told = one(events, wire.RateLimitsUpdated).rate_limits
    return [(view.name, view.limit, view.remaining) for view in told]


@pytest.mark.parametrize(
    ("way", "code"), [(Way.OPENAI, "rate_limit_exceeded"), (Way.DUPLEX, "resource_exhausted")]
)
def test_requests_are_limited(way: Way, code: str) -> None:
    """Beyond the limit a request is refused, beside the conversation too; the next window begins anew."""
    session = limited(way, requests=2)
    began_ms = session.state.pinned.opened_ms
    session.asks()
    assert [("requests", 2, 1)] == left(session.client(cmd.CancelResponse()))
    session.asks(outside=True)

    for options in (cmd.ResponseOptions(), cmd.ResponseOptions(outside=True)):
        refused = one(session.client(cmd.CreateResponse(options, "e1")), wire.ErrorEvent)
        assert (code, "e1", True) == (
            refused.error.code,
            refused.error.event_id,
            refused.error.message.endswith("requests."),
        )
    session.now_ms = began_ms + 9_998
    assert ["error"] == types(session.client(cmd.CreateResponse()))
    session.asks()
    events = session.client(cmd.CancelResponse())
    assert [("requests", 2, 1)] == left(events)
    assert 9.999 == one(events, wire.RateLimitsUpdated).rate_limits[0].reset_seconds


def test_tokens_are_limited() -> None:
    """They are counted when a response is over; one in progress may use more than is left."""
    session = limited(tokens=3, requests=9)
    session.asks()
    session.speaks("a")
    events = session.speaks("b", last=True)
    assert [("tokens", 3, 0), ("requests", 9, 8)] == left(events)

    assert ["error"] == types(session.client(cmd.CreateResponse()))
    assert [] == session.speaks("unasked")
    session.wait(10_000)
    session.asks()
    assert [("tokens", 3, 3), ("requests", 9, 8)] == left(session.client(cmd.CancelResponse()))


def test_tokens_of_responses_outside_the_conversation_count() -> None:
    """They are the session's as well."""
    session = limited(tokens=5)
    side = session.asks(outside=True)

    assert [("tokens", 5, 2)] == left(session.worker(ev.SideOutput(side, "Hello", tokens=3)))


def test_a_commit_whose_response_the_limits_forbid() -> None:
    """The item stands, the response is refused under the commit's event id; the next window allows one."""
    session = limited(requests=0)
    session.audio(9_600)
    events = session.client(cmd.CommitInput(event_id="e1"))

    assert (1, "error") == (len(session.state.history), types(events)[-1])
    assert ("resource_exhausted", "e1") == (
        one(events, wire.ErrorEvent).error.code,
        one(events, wire.ErrorEvent).error.event_id,
    )


def test_sessions_without_limits_are_told_of_none() -> None:
    """An empty list is legal."""
    session = Scenario.live()
    session.asks()

    assert [] == left(session.client(cmd.CancelResponse()))
