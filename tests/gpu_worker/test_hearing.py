from __future__ import annotations

import itertools
import wave
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpu_worker.hearing import Edge, HearingSettings, HearingState, SpeechDetector

SPEECH = Path(__file__).parents[1] / "data" / "speech"
CLIPS = ["austen_0880.wav", "cards_001.wav", "cards_005.wav"]
RATES_HZ = [8000, 16000, 22050, 24000, 48000]
CLIP_HZ = 16000

Pcm = NDArray[np.float32]


@cache
def read_clip(name: str) -> Pcm:
    """Returns a clip of human speech, float32 at 16 kHz."""
    with wave.open(str(SPEECH / name)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32)
    return pcm / np.float32(32768)


@cache
def padded_clip(name: str) -> Pcm:
    """The clip between two seconds of digital silence, one on each side."""
    return np.pad(read_clip(name), CLIP_HZ)


def noise(samples: int, dbfs: float, seed: int = 1) -> Pcm:
    """Returns seeded white noise of the given RMS level."""
    rms = 10 ** (dbfs / 20)
    return (np.random.default_rng(seed).standard_normal(samples) * rms).astype(np.float32)


def hear(pcm: Pcm, sample_rate_hz: int = CLIP_HZ) -> list[Edge]:
    """Returns the edges that a detector with default settings hears."""
    return SpeechDetector(HearingSettings(sample_rate_hz)).feed(pcm)


def true_bounds(pcm: Pcm) -> tuple[int, int]:
    """Returns where the energy in a sliding 50 ms window first and last exceeds 2 % of its peak."""
    width = CLIP_HZ // 20
    energy = np.convolve(np.square(pcm.astype(np.float64)), np.ones(width), mode="same")
    above = np.flatnonzero(energy > 0.02 * energy.max())
    return int(above[0]), int(above[-1])


def kinds(edges: list[Edge]) -> list[str]:
    """Returns the edges without their places."""
    return [edge.kind for edge in edges]


@pytest.mark.parametrize("name", CLIPS)
def test_speech_is_found_where_it_is(name: str) -> None:
    """A clip between silences is one utterance whose ends lie within 100 and 300 ms of the true ones."""
    pcm = padded_clip(name)
    edges = hear(pcm)
    first, last = true_bounds(pcm)
    assert ["started", "stopped"] == kinds(edges)
    assert abs(edges[0].sample - first) <= CLIP_HZ // 10
    assert abs(edges[1].sample - last) <= CLIP_HZ * 3 // 10  # a final "s" is far below the vowels


@pytest.mark.parametrize("gain", [0.25, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("name", CLIPS)
def test_quiet_and_loud_speakers_are_heard(name: str, gain: float) -> None:
    """From -12 to +12 dB speech starts and ends, and what starts stops."""
    edges = hear(np.clip(padded_clip(name) * np.float32(gain), -1, 1))
    assert ["started", "stopped"] == kinds(edges)[:2]
    assert kinds(edges) == ["started", "stopped"] * (len(edges) // 2)


@pytest.mark.parametrize("name", CLIPS)
def test_constant_offset_and_background_noise_do_not_hide_speech(name: str) -> None:
    """A DC offset and noise of -55 dBFS move the start by 100 ms at most."""
    pcm = padded_clip(name)
    edges = hear(pcm + noise(len(pcm), -55) + np.float32(0.1))
    assert ["started", "stopped"] == kinds(edges)
    assert abs(edges[0].sample - true_bounds(pcm)[0]) <= CLIP_HZ // 10


@pytest.mark.parametrize("pause_s", [0.2, 1.0])
def test_only_a_long_pause_parts_utterances(pause_s: float) -> None:
    """Two phrases are one utterance across a pause below `silence_ms` and two across a longer one."""
    phrase = noise(CLIP_HZ // 2, -20)
    gap, end = np.zeros(int(pause_s * CLIP_HZ), np.float32), np.zeros(CLIP_HZ, np.float32)
    edges = hear(np.concatenate((end, phrase, gap, phrase, end)))
    assert ["started", "stopped"] * (1 if pause_s < 0.4 else 2) == kinds(edges)


def test_edges_name_the_exact_frames() -> None:
    """Speech starts a prefix before its first loud frame and stops after its last."""
    pcm = np.zeros(3 * CLIP_HZ, np.float32)
    pcm[CLIP_HZ : 2 * CLIP_HZ] = noise(CLIP_HZ, -20)
    assert [Edge("started", CLIP_HZ - 480), Edge("stopped", 2 * CLIP_HZ)] == hear(pcm)


@pytest.mark.parametrize("sample_rate_hz", RATES_HZ)
@pytest.mark.parametrize("dbfs", [-90.0, -65.0, -52.0])
def test_low_noise_is_not_speech(sample_rate_hz: int, dbfs: float) -> None:
    """Constant low noise is silence, from the start and after digital silence."""
    pcm = noise(5 * sample_rate_hz, dbfs)
    assert [] == hear(pcm, sample_rate_hz)
    assert [] == hear(np.pad(pcm, sample_rate_hz), sample_rate_hz)


@pytest.mark.parametrize("offset", [0.0, 0.5])
@pytest.mark.parametrize("sample_rate_hz", RATES_HZ)
def test_a_constant_is_not_speech(sample_rate_hz: int, offset: float) -> None:
    """Digital silence is silence, and so is a constant offset."""
    detector = SpeechDetector(HearingSettings(sample_rate_hz))
    samples = 100 * (sample_rate_hz // 100)
    assert [] == detector.feed(np.full(samples, offset, np.float32))
    assert not detector.speaking
    assert samples == detector.silence_samples


@pytest.mark.parametrize("place", [16000, 16080, 16159])
def test_clicks_are_not_speech(place: int) -> None:
    """Full-scale clicks of 10 ms are ignored wherever they fall on the frames."""
    pcm = noise(4 * CLIP_HZ, -65)
    for start in range(place, len(pcm) - CLIP_HZ, CLIP_HZ // 2):
        pcm[start : start + 160] = noise(160, -3)
    assert [] == hear(pcm)


def test_steady_loud_noise_becomes_background() -> None:
    """A fan that is switched on is taken for speech at first and ends by itself."""
    pcm = np.concatenate((noise(CLIP_HZ, -65), noise(30 * CLIP_HZ, -35)))
    assert ["started", "stopped"] == kinds(hear(pcm))


def test_speaking_and_silence_follow_the_stream() -> None:
    """`speaking` and `silence_samples` tell where the stream stands after each feed."""
    detector = SpeechDetector(HearingSettings(CLIP_HZ))
    detector.feed(np.zeros(CLIP_HZ, np.float32))
    detector.feed(noise(CLIP_HZ, -20))
    assert (True, 0) == (detector.speaking, detector.silence_samples)
    detector.feed(np.zeros(3200, np.float32))
    assert (True, 3200) == (detector.speaking, detector.silence_samples)
    assert ["stopped"] == kinds(detector.feed(np.zeros(3200, np.float32)))
    assert (False, 6400) == (detector.speaking, detector.silence_samples)


@given(st.sampled_from(CLIPS), st.lists(st.integers(0, 20000), max_size=12))
@settings(deadline=None)
def test_chunking_changes_nothing(name: str, sizes: list[int]) -> None:
    """A stream cut anywhere, into empty parts too, gives the same edges and the same final state."""
    pcm = padded_clip(name)
    whole, parted = SpeechDetector(HearingSettings(CLIP_HZ)), SpeechDetector(HearingSettings(CLIP_HZ))
    expected = whole.feed(pcm)
    bounds = [0, *(min(len(pcm), bound) for bound in itertools.accumulate(sizes)), len(pcm)]
    actual = [edge for first, last in itertools.pairwise(bounds) for edge in parted.feed(pcm[first:last])]
    assert expected == actual
    assert whole.state() == parted.state()


@pytest.mark.parametrize("sample_rate_hz", RATES_HZ)
def test_single_samples_give_what_the_whole_gives(sample_rate_hz: int) -> None:
    """Even fed sample by sample, at every rate, the state comes out the same bit for bit."""
    pcm = noise(sample_rate_hz // 20 + 7, -20)
    whole, parted = (
        SpeechDetector(HearingSettings(sample_rate_hz)),
        SpeechDetector(HearingSettings(sample_rate_hz)),
    )
    whole.feed(pcm)
    for sample in range(len(pcm)):
        parted.feed(pcm[sample : sample + 1])
    assert whole.state() == parted.state()


@given(st.sampled_from(CLIPS), st.floats(0, 1))
@settings(deadline=None)
def test_resume_goes_on_bit_for_bit(name: str, place: float) -> None:
    """A detector whose state went through msgpack anywhere in the stream goes on as if nothing had been."""
    pcm = padded_clip(name)
    split = int(place * len(pcm))
    uninterrupted, first = SpeechDetector(HearingSettings(CLIP_HZ)), SpeechDetector(HearingSettings(CLIP_HZ))
    expected = uninterrupted.feed(pcm)
    before = first.feed(pcm[:split])
    packed = msgspec.msgpack.encode(first.state())
    second = SpeechDetector.resume(msgspec.msgpack.decode(packed, type=HearingState))
    assert first.state() == second.state()
    assert expected == before + second.feed(pcm[split:])
    assert uninterrupted.state() == second.state()
