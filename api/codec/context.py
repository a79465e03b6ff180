"""What the codec has to know of a connection to understand its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.settings import GatewaySettings
from session_core.audio import AudioFormat, Encoding
from session_core.config import Dialect, ModelProfile, SessionConfig, TurnDetection, Way


@dataclass(slots=True)
class CodecContext:
    """
    How a connection opened, and the configuration its updates build on. Lives as long as the connection.

    Attributes:
        way: how the session was opened; decides codes and defaults.
        dialect: spelling of OpenAI's events.
        config: the settings in force as far as this connection knows: the fold's, or the last update it sent.
        name_model: what a client's model name means here.
        profile: what is known of a model; None if no live worker serves it.
        settings: what else the operator has names stand for.
    """

    way: Way
    dialect: Dialect
    config: SessionConfig
    name_model: Callable[[str, str], str]
    profile: Callable[[str], ModelProfile | None]
    settings: GatewaySettings

    def code(self, openai: str, duplex: str) -> str:
        """Choose the code that this way's clients know."""
        return openai if self.way is Way.OPENAI else duplex

    def voice(self, name: str) -> str:
        """Give the voice that a client's word means."""
        return _meant(self.settings.voice_aliases, name)

    def transcription_model(self, name: str) -> str:
        """Give the transcription model that a client's word means."""
        return _meant(self.settings.transcription_aliases, name)

    def semantic_silence_ms(self, eagerness: str) -> int:
        """Give the silence that ends a turn under `semantic_vad`; `auto` is medium, as with OpenAI."""
        semantic = self.settings.semantic_vad
        return {"low": semantic.low_ms, "high": semantic.high_ms}.get(eagerness, semantic.medium_ms)


def _meant(aliases: dict[str, str], name: str) -> str:
    return aliases.get(name, aliases.get("*", name))


def default_config(way: Way, model: str) -> SessionConfig:
    """
    Give the configuration of a session whose client said nothing about it.

    OpenAI's clients assume 24 kHz both ways and turn detection; duplex clients assume 16 kHz in and none.
    """
    if way is Way.OPENAI:
        return SessionConfig(model=model, turn_detection=TurnDetection())
    return SessionConfig(model=model, input_format=AudioFormat(Encoding.PCM16, 16_000))
