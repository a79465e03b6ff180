from __future__ import annotations

import hashlib
import itertools
import warnings
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.audio import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATES_HZ,
    AudioFormatError,
    Decoder,
    Encoder,
    Pcm,
    Resampler,
    decode,
    encode,
    samples_within,
    silence,
)

SPEECH = Path(__file__).parents[1] / "data" / "speech"
RATE_PAIRS = list(itertools.product(SAMPLE_RATES_HZ, repeat=2))
ALL_PCM16 = np.arange(-32768, 32768).astype("<i2").tobytes()

rate_pairs = st.sampled_from(RATE_PAIRS)
chunk_sizes = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1200)), max_size=8)
lengths = st.integers(0, 3000)


def noise(samples: int, seed: int = 1) -> Pcm:
    """Returns seeded white noise near full scale."""
    return np.random.default_rng(seed).uniform(-0.9, 0.9, samples).astype(np.float32)


def cut(samples: int, sizes: list[int]) -> list[slice]:
    """Cuts `samples` into consecutive slices of `sizes`, the last one taking the rest."""
    bounds = [0, *(min(samples, bound) for bound in itertools.accumulate(sizes)), samples]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def resample(pcm: Pcm, source_hz: int, target_hz: int) -> Pcm:
    """Converts a whole signal in one call."""
    resampler = Resampler(source_hz, target_hz)
    return np.concatenate((resampler.feed(pcm), resampler.flush()))


def decibels(error: Pcm, signal: Pcm) -> float:
    """Returns the power of `error` against that of `signal`."""
    return float(10 * np.log10((np.mean(np.square(error)) + 1e-20) / np.mean(np.square(signal))))


def read_speech(name: str) -> Pcm:
    """Returns a clip of human speech, float32 at 16 kHz."""
    with wave.open(str(SPEECH / name)) as file:
        return decode(file.readframes(file.getnframes()), "pcm16")


@given(rate_pairs, lengths, chunk_sizes)
@settings(deadline=None)
def test_chunking_changes_no_bit(rates: tuple[int, int], length: int, sizes: list[int]) -> None:
    """A stream cut anywhere gives bit for bit what the whole gives."""
    pcm = noise(length)
    resampler = Resampler(*rates)
    parts = [resampler.feed(pcm[part]) for part in cut(length, sizes)]
    assert resample(pcm, *rates).tobytes() == np.concatenate((*parts, resampler.flush())).tobytes()


@given(rate_pairs, lengths, chunk_sizes)
@settings(deadline=None)
def test_feed_returns_all_but_the_delay(rates: tuple[int, int], length: int, sizes: list[int]) -> None:
    """After every feed, exactly the output whose instant lies `delay_samples` before the end has come."""
    resampler = Resampler(*rates)
    produced = 0
    for part in cut(length, sizes):
        produced += len(resampler.feed(noise(length)[part]))
        assert part.stop == resampler.position
        settled = max(0, resampler.position - resampler.delay_samples)
        assert samples_within(settled, *rates) == produced == resampler.produced
    assert samples_within(length, *rates) == produced + len(resampler.flush()) == resampler.produced


@given(rate_pairs, lengths, st.integers(0, 4000), chunk_sizes)
@settings(deadline=None)
def test_joining_in_mid_stream_changes_no_bit(
    rates: tuple[int, int], length: int, first_sample: int, sizes: list[int]
) -> None:
    """A converter that joins at any output sample goes on bit for bit like an uninterrupted one."""
    pcm = noise(length)
    joined = Resampler(*rates, first_sample=first_sample)
    rest = pcm[joined.position :]
    parts = [joined.feed(rest[part]) for part in cut(len(rest), sizes)]
    whole = resample(pcm, *rates)
    assert whole[first_sample:].tobytes() == np.concatenate((*parts, joined.flush())).tobytes()


@pytest.mark.parametrize("rates", RATE_PAIRS)
def test_ten_milliseconds_of_history_suffice(rates: tuple[int, int]) -> None:
    """A new owner needs at most the 11 ms before its cursor: far within the 100 ms that it is given."""
    source_hz, target_hz = rates
    joined = Resampler(source_hz, target_hz, first_sample=samples_within(source_hz, source_hz, target_hz))
    assert joined.delay_samples * 1000 <= 6 * source_hz
    assert (source_hz - joined.position) * 1000 <= 11 * source_hz


@pytest.mark.parametrize("rates", RATE_PAIRS)
def test_speech_agrees_with_an_independent_resampler(rates: tuple[int, int]) -> None:
    """Speech within the passband comes out as soxr's best setting has it: in step, and within -70 dB."""
    source_hz, target_hz = rates
    # Speech of 3.5 kHz bandwidth, which every pair of rates passes whole.
    narrow = soxr.resample(read_speech("cards_001.wav"), 16000, 7000, quality="VHQ")
    speech = soxr.resample(narrow * 0.9, 7000, source_hz, quality="VHQ").astype(np.float32)
    expected = soxr.resample(speech, source_hz, target_hz, quality="VHQ")
    actual = resample(speech, source_hz, target_hz)[: len(expected)]
    assert decibels(actual - expected[: len(actual)], expected) < -70


@pytest.mark.parametrize("rates", [pair for pair in RATE_PAIRS if pair[0] > pair[1]])
def test_what_the_target_cannot_carry_is_removed(rates: tuple[int, int]) -> None:
    """A tone above the target's Nyquist frequency leaves less than -75 dB of alias."""
    source_hz, target_hz = rates
    instants_s = np.arange(source_hz // 2) / source_hz
    tone = (0.5 * np.sin(2 * np.pi * target_hz / 2 * 1.02 * instants_s)).astype(np.float32)
    edge = target_hz // 20
    assert decibels(resample(tone, source_hz, target_hz)[edge:-edge], tone) < -75


@pytest.mark.parametrize("rates", RATE_PAIRS)
def test_a_constant_stays_what_it_is(rates: tuple[int, int]) -> None:
    """Away from its ends a constant signal keeps its level."""
    out = resample(np.full(4800, 0.5, np.float32), *rates)
    edge = samples_within(500, *rates)
    np.testing.assert_allclose(out[edge:-edge], 0.5, atol=1e-6)


@given(st.sampled_from(sorted(BYTES_PER_SAMPLE)), rate_pairs, lengths, chunk_sizes, st.integers(0, 3000))
@settings(deadline=None)
def test_decoder_and_encoder_stream_and_join_without_a_trace(
    encoding: str, rates: tuple[int, int], length: int, sizes: list[int], first_sample: int
) -> None:
    """Both converters give the same bytes whole, in chunks and joined in mid-stream."""
    pcm, size = noise(length), BYTES_PER_SAMPLE[encoding]
    data = encode(pcm, encoding)
    decoded = resample(decode(data, encoding), *rates)
    decoder = Decoder(encoding, *rates, first_sample=first_sample)
    rest = data[decoder.position * size :]
    parts = [
        decoder.feed(rest[part.start * size : part.stop * size]) for part in cut(len(rest) // size, sizes)
    ]
    assert decoded[first_sample:].tobytes() == np.concatenate((*parts, decoder.flush())).tobytes()
    assert max(len(decoded), first_sample) == decoder.produced

    encoded = encode(resample(pcm, *rates), encoding)
    encoder = Encoder(rates[0], encoding, rates[1], first_sample=first_sample)
    pcm = pcm[encoder.position :]
    out = b"".join(encoder.feed(pcm[part]) for part in cut(len(pcm), sizes)) + encoder.flush()
    assert encoded[first_sample * size :] == out
    assert max(len(decoded), first_sample) == encoder.produced


def test_pcm16_round_trip_is_exact() -> None:
    """Every 16-bit value comes back from float32."""
    assert ALL_PCM16 == encode(decode(ALL_PCM16, "pcm16"), "pcm16")


def test_pcm16_rounds_to_nearest_and_clips() -> None:
    """Integers are x * 32768, halves to even, clipped to the 16-bit range."""
    scaled = np.array([0.5, 1.5, -0.5, -1.5, 100.4, 40000, -40000, 32768], np.float32)
    expected = np.array([0, 2, 0, -2, 100, 32767, -32768, 32767], "<i2").tobytes()
    assert expected == encode(scaled / np.float32(32768), "pcm16")


def test_float_values_beyond_full_scale_are_clipped() -> None:
    """Floats outside [-1, 1] are clipped in both directions."""
    data = np.array([2, -3e38, 0.25], "<f4").tobytes()
    assert [1, -1, 0.25] == decode(data, "pcm_f32le").tolist()
    assert np.array([1, -1, 0.25], "<f4").tobytes() == encode(np.frombuffer(data, np.float32), "pcm_f32le")


@pytest.mark.parametrize(
    ("encoding", "code_digest", "value_digest"),
    [
        ("g711_ulaw", "81d633c9e6972a18", "3dab54339e520bb2"),
        ("g711_alaw", "38488f6fd710f468", "e04788d110e58ff8"),
    ],
)
def test_g711_golden_digests(encoding: str, code_digest: str, value_digest: str) -> None:
    """The codes of all 65536 values and the values of all 256 codes are those of the reference."""
    codes = encode(decode(ALL_PCM16, "pcm16"), encoding)
    values = encode(decode(bytes(range(256)), encoding), "pcm16")
    assert code_digest == hashlib.sha256(codes).hexdigest()[:16]
    assert value_digest == hashlib.sha256(values).hexdigest()[:16]


def g711_reference(encoding: str) -> tuple[Callable[[bytes, int], bytes], Callable[[bytes, int], bytes]]:
    """Returns the standard library's encoder and decoder, or skips the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        audioop = pytest.importorskip("audioop", reason="left the standard library in Python 3.13")
    if encoding == "g711_ulaw":
        return audioop.lin2ulaw, audioop.ulaw2lin
    return audioop.lin2alaw, audioop.alaw2lin


@pytest.mark.parametrize("encoding", ["g711_ulaw", "g711_alaw"])
def test_g711_equals_the_standard_library(encoding: str) -> None:
    """G.711 agrees with the standard library's for every value and every code."""
    reference_encode, reference_decode = g711_reference(encoding)
    codes = bytes(range(256))
    assert reference_encode(ALL_PCM16, 2) == encode(decode(ALL_PCM16, "pcm16"), encoding)
    assert reference_decode(codes, 2) == encode(decode(codes, encoding), "pcm16")


@pytest.mark.parametrize("encoding", sorted(BYTES_PER_SAMPLE))
def test_silence_is_silent(encoding: str) -> None:
    """Silence has the asked length and decodes to (nearly, for A-law) nothing."""
    pcm = decode(silence(encoding, 5), encoding)
    assert len(pcm) == 5
    assert float(np.abs(pcm).max()) <= 8 / 32768


@pytest.mark.parametrize(("encoding", "data"), [("pcm16", b"\0" * 3), ("pcm_f32le", b"\0" * 6)])
def test_a_partial_sample_is_refused(encoding: str, data: bytes) -> None:
    """Bytes that end within a sample raise an error that names the parameter and change nothing."""
    decoder = Decoder(encoding, 16000, 24000)
    with pytest.raises(AudioFormatError) as caught:
        decoder.feed(data)
    assert caught.value.param == "audio"
    assert str(caught.value).startswith("audio: ")
    assert decoder.position == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    """NaN and infinity raise in both directions, before the stream takes anything."""
    pcm = np.array([0, value], np.float32)
    decoder, encoder = Decoder("pcm_f32le", 16000, 24000), Encoder(24000, "pcm16", 16000)
    with pytest.raises(AudioFormatError, match="not finite"):
        decoder.feed(pcm.tobytes())
    with pytest.raises(AudioFormatError, match="not finite"):
        encoder.feed(pcm)
    assert (0, 0) == (decoder.position, encoder.position)


@pytest.mark.parametrize(
    ("encoding", "source_hz", "param"), [("opus", 16000, "encoding"), ("pcm16", 44100, "sample_rate_hz")]
)
def test_an_unknown_format_is_refused(encoding: str, source_hz: int, param: str) -> None:
    """A format outside the lists raises an error that names the parameter."""
    with pytest.raises(AudioFormatError) as caught:
        Decoder(encoding, source_hz, 24000)
    assert param == caught.value.param
    with pytest.raises(AudioFormatError) as caught:
        Encoder(24000, encoding, source_hz)
    assert param == caught.value.param
