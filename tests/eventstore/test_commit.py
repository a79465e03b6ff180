"""Group commit against a transport that fails in every way a server can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from eventstore import EntryId, StoreUnavailable
from eventstore.commit import Ack, Group, GroupCommitter
from eventstore.options import StoreStats
from tests.eventstore.support import PATIENCE_S, options


class FaultyTransport:
    """Appends to lists; loses pipelines before or after they took effect, and refuses single entries."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.journals: dict[str, list[bytes]] = {}
        self._random = Random(seed)
        self._fault_rate = fault_rate

    async def append_groups(self, groups: Sequence[Group]) -> list[Ack]:
        """Append, or fail."""
        await asyncio.sleep(0)
        if self._fails():
            raise StoreUnavailable("before")
        acks = [self._append(group) for group in groups]
        if self._fails():
            raise StoreUnavailable("after")
        return acks

    def _append(self, group: Group) -> Ack:
        journal = self.journals.setdefault(group.session_id, [])
        ids: list[EntryId] = []
        refused: Exception | None = None
        # As on a server, the entries after a refused one are appended all the same.
        for payload in group.payloads:
            if self._fails():
                refused = refused or ValueError("full")
                continue
            journal.append(payload)
            if refused is None:
                ids.append(EntryId(len(journal), 0))
        return Ack(ids, refused)

    def _fails(self) -> bool:
        return self._random.random() < self._fault_rate


def taken(journal: Sequence[bytes]) -> list[bytes]:
    """What a fold takes: only the next number."""
    result: list[bytes] = []
    for data in journal:
        if int(data) == len(result) + 1:
            result.append(data)
    return result


@given(
    seed=st.integers(0, 2**32),
    fault_rate=st.floats(0, 0.4),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_every_entry_arrives_in_order_whatever_fails(seed: int, fault_rate: float, counts: list[int]) -> None:
    """However pipelines and entries fail, each journal folds to every entry of its writer, in order."""

    async def scenario() -> FaultyTransport:
        transport = FaultyTransport(seed, fault_rate)
        chosen = options(append_coalesce_s=0, backoff_min_s=0.0001, backoff_max_s=0.0002, pipeline_bytes=8)
        committer = GroupCommitter(transport, chosen, StoreStats())
        running = asyncio.ensure_future(committer.run())
        writers = [committer.writer(f"s{index}") for index in range(len(counts))]
        async with asyncio.timeout(PATIENCE_S):
            futures = []
            for number in range(1, max(counts) + 1):
                for writer, count in zip(writers, counts, strict=True):
                    if number <= count:
                        futures.append(writer.append(b"%d" % number))
                if number % 4 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*futures)
        assert 0 == committer.pending_bytes
        running.cancel()
        await asyncio.wait({running})
        return transport

    transport = asyncio.run(scenario())
    for index, count in enumerate(counts):
        assert [b"%d" % n for n in range(1, count + 1)] == taken(transport.journals[f"s{index}"])
