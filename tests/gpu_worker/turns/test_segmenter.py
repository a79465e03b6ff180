from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.turns.segmenter import FrameClock, SegmenterState, SpeechEdge, advance
from gpu_worker.turns.settings import DetectionSettings

CLOCK = FrameClock(16_000, 512)
SETTINGS = DetectionSettings(threshold=0.5, silence_ms=96, min_speech_ms=64)
"""Two frames of speech start it, three of silence stop it."""

NEW = SegmenterState()

probabilities = st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 1.0]), max_size=60)


def run(
    frames: list[float], state: SegmenterState = NEW, settings: DetectionSettings = SETTINGS
) -> tuple[SegmenterState, list[SpeechEdge]]:
    """Give the last state and all edges."""
    edges = []
    for probability in frames:
        state, edge = advance(state, probability, settings, CLOCK)
        if edge is not None:
            edges.append(edge)
    return state, edges


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        pytest.param([0, 1, 1], [("started", 1)], id="start-at-the-first-frame"),
        pytest.param([0, 1, 0, 1, 0], [], id="too-short"),
        pytest.param([0, 0.4, 0.4, 0.4], [], id="never-above-the-threshold"),
        pytest.param([0, 0.4, 0.6, 0.4], [("started", 2)], id="kept-up-between-the-thresholds"),
        pytest.param([1, 1, 0, 0, 0], [("started", 0), ("stopped", 5)], id="stop-after-the-silence"),
        pytest.param([1, 1, 0, 0, 1, 0, 0], [("started", 0)], id="pause-ended-by-speech"),
        pytest.param([1, 1, 0, 0.4, 0.4], [("started", 0), ("stopped", 5)], id="pause-not-ended-by-doubt"),
        pytest.param(
            [1, 1, 0, 0, 0, 1, 1], [("started", 0), ("stopped", 5), ("started", 5)], id="again-at-once"
        ),
    ],
)
def test_edges(frames: list[float], expected: list[tuple[str, int]]) -> None:
    """Each rule of the hysteresis, in frames."""
    assert expected == [(edge.kind, edge.sample // CLOCK.frame_samples) for edge in run(frames)[1]]


def test_the_silence_is_kept_to_the_sample() -> None:
    """A stop lies the settings' silence after the last speech, though it is found at the end of a frame."""
    settings = DetectionSettings(silence_ms=100, min_speech_ms=64)

    assert SpeechEdge("stopped", 2 * 512 + 1600) == run([1, 1, 0, 0, 0, 0], settings=settings)[1][-1]


@given(probabilities)
def test_edges_alternate_and_lie_in_what_was_heard(frames: list[float]) -> None:
    """Starts and stops take turns, never go back, and never lie in the future."""
    state, edges = run(frames)

    kinds = [edge.kind for edge in edges]
    samples = [edge.sample for edge in edges]
    assert ["started", "stopped"] * (len(kinds) // 2) + ["started"] * (len(kinds) % 2) == kinds
    assert sorted(samples) == samples
    assert all(0 <= sample <= state.frame * CLOCK.frame_samples for sample in samples)
    assert state.speaking == (len(kinds) % 2 == 1)


@given(probabilities, probabilities)
def test_a_state_is_all_that_is_needed_to_go_on(before: list[float], after: list[float]) -> None:
    """Whoever decodes an exported state finds the edges that its owner would have found."""
    state, first = run(before)
    resumed = msgspec.json.decode(msgspec.json.encode(state), type=SegmenterState)

    assert run(before + after)[1] == first + run(after, resumed)[1]


def test_decided_frames_are_only_counted() -> None:
    """A new owner finds no edge again that lies before what the journal has decided."""
    state = SegmenterState(frame=10, decided_frame=14, speaking=True)

    assert [SpeechEdge("stopped", 17 * 512)] == run([0] * 8, state)[1]
