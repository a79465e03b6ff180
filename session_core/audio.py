"""Audio formats and the exact arithmetic of audio time. No samples are touched here, only counted."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

SAMPLE_RATES_HZ = (8_000, 16_000, 22_050, 24_000, 48_000)

TICKS_PER_S = 7_056_000
"""Least common multiple of all sample rates: audio time in ticks is exact at every one of them."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A number of samples, milliseconds or things in an entry. The decoder refuses all others: what the fold
computes from them stays within the 64 bits of an encoded integer."""

SampleRate: TypeAlias = Annotated[int, Meta(ge=SAMPLE_RATES_HZ[0], le=SAMPLE_RATES_HZ[-1])]
"""Samples per second in an entry; never zero, so that it divides."""


class Encoding(StrEnum):
    """How one sample lies in the bytes. All are mono, little endian."""

    PCM16 = "pcm16"
    PCM_F32LE = "pcm_f32le"
    G711_ULAW = "g711_ulaw"
    G711_ALAW = "g711_alaw"


SAMPLE_BYTES = {Encoding.PCM16: 2, Encoding.PCM_F32LE: 4, Encoding.G711_ULAW: 1, Encoding.G711_ALAW: 1}


class AudioFormat(Struct, frozen=True):
    """An encoding at a sample rate; fixed for a session's lifetime unless it is updated."""

    encoding: Encoding = Encoding.PCM16
    sample_rate_hz: SampleRate = 24_000

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return SAMPLE_BYTES[self.encoding]

    def samples(self, size_bytes: int) -> int:
        """Whole samples in `size_bytes`."""
        return size_bytes // self.sample_bytes

    def ms(self, size_bytes: int) -> int:
        """Duration of `size_bytes`, rounded down to whole milliseconds."""
        return samples_to_ms(self.samples(size_bytes), self.sample_rate_hz)

    def ticks(self, size_bytes: int) -> int:
        """Exact duration of `size_bytes` in `TICKS_PER_S`."""
        return self.samples(size_bytes) * (TICKS_PER_S // self.sample_rate_hz)


def samples_to_ms(samples: int, sample_rate_hz: int) -> int:
    """Duration of `samples`, rounded down to whole milliseconds."""
    return samples * 1000 // sample_rate_hz


def ticks_to_samples(ticks: int, sample_rate_hz: int) -> int:
    """Whole samples at `sample_rate_hz` that `ticks` of audio time hold."""
    return ticks * sample_rate_hz // TICKS_PER_S
