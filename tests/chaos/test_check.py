"""
The account itself: it finds whatever may go wrong on the way to a client, and nothing where all is well.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from api.codec.server import Projection
from replay_tools.reader import fold_steps
from session_core import commands as cmd
from session_core.config import Dialect, Way
from tests.chaos.check import Account, check
from tests.chaos.line import Line, Receipt, digest_of
from tests.chaos.user import Said, User
from tests.chaos.world import World
from tests.replay_tools.journals import conversation, serving

CONVERSATION = conversation()


def attended() -> User:
    """A client that heard and said everything, on two connections."""
    user = User(World(()), random.Random(0))
    user.session_id, user.over = CONVERSATION.session_id, "session.closed closed"
    projection = Projection(Way.DUPLEX, Dialect.GA)
    receipts: list[Receipt] = []
    for step in fold_steps(CONVERSATION.entries):
        for event, attachment_id in step.reduction.outbound:
            if attachment_id is None:
                text = projection.encode(event) or ""
                receipts.append(Receipt(len(receipts) + 1, digest_of(text.encode()), 0.0, event.event_id))
        if step.entry is not None and isinstance(step.entry.body, cmd.AppendAudio):
            user.said.append(Said("", step.entry.body.audio))
    first, second = Line(0, 0), Line(1, 5)
    first.receipts, second.receipts = receipts[:7], receipts[5:]
    user.lines = [first, second]
    user.seq = len(receipts)
    return user


async def account_of(user: User) -> Account:
    """The account of a client."""
    async with serving(CONVERSATION) as store:
        return await check(store, user, ())


async def test_all_is_well() -> None:
    """What a client asked for again may come again; nothing is wrong."""
    user = attended()
    account = await account_of(user)

    assert [] == account.problems
    assert account.sound
    assert user.seq + 2 == account.events


def _lose(receipts: list[Receipt]) -> None:
    del receipts[3]


def _duplicate(receipts: list[Receipt]) -> None:
    receipts.insert(3, receipts[2])


def _swap(receipts: list[Receipt]) -> None:
    receipts[3], receipts[4] = receipts[4], receipts[3]


def _alter(receipts: list[Receipt]) -> None:
    receipts[3] = receipts[3]._replace(digest=b"")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_lose, (1, 0, 0, 0)),
        (_duplicate, (0, 1, 0, 0)),
        (_swap, (1, 0, 1, 0)),
        (_alter, (0, 0, 0, 1)),
    ],
)
async def test_events_go_wrong(
    spoil: Callable[[list[Receipt]], None], expected: tuple[int, int, int, int]
) -> None:
    """Each kind is counted as what it is."""
    user = attended()
    spoil(user.lines[1].receipts)
    account = await account_of(user)

    assert expected == (account.lost, account.duplicated, account.out_of_order, account.altered)
    assert not account.sound


async def test_an_end_is_not_heard() -> None:
    """A client that was told of the end and lacks an event before it lacks it."""
    user = attended()
    user.lines.pop(0)
    account = await account_of(user)

    assert 5 == account.lost


@pytest.mark.parametrize("at", [0, 4, -1])
async def test_input_goes_wrong(at: int) -> None:
    """Input that is not in the journal, wherever it was said, is missed."""
    user = attended()
    user.said.insert(at, Said("", b"\1\2"))
    account = await account_of(user)

    assert [problem for problem in account.problems if problem.startswith("input: ")]


async def test_a_receipt_covers_too_much() -> None:
    """What was acknowledged has to be there."""
    user = attended()
    user.receipt = (1 << 30, "c1")
    account = await account_of(user)

    assert 2 == len(account.problems)
