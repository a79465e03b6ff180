"""Helpers to try the codec without a socket."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from api.codec import client
from api.codec.command import to_command
from api.codec.context import CodecContext, default_config
from api.errors import CodecError
from api.settings import GatewaySettings
from session_core import commands as cmd
from session_core.config import Dialect, ModelProfile, Way


def context(
    way: Way = Way.OPENAI,
    dialect: Dialect = Dialect.GA,
    *,
    profile: ModelProfile | None = None,
    settings: GatewaySettings | None = None,
    **config: Any,
) -> CodecContext:
    """A connection that knows one model alias."""
    base = msgspec.structs.replace(default_config(way, "loopback"), **config)

    def name_model(name: str, current: str) -> str:
        return {"alias": "loopback"}.get(name, name)

    return CodecContext(way, dialect, base, name_model, lambda model: profile, settings or GatewaySettings())


def command(event: dict[str, Any], codec: CodecContext | None = None) -> cmd.AnyCommand:
    """What an event is journaled as."""
    codec = codec or context(Way.DUPLEX)
    return to_command(client.parse(msgspec.json.encode(event).decode(), codec), codec)


def refusal(text: str, codec: CodecContext) -> CodecError:
    """How a text frame is refused."""
    with pytest.raises(CodecError) as caught:
        to_command(client.parse(text, codec), codec)
    return caught.value


def b64(audio: bytes) -> str:
    """Audio as clients send it."""
    return base64.b64encode(audio).decode()
