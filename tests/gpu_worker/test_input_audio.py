from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.audio import Pcm, Resampler, decode, encode, samples_within
from gpu_worker.errors import AudioFormatError
from gpu_worker.input_audio import InputAudio
from session_core.audio import SAMPLE_RATES_HZ, AudioFormat, Encoding, ticks_to_samples

RATE_HZ = 24_000
FORMATS = st.builds(AudioFormat, st.sampled_from(list(Encoding)), st.sampled_from(SAMPLE_RATES_HZ))


def noise(samples: int, seed: int = 3) -> Pcm:
    """Gives seeded noise, float32 [samples]."""
    return (np.random.default_rng(seed).standard_normal(samples) * 0.2).astype(np.float32)


def cut(data: bytes, size: int) -> list[bytes]:
    """Cuts bytes into pieces of at most `size`."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def heard(data: bytes, audio_format: AudioFormat) -> Pcm:
    """Gives what the model hears of one format: all of it, converted at once, behind the constant shift."""
    resampler = Resampler(audio_format.sample_rate_hz, RATE_HZ)
    pcm = resampler.feed(decode(data, audio_format.encoding))
    shift = samples_within(resampler.delay_samples, audio_format.sample_rate_hz, RATE_HZ)
    return np.concatenate((np.zeros(shift, np.float32), pcm))


@settings(max_examples=60)
@given(FORMATS, st.integers(20, 4_000), st.integers(1, 900), st.integers(1, 3_000), st.integers(0, 3_000))
def test_a_sample_depends_on_the_bytes_alone(
    audio_format: AudioFormat, samples: int, chunk: int, count: int, first: int
) -> None:
    """However the input is cut, wherever reading begins and whatever was forgotten, a sample is the same."""
    data = encode(noise(samples), audio_format.encoding)
    expected = heard(data, audio_format)
    received = ticks_to_samples(audio_format.ticks(len(data)), RATE_HZ)
    first = min(first, received)
    audio = InputAudio(RATE_HZ, audio_format)
    reader = audio.reader()
    for piece in cut(data, chunk * audio_format.sample_bytes):
        audio.take(piece)
    reader.forget(first)
    while first < received:
        size = min(count, received - first)
        assert expected[first : first + size].tobytes() == reader.read(first, size).tobytes()
        first += size
        reader.forget(first)


@settings(max_examples=60)
@given(st.lists(st.tuples(FORMATS, st.integers(1, 3_000)), min_size=1, max_size=4), st.integers(1, 2_500))
def test_every_received_sample_can_be_read(parts: list[tuple[AudioFormat, int]], count: int) -> None:
    """Through any format changes, exactly the samples that the fold counts are there, at once."""
    ticks = at = 0
    audio = InputAudio(RATE_HZ, AudioFormat())
    reader = audio.reader()
    for audio_format, samples in parts:
        audio.switch(audio_format, ticks_to_samples(ticks, RATE_HZ))
        data = encode(noise(samples), audio_format.encoding)
        audio.take(data)
        ticks += audio_format.ticks(len(data))
        received = ticks_to_samples(ticks, RATE_HZ)
        while at < received:
            size = min(count, received - at)
            assert size == len(reader.read(at, size))
            at += size
            reader.forget(at)


def test_each_format_begins_at_its_sample() -> None:
    """After a change of format, the new audio stands where the old one ended."""
    first, second = AudioFormat(Encoding.PCM16, 24_000), AudioFormat(Encoding.G711_ULAW, 8_000)
    audio = InputAudio(RATE_HZ, first)
    reader = audio.reader()
    before, after = encode(noise(2_400), "pcm16"), encode(noise(800, 4), "g711_ulaw")
    audio.take(before)
    reader.read(0, 1_000)
    audio.switch(second, 2_400)
    audio.take(after)
    expected = np.concatenate((decode(before, "pcm16"), heard(after, second)[:2_400]))
    assert expected[1_000:].tobytes() == reader.read(1_000, 3_800).tobytes()


def test_equal_rates_are_exact() -> None:
    """Where the client's rate is the model's, the model hears the very samples, in their place."""
    pcm = noise(4_000)
    audio = InputAudio(RATE_HZ, AudioFormat(Encoding.PCM_F32LE))
    reader = audio.reader()
    audio.take(encode(pcm, "pcm_f32le"))
    assert pcm.tobytes() == reader.read(0, 4_000).tobytes()


def test_samples_that_never_came_cannot_be_read() -> None:
    """Reading beyond the input is a mistake of the caller's."""
    audio = InputAudio(RATE_HZ, AudioFormat())
    reader = audio.reader()
    audio.take(bytes(200))
    with pytest.raises(LookupError):
        reader.read(0, 101)


def test_forgotten_samples_cannot_be_read() -> None:
    """What was forgotten is gone, and its memory with it."""
    audio = InputAudio(RATE_HZ, AudioFormat())
    reader = audio.reader()
    for _ in range(100):
        audio.take(bytes(3_840))
    reader.forget(190_000)
    with pytest.raises(LookupError):
        reader.read(0, 10)


def test_audio_that_is_none_is_reported() -> None:
    """Bytes that are no audio in their format raise where they are read, not where they are folded."""
    audio = InputAudio(RATE_HZ, AudioFormat(Encoding.PCM_F32LE))
    reader = audio.reader()
    audio.take(np.full(100, np.nan, "<f4").tobytes())
    with pytest.raises(AudioFormatError):
        reader.read(0, 50)


def test_audio_is_held_for_the_slowest_reader() -> None:
    """What one reader is done with stays for another, and goes once that one is done too."""
    audio = InputAudio(RATE_HZ, AudioFormat())
    fast, slow = audio.reader(), audio.reader()
    pcm = noise(100_000)
    for piece in cut(encode(pcm, "pcm16"), 4_000):
        audio.take(piece)
    fast.forget(100_000)
    assert decode(encode(pcm, "pcm16"), "pcm16")[:500].tobytes() == slow.read(0, 500).tobytes()
    slow.close()
    assert 100_000 == audio.forgotten
    assert 100_000 == audio.reader().needs_from
