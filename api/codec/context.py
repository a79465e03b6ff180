"""What the codec has to know of a connection to understand its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.settings import SemanticVad
from session_core.audio import AudioFormat, Encoding
from session_core.config import Dialect, TurnDetection, SessionConfig, Way


@dataclass(slots=True)
class CodecContext:
    """How a connection opened, and the configuration its updates build on. Lives as long as the connection.

    Attributes:
        way: how the session was opened; decides codes and defaults.
        dialect: spelling of OpenAI's events.
        config: the settings in force as far as this connection knows: the fold's, or the last update it sent.
        name_model: what a client's model name means here.
        semantic_vad: what `semantic_vad` stands for.
    """

    way: Way
    dialect: Dialect
    config: SessionConfig
    name_model: Callable[[str, str], str]
    semantic_vad: SemanticVad

    def code(self, openai: str, duplex: str) -> str:
        """Choose the code that this way's clients know."""
        return openai if self.way is Way.OPENAI else duplex


def default_config(way: Way, model: str) -> SessionConfig:
    """Give the configuration of a session whose client said nothing about it.

    OpenAI's clients assume 24 kHz both ways and turn detection; duplex clients assume 16 kHz in and none.
    """
    if way is Way.OPENAI:
        return SessionConfig(model=model, turn_detection=TurnDetection())
    return SessionConfig(model=model, input_format=AudioFormat(Encoding.PCM16, 16_000))
