"""`duplex config`: the effective settings, one a line, as a TOML file would hold them, with their origin."""

from __future__ import annotations

import argparse
import re

import msgspec

from .keys import value_of
from .settings import STORE_FLAGS, add_flags, from_arguments, known_settings

_SECRET = frozenset({"gateway.api_keys", "gateway.client_secret_key"})
_PASSWORD = re.compile(r"(?<=://)([^/@]*:)[^/@]*(?=@)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    add_flags(parser, STORE_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    resolved = from_arguments(arguments)
    lines = [(f"{key} = {_shown(key, resolved.settings)}", resolved.origins[key]) for key in known_settings()]
    width = max(len(line) for line, _ in lines)
    for line, origin in lines:
        print(f"{line:<{width}}  # {origin}")
    return 0


def _shown(key: str, settings: msgspec.Struct) -> str:
    value = value_of(settings, key)
    if key in _SECRET and value:
        return '"..."' if isinstance(value, str) else '["..."]'
    return _PASSWORD.sub(r"\1...", msgspec.json.encode(value).decode())
