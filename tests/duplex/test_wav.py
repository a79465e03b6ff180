from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from duplex.errors import AudioFileError
from duplex.wav import correlation, read_wav, speech_end_ms, write_wav

RATE_HZ = 24_000


def tone(seconds: float, hz: float = 440.0) -> bytes:
    """A tone at half scale."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    pcm: bytes = (16_000 * np.sin(2 * np.pi * hz * t)).astype("<i2").tobytes()
    return pcm


def noise(seconds: float, seed: int) -> bytes:
    """Noise at a quarter of full scale."""
    samples = np.random.default_rng(seed).normal(0, 8_000, round(seconds * RATE_HZ))
    pcm: bytes = np.clip(samples, -32768, 32767).astype("<i2").tobytes()
    return pcm


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The same rate gives the same samples; missing folders are made."""
    path = tmp_path / "new" / "a.wav"
    write_wav(path, tone(0.1), RATE_HZ)

    assert tone(0.1) == read_wav(path, RATE_HZ)


def test_another_rate_is_converted(tmp_path: Path) -> None:
    """The duration stays, and so does the sound."""
    path = tmp_path / "a.wav"
    write_wav(path, tone(0.5)[: 2 * 8_000], 16_000)

    assert 12_000 * 2 == len(read_wav(path, RATE_HZ))


def test_stereo_is_averaged(tmp_path: Path) -> None:
    """Left and right of opposite sign cancel."""
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.array([[100, -100], [300, 100]], "<i2").tobytes())

    assert [0, 200] == np.frombuffer(read_wav(path, RATE_HZ), "<i2").tolist()


def test_a_file_that_cannot_be_talked_says_why(tmp_path: Path) -> None:
    """No file, no WAV, no sound, not 16 bit."""
    text, empty, deep = (tmp_path / name for name in ("text.wav", "empty.wav", "deep.wav"))
    text.write_text("hello, this is no sound")
    write_wav(empty, b"", RATE_HZ)
    with wave.open(str(deep), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(RATE_HZ)
        file.writeframes(bytes(6))

    for path in (tmp_path / "none.wav", text, empty, deep):
        with pytest.raises(AudioFileError) as caught:
            read_wav(path, RATE_HZ)
        assert str(path) == caught.value.path


def test_speech_ends_where_the_sound_ends() -> None:
    """Silence at the end does not count."""
    assert 500 == speech_end_ms(tone(0.5) + bytes(RATE_HZ), RATE_HZ)


def test_a_stretch_of_the_original_correlates() -> None:
    """Shifted or cut, the same sound scores near 1; another sound does not."""
    original = noise(1.0, seed=1)
    stretch = original[RATE_HZ // 2 : RATE_HZ]

    assert 0.999 < correlation(original, original)
    assert 0.999 < correlation(stretch, original)
    assert 0.999 < correlation(bytes(2_000) + original, original)
    assert 0.1 > correlation(noise(1.0, seed=2), original)
    assert 0.0 == correlation(bytes(100), original)
