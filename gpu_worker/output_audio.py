"""A response's audio on its way out: the model's samples to bytes in the response's format, as one stream."""

from __future__ import annotations

from gpu_worker.audio import Encoder, Pcm, encode
from gpu_worker.plugin import Spoken
from session_core.audio import AudioFormat

TAIL_S = 0.02
"""Twice what any converter looks back."""


class OutputAudio:
    """
    Converts what a session's model says; one stream a response, so that units join without a seam.

    Lives as long as the worker serves the session. Where the rates differ, the converter holds back the last
    moment (5 ms at most) until more audio comes or the response ends. A worker that takes over in between
    joins the stream with `resume`; without it that moment is lost.

    Args:
        rate_hz: the model's rate.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._format: AudioFormat | None = None
        self._encoder: Encoder | None = None

    def resume(self, audio_format: AudioFormat, produced: int, spoken: Spoken) -> None:
        """
        Join the stream of a response that another worker began.

        Args:
            audio_format: the response's.
            produced: samples that the journal holds of the response, in its format.
            spoken: what the model said for them, with at least `TAIL_S` of its end or all of it.
        """
        encoder = Encoder(
            self._rate_hz, audio_format.encoding, audio_format.sample_rate_hz, first_sample=produced
        )
        known = encoder.position - (spoken.samples - len(spoken.tail))
        if 0 <= known <= len(spoken.tail):
            encoder.feed(spoken.tail[known:])
            self._format, self._encoder = audio_format, encoder

    def convert(self, pcm: Pcm, audio_format: AudioFormat, *, last: bool) -> bytes:
        """
        Convert the next audio of the response.

        Args:
            pcm: float32 [samples] at the model's rate.
            audio_format: the response's; another one begins another stream.
            last: the response ends with this.

        Raises:
            AudioFormatError: the model gave samples that are not finite.
        """
        if audio_format.sample_rate_hz == self._rate_hz:
            return encode(pcm, audio_format.encoding)
        if self._encoder is None or audio_format != self._format:
            self._format = audio_format
            self._encoder = Encoder(self._rate_hz, audio_format.encoding, audio_format.sample_rate_hz)
        data = self._encoder.feed(pcm)
        if last:
            data += self._encoder.flush()
            self.end()
        return data

    def end(self) -> None:
        """Forget the stream: what comes next belongs to another response."""
        self._encoder = None
