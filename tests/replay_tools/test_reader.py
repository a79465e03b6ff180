from __future__ import annotations

import pytest

from eventstore import EntryId, UnknownSession, new_session_id
from replay_tools.errors import JournalCut
from replay_tools.reader import BATCH, beginning, fold_steps, read_journal, read_steps
from session_core import commands as cmd
from session_core.fold import encode_snapshot
from tests.replay_tools.journals import conversation, opened, serving


async def test_a_journal_of_several_batches_is_read_whole() -> None:
    """Entries come in order, whatever the batches."""
    script = opened()
    script.hear(BATCH)

    async with serving(script) as store:
        entries = [entry async for entry in read_journal(store, script.session_id)]

    assert script.entries == entries


async def test_an_unknown_session_raises() -> None:
    """A journal that does not exist is not an empty one."""
    async with serving() as store:
        with pytest.raises(UnknownSession):
            await beginning(store, new_session_id())


async def test_a_trimmed_journal_is_folded_from_its_snapshot() -> None:
    """The fold of what is left, from the snapshot before it, ends where the fold of everything did."""
    script = conversation()
    steps = list(fold_steps(script.entries))

    async with serving(script) as store:
        await store.save_snapshot(script.session_id, script.entries[9].id, encode_snapshot(steps[9].after))
        await store.trim(script.session_id, script.entries[10].id)
        last = [step async for step in read_steps(store, script.session_id)][-1]

    assert script.fold == last.after
    assert len(script.entries) - 10 == last.number


async def test_a_trimmed_journal_without_a_snapshot_cannot_be_folded() -> None:
    """A snapshot that lies before the cut does not bridge it, and none at all does not either."""
    script = conversation()
    steps = list(fold_steps(script.entries))

    async with serving(script) as store:
        await store.trim(script.session_id, script.entries[10].id)
        with pytest.raises(JournalCut) as caught:
            await beginning(store, script.session_id)
        await store.save_snapshot(script.session_id, script.entries[2].id, encode_snapshot(steps[2].after))
        with pytest.raises(JournalCut):
            await beginning(store, script.session_id)

    assert script.entries[10].id == caught.value.first


def test_what_the_fold_refuses_is_marked() -> None:
    """A stamp of another generation is refused; a fact without effect is not."""
    script = opened()
    script.client(cmd.Heartbeat(), generation=2)
    script.digest()

    steps = list(fold_steps(script.entries))

    assert [False, False, False, True, False] == [step.refused for step in steps]
    assert EntryId(*steps[-1].after.state.position) == steps[-1].id
