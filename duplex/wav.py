"""WAV files in and out, 16 bit, and what a timeline needs to know of them."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from .errors import AudioFileError

SAMPLE_BYTES = 2
_LEVEL_WINDOW_S = 0.02
_SPEECH_SHARE = 0.05
"""
Sound above this share of the loudest window counts as speech. Good for clean recordings, and only for
reports.
"""


def read_wav(path: Path, rate_hz: int) -> bytes:
    """
    Read a file as mono PCM16 at `rate_hz`; stereo is averaged.

    Raises:
        AudioFileError: no such file, or not 16-bit PCM.
    """
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != SAMPLE_BYTES:
                raise AudioFileError(str(path), "not 16 bit")
            channels, source_hz = file.getnchannels(), file.getframerate()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except (OSError, EOFError, wave.Error) as error:
        raise AudioFileError(str(path), str(error) or "not a WAV file") from error
    if not samples.size:
        raise AudioFileError(str(path), "holds no sound")
    mono = samples.reshape(-1, channels).mean(axis=1)
    if source_hz != rate_hz:
        mono = soxr.resample(mono, source_hz, rate_hz)
    pcm: bytes = np.clip(np.rint(mono), -32768, 32767).astype("<i2").tobytes()
    return pcm


def write_wav(path: Path, pcm: bytes, rate_hz: int) -> None:
    """Write mono PCM16; makes the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(rate_hz)
        file.writeframes(pcm)


def speech_end_ms(pcm: bytes, rate_hz: int) -> int:
    """Where the last speech of mono PCM16 ends."""
    window = int(rate_hz * _LEVEL_WINDOW_S)
    samples = _floats(pcm)
    levels = np.sqrt(
        np.square(np.resize(samples, -(-len(samples) // window) * window)).reshape(-1, window).mean(axis=1)
    )
    loud = np.flatnonzero(levels > _SPEECH_SHARE * levels.max())
    last = int(loud[-1]) + 1 if loud.size else len(levels)
    return min(last * window, len(samples)) * 1000 // rate_hz


def correlation(reply: bytes, original: bytes) -> float:
    """
    How alike two mono PCM16 sounds of one rate are, at the shift where they are most alike: -1 to 1.

    Normalised by the reply and by the stretch of the original under it, so a reply of one utterance out of
    many scores 1.
    """
    part, whole = _floats(reply), _floats(original)
    if not part.any() or not whole.any():
        return 0.0
    padded = np.concatenate([np.zeros(len(part)), whole, np.zeros(len(part))])
    size = 1 << (2 * len(part) + len(padded)).bit_length()
    products = np.fft.irfft(np.fft.rfft(padded, size) * np.conj(np.fft.rfft(part, size)), size)
    shifts = len(padded) - len(part) + 1
    energy = np.concatenate([[0.0], np.cumsum(np.square(padded))])
    under = energy[len(part) :] - energy[: -len(part)]
    at = int(np.argmax(products[:shifts]))
    # At least a tenth of the original's energy: a faint stretch under the reply proves nothing.
    norm = np.sqrt(max(under[at], 0.1 * energy[-1]) * np.square(part).sum())
    return float(products[at] / norm)


def _floats(pcm: bytes) -> NDArray[np.float64]:
    return np.frombuffer(pcm, "<i2").astype(np.float64)
