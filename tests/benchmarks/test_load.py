from __future__ import annotations

import pytest

from benchmarks import fold_bench, report, round_trip
from session_core.fold import Fold


def test_the_fold_journal_is_taken_whole() -> None:
    """The journal that the fold is timed with is a conversation: nothing in it is refused."""
    fold, silent = Fold(), 0
    for position, data in fold_bench.journal(600):
        fold, reduction = fold.step(position, data)
        silent += not reduction.changes

    assert 0 == silent
    assert fold.state.clock.next_unit > 200
    assert 4 <= fold.state.turn


@pytest.mark.integration
async def test_every_frame_of_a_load_comes_back() -> None:
    """The load generator gets each frame back from a service and from the echo, and reports on both."""
    trip = await round_trip.trip(2, 0.5)

    row = report.row(2, [trip])
    assert (0, 0) == (trip.service.unanswered, trip.echo.unanswered)
    assert row.gateway_us > 0
    assert row.echo_us > 0
    found = report.Report(
        machine="here", load_average=0, fold=fold_bench.measure(100, 1), rows=[row], session_bytes={}
    )
    assert "| 2 |" in report.markdown(found)
