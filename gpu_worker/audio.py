"""
Streaming audio conversion between a client's format and a model's float32 mono.

Sample numbering: sample k of a stream at `target_hz` belongs to the instant k / target_hz, input sample i to
i / source_hz. Both count from 0 and share the instant 0, so conversion shifts nothing. n input samples
stand for the `samples_within(n, source_hz, target_hz)` output samples whose instant lies inside them; that
is what all calls of `feed` and the `flush` return together.

The resampler is a windowed sinc evaluated at each output instant, with no block transform in between. An
output sample depends on the `reach` input samples on either side of its instant and on nothing else. Three
things follow that a duplex session needs:

- The delay is constant and small, 40 samples of the lower rate: 5 ms at 8 kHz, 2.5 ms at 16 kHz, 1.7 ms at
  24 kHz.
  (Resamplers built on block transforms hold back tens of milliseconds.)
- The result is the same bit for bit however the input is cut into chunks.
- A converter that begins in mid-stream (`first_sample`) and is fed from its `position` on returns the very
  samples that an uninterrupted one returns. Nothing has to settle; 10 ms of history before the cursor
  suffice.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from gpu_worker.errors import AudioFormatError as AudioFormatError

Pcm: TypeAlias = NDArray[np.float32]
"""Mono samples, float32 [samples], full scale is [-1, 1]."""

BYTES_PER_SAMPLE: Final = {"pcm16": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1}
SAMPLE_RATES_HZ: Final = (8000, 16000, 22050, 24000, 48000)

_SILENCE: Final = {"pcm16": b"\0\0", "pcm_f32le": b"\0\0\0\0", "g711_ulaw": b"\xff", "g711_alaw": b"\xd5"}

# Kaiser window for 80 dB: the filter passes up to 0.875 of the lower Nyquist frequency (3.5 kHz for
# telephony, which carries 3.4) and is 80 dB down from the Nyquist frequency on. More zero crossings would
# be steeper and later.
_ZERO_CROSSINGS: Final = 40
_KAISER_BETA: Final = 7.857
_CUTOFF: Final = 0.9375

# Up to so many filter phases, each is applied to all its windows at once, which copies nothing.
_FEW_PHASES: Final = 8

# Bounds the memory of one step: 2048 windows of at most 480 taps are 4 MB.
_STEP_SAMPLES: Final = 2048


def samples_within(position: int, source_hz: int, target_hz: int) -> int:
    """
    Maps a position between two rates: how many samples at `target_hz` lie before input sample `position`.

    This is ceil(position * target_hz / source_hz), which is also the number of the first output sample at
    or after that position: what comes from input sample `position` on begins there.
    """
    return -(-position * target_hz // source_hz)


def silence(encoding: str, samples: int) -> bytes:
    """
    Returns `samples` samples of silence in `encoding`; A-law has no zero, its silence decodes to 8 / 32768.
    """
    _check_encoding(encoding)
    return _SILENCE[encoding] * samples


class Resampler:
    """
    Converts one stream of mono float32 between two rates. It lives as long as the stream and is not shared.

    Args:
        source_hz, target_hz: the rates, from `SAMPLE_RATES_HZ`.
        first_sample: number of the first output sample to return. With any but 0 the stream is joined in
            the middle and the caller must feed it from input sample `position` on.

    Attributes:
        position: number of the next input sample that `feed` takes.
        produced: number of the next output sample that `feed` returns.
    """

    def __init__(self, source_hz: int, target_hz: int, *, first_sample: int = 0) -> None:
        for rate_hz in (source_hz, target_hz):
            if rate_hz not in SAMPLE_RATES_HZ:
                raise AudioFormatError("sample_rate_hz", f"{rate_hz} is not one of {SAMPLE_RATES_HZ}")
        divisor = math.gcd(source_hz, target_hz)
        self._up, self._down = target_hz // divisor, source_hz // divisor
        self._is_identity = self._up == self._down
        self._reach = 0 if self._is_identity else _reach_samples(self._up, self._down)
        self.produced = first_sample
        self._held_from = self._window_start(first_sample)
        self.position = max(0, self._held_from)
        # Input from `_held_from` on that a later output still needs; what lies before the stream is silence.
        self._held: Pcm = np.zeros(self.position - self._held_from, np.float32)

    @property
    def delay_samples(self) -> int:
        """How many input samples past its instant an output sample waits for."""
        return self._reach

    def feed(self, pcm: Pcm) -> Pcm:
        """
        Takes the next input and returns every output sample that no later input can change.

        Args:
            pcm: float32 [samples] at `source_hz`; any number of samples, also none.

        Returns:
            float32 [samples] at `target_hz`, from number `produced` on.
        """
        self.position += len(pcm)
        if self._is_identity:
            self.produced += len(pcm)
            return pcm
        self._held = np.concatenate((self._held, pcm))
        return self._produce(self._samples_before(self.position - self._reach))

    def flush(self) -> Pcm:
        """
        Ends the stream: returns the rest, as if silence followed. After this the converter must not be fed.
        """
        if self._is_identity:
            return np.zeros(0, np.float32)
        self._held = np.concatenate((self._held, np.zeros(self._reach, np.float32)))
        return self._produce(self._samples_before(self.position))

    def _samples_before(self, position: int) -> int:
        return -(-position * self._up // self._down)

    def _window_start(self, sample: int) -> int:
        """Returns the first input sample that output `sample` depends on; may lie before the stream."""
        if self._is_identity:
            return sample
        return sample * self._down // self._up - self._reach + 1

    def _produce(self, end: int) -> Pcm:
        """
        Returns the output samples from `produced` up to `end` and forgets the input that no later one needs.
        """
        first = self.produced
        if end <= first:
            return np.zeros(0, np.float32)
        bank = _filter_bank(self._up, self._down)
        windows = sliding_window_view(self._held, 2 * self._reach)
        before = self._reach - 1 + self._held_from
        out = np.empty(end - first, np.float32)
        # Row by row, not a matrix product: BLAS may sum in another order for another number of rows.
        if self._up <= _FEW_PHASES:
            for start in range(first, min(first + self._up, end)):
                whole, phase = divmod(start * self._down, self._up)
                rows = windows[whole - before :: self._down][: -(-(end - start) // self._up)]
                np.einsum("kt,t->k", rows, bank[phase], out=out[start - first :: self._up])
        else:
            for start in range(first, end, _STEP_SAMPLES):
                stop = min(start + _STEP_SAMPLES, end)
                wholes, phases = np.divmod(np.arange(start, stop) * self._down, self._up)
                rows = windows[wholes - before]
                np.einsum("kt,kt->k", rows, bank[phases], out=out[start - first : stop - first])
        self.produced = end
        keep_from = self._window_start(end)
        self._held = self._held[keep_from - self._held_from :].copy()
        self._held_from = keep_from
        return out


class Decoder:
    """
    Turns a client's audio bytes into a model's samples; lives as long as the input stream has one format.

    Args:
        encoding, source_hz: the client's format.
        target_hz: the model's rate.
        first_sample: number of the first output sample to return. A new owner gives the first sample that
            its model still needs and then feeds the journal's audio from input sample `position` on.

    Raises:
        AudioFormatError: for an unknown encoding or rate.
    """

    def __init__(self, encoding: str, source_hz: int, target_hz: int, *, first_sample: int = 0) -> None:
        _check_encoding(encoding)
        self._encoding = encoding
        self._resampler = Resampler(source_hz, target_hz, first_sample=first_sample)

    @property
    def position(self) -> int:
        """Number of the next input sample that `feed` takes."""
        return self._resampler.position

    @property
    def produced(self) -> int:
        """Number of the next output sample that `feed` returns."""
        return self._resampler.produced

    def feed(self, data: bytes) -> Pcm:
        """
        Takes the client's next bytes, whole samples, and returns float32 [samples] at `target_hz`.

        Raises:
            AudioFormatError: "audio" ends within a sample or holds a value that is not finite. The decoder
                is then as it was before.
        """
        return self._resampler.feed(decode(data, self._encoding))

    def flush(self) -> Pcm:
        """Ends the stream and returns the rest. After this the decoder must not be fed."""
        return self._resampler.flush()


class Encoder:
    """
    Turns a model's samples into a client's audio bytes; lives as long as one response.

    Args:
        source_hz: the model's rate.
        encoding, target_hz: the client's format.
        first_sample: number of the first output sample to return. A new owner gives the first sample that
            is missing in the journal and then feeds the model's audio from sample `position` on.

    Raises:
        AudioFormatError: for an unknown encoding or rate.
    """

    def __init__(self, source_hz: int, encoding: str, target_hz: int, *, first_sample: int = 0) -> None:
        _check_encoding(encoding)
        self._encoding = encoding
        self._resampler = Resampler(source_hz, target_hz, first_sample=first_sample)

    @property
    def position(self) -> int:
        """Number of the next input sample that `feed` takes."""
        return self._resampler.position

    @property
    def produced(self) -> int:
        """Number of the next output sample, not byte, that `feed` returns."""
        return self._resampler.produced

    def feed(self, pcm: Pcm) -> bytes:
        """
        Takes the model's next float32 [samples] at `source_hz` and returns bytes in the client's format.

        Raises:
            AudioFormatError: "audio" holds a value that is not finite. The encoder is then as it was before.
        """
        return encode(self._resampler.feed(_finite_clipped(pcm)), self._encoding)

    def flush(self) -> bytes:
        """Ends the stream and returns the rest. After this the encoder must not be fed."""
        return encode(self._resampler.flush(), self._encoding)


def decode(data: bytes, encoding: str) -> Pcm:
    """
    Decodes whole samples to float32 [samples] in [-1, 1]: integers are divided by 32768, floats are clipped.

    Raises:
        AudioFormatError: for an unknown encoding, a partial sample or a value that is not finite.
    """
    _check_encoding(encoding)
    size = BYTES_PER_SAMPLE[encoding]
    if len(data) % size:
        raise AudioFormatError("audio", f"{len(data)} bytes are not whole {encoding} samples of {size} bytes")
    if encoding == "pcm16":
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    if encoding == "pcm_f32le":
        return _finite_clipped(np.frombuffer(data, "<f4").astype(np.float32, copy=False))
    return _g711_decoding(encoding)[np.frombuffer(data, np.uint8)]


def encode(pcm: Pcm, encoding: str) -> bytes:
    """
    Encodes float32 [samples]; values beyond [-1, 1] are clipped.

    Integers are x * 32768 rounded to the nearest (halves to even) and clipped to 32767; there is no dither,
    so equal samples give equal bytes. `decode` and `encode` with "pcm16" give back the same bytes.

    Raises:
        AudioFormatError: for an unknown encoding or a value that is not finite.
    """
    _check_encoding(encoding)
    pcm = _finite_clipped(pcm)
    if encoding == "pcm_f32le":
        return pcm.astype("<f4", copy=False).tobytes()
    pcm16: NDArray[np.int16] = np.minimum(np.rint(pcm * np.float32(32768)), 32767).astype("<i2")
    if encoding == "pcm16":
        return pcm16.tobytes()
    codes = _g711_encoding(encoding)[pcm16.view(np.uint16)]
    return codes.tobytes()


def _check_encoding(encoding: str) -> None:
    if encoding not in BYTES_PER_SAMPLE:
        raise AudioFormatError("encoding", f"{encoding!r} is not one of {tuple(BYTES_PER_SAMPLE)}")


def _finite_clipped(pcm: Pcm) -> Pcm:
    if not np.isfinite(pcm).all():
        raise AudioFormatError("audio", "a sample is not finite")
    return np.clip(pcm, np.float32(-1), np.float32(1))


def _reach_samples(up: int, down: int) -> int:
    return math.ceil(_ZERO_CROSSINGS * max(1.0, down / up))


@cache
def _filter_bank(up: int, down: int) -> Pcm:
    """
    Computes the filter, float32 [up, 2 * reach], once per ratio of rates.

    Row n holds the weights of the inputs around an output instant that lies n / up of the way from one
    input sample to the next. Each row sums to 1, so that a constant stays what it is.
    """
    reach = _reach_samples(up, down)
    scale = min(1.0, up / down)
    distance = np.arange(up)[:, None] / up - np.arange(1 - reach, reach + 1)[None, :]
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - (distance * scale / _ZERO_CROSSINGS) ** 2, 0, None)))
    weights = np.sinc(distance * scale * _CUTOFF) * window
    bank: Pcm = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return bank


@cache
def _g711_decoding(encoding: str) -> Pcm:
    """Returns the value of each of the 256 codes (ITU-T G.711), in 16-bit scale divided by 32768."""
    code = np.arange(256) ^ (0xFF if encoding == "g711_ulaw" else 0x55)
    segment, step = (code >> 4) & 7, code & 15
    if encoding == "g711_ulaw":
        is_negative = code >= 128
        magnitude = (((step << 3) + 0x84) << segment) - 0x84
    else:
        is_negative = code < 128
        magnitude = np.where(
            segment == 0, (step << 4) + 8, ((step << 4) + 0x108) << np.maximum(segment - 1, 0)
        )
    values: Pcm = (np.where(is_negative, -magnitude, magnitude) / 32768).astype(np.float32)
    return values


@cache
def _g711_encoding(encoding: str) -> NDArray[np.uint8]:
    """
    Returns the code of each 16-bit value, indexed by the value as unsigned (ITU-T G.711).

    The standard codes 14 bits (mu-law) or 13 bits (A-law); the bits below are dropped towards minus infinity.
    """
    value = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64)
    if encoding == "g711_ulaw":
        value >>= 2
        magnitude = np.minimum(np.abs(value) + 33, 8191)
        segment = np.searchsorted((64 << np.arange(8)) - 1, magnitude)
        code = (segment << 4) | ((magnitude >> (segment + 1)) & 15)
        mask = np.where(value < 0, 0x7F, 0xFF)
    else:
        value >>= 3
        magnitude = np.where(value < 0, -value - 1, value)
        segment = np.searchsorted((32 << np.arange(8)) - 1, magnitude)
        code = (segment << 4) | ((magnitude >> np.maximum(segment, 1)) & 15)
        mask = np.where(value < 0, 0x55, 0xD5)
    codes: NDArray[np.uint8] = (code ^ mask).astype(np.uint8)
    return codes
