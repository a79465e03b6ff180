"""Audio formats as clients write them: OpenAI's objects and names, vLLM-Omni's names, rates beside them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from api.codec.context import CodecContext
from api.errors import CodecError
from session_core.audio import SAMPLE_RATES_HZ, AudioFormat, Encoding

ENCODINGS = {
    "pcm16": Encoding.PCM16,
    "pcm_s16le": Encoding.PCM16,
    "s16le": Encoding.PCM16,
    "audio/pcm": Encoding.PCM16,
    "pcm_f32le": Encoding.PCM_F32LE,
    "f32le": Encoding.PCM_F32LE,
    "audio/pcm_f32le": Encoding.PCM_F32LE,
    "g711_ulaw": Encoding.G711_ULAW,
    "audio/pcmu": Encoding.G711_ULAW,
    "g711_alaw": Encoding.G711_ALAW,
    "audio/pcma": Encoding.G711_ALAW,
}
_LAW = (Encoding.G711_ULAW, Encoding.G711_ALAW)


class WireFormat(Struct, frozen=True):
    """GA's format object. OpenAI's `rate` is 24000 or absent; other rates are our addition."""

    type: str
    rate: int | UnsetType | None = UNSET


AnyFormat = str | WireFormat | UnsetType | None


def audio_format(
    given: AnyFormat, rate_hz: int | UnsetType | None, base: AudioFormat, context: CodecContext, param: str
) -> AudioFormat | UnsetType:
    """
    Give the format that a client means, or UNSET if it says nothing about it.

    Args:
        given: the format object or name.
        rate_hz: a sample rate beside it.
        base: the format in force; a rate alone changes its rate, a plain PCM name alone keeps its rate.
        context: whose client it is.
        param: what to blame.

    Raises:
        CodecError: an encoding or a rate that is not supported.
    """
    if given is UNSET or given is None:
        if rate_hz is UNSET or rate_hz is None:
            return UNSET
        return AudioFormat(base.encoding, _rate(rate_hz, context, f"{param}.sample_rate_hz"))
    if isinstance(given, WireFormat):
        encoding = _encoding(given.type, context, f"{param}.format.type")
        if isinstance(given.rate, int):
            return AudioFormat(encoding, _rate(given.rate, context, f"{param}.format.rate"))
        unsaid_hz = 24_000
    else:
        assert isinstance(given, str)
        encoding = _encoding(given, context, f"{param}.format")
        unsaid_hz = 24_000 if base.encoding in _LAW else base.sample_rate_hz
    if isinstance(rate_hz, int):
        return AudioFormat(encoding, _rate(rate_hz, context, f"{param}.sample_rate_hz"))
    return AudioFormat(encoding, 8_000 if encoding in _LAW else unsaid_hz)


def _encoding(name: str, context: CodecContext, param: str) -> Encoding:
    encoding = ENCODINGS.get(name.lower())
    if encoding is None:
        code = context.code("invalid_value", "unsupported_audio_format")
        supported = ", ".join(sorted(ENCODINGS))
        raise CodecError(code, f"Unsupported audio format. Supported are: {supported}.", param=param)
    return encoding


def _rate(rate_hz: int, context: CodecContext, param: str) -> int:
    if rate_hz not in SAMPLE_RATES_HZ:
        code = context.code("invalid_value", "unsupported_audio_format")
        supported = ", ".join(map(str, SAMPLE_RATES_HZ))
        raise CodecError(code, f"Unsupported sample rate. Supported are: {supported} Hz.", param=param)
    return rate_hz
