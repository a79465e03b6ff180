"""
Settings by key: a tree of frozen Structs, filled from several sources, each value with its origin.

Knows nothing of the service: `settings.py` says which tree.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from .errors import SettingError

ENVIRONMENT_PREFIX = "DUPLEX_"
CONFIG_VARIABLE = "DUPLEX_CONFIG"
DEFAULT = "default"

Tree = TypeVar("Tree", bound=Struct)


class Leaf(NamedTuple):
    """One setting: its type as written in the Struct."""

    type: object


class Source(NamedTuple):
    """Values by key, and what to call their origin. `text`: the values are strings still to be parsed."""

    values: Mapping[str, object]
    origins: Mapping[str, str]
    text: bool


class Resolved(NamedTuple, Generic[Tree]):
    """The effective settings, and where each came from."""

    settings: Tree
    origins: dict[str, str]
    """Key -> flag, variable or file; `default` where nobody set it."""


def leaves(tree: Struct, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every setting below `tree` with its dotted key."""
    for info in fields(tree):
        value = getattr(tree, info.name)
        if isinstance(value, Struct):
            yield from leaves(value, f"{prefix}{info.name}.")
        else:
            yield prefix + info.name, Leaf(info.type)


def value_of(tree: Struct, key: str) -> object:
    """The value at a dotted key."""
    value: object = tree
    for name in key.split("."):
        value = getattr(value, name)
    return value


def variable(key: str) -> str:
    """The environment variable of a key: `gateway.port` is `DUPLEX_GATEWAY_PORT`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def to_text(value: object) -> str:
    """A value as a flag or variable holds it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def from_environment(known: Mapping[str, Leaf], environment: Mapping[str, str]) -> Source:
    """
    The settings among environment variables.

    Raises:
        SettingError: a `DUPLEX_` variable that is no setting.
    """
    keys = {variable(key): key for key in known}
    found = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    found.pop(CONFIG_VARIABLE, None)
    for name in found:
        if name not in keys:
            raise SettingError(name, "environment", "there is no such setting")
    return Source({keys[n]: text for n, text in found.items()}, {keys[n]: n for n in found}, text=True)


def from_file(known: Mapping[str, Leaf], path: Path) -> Source:
    """
    The settings in a TOML file.

    Raises:
        SettingError: the file cannot be read, or holds a key that is no setting.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(str(path), "file", str(error)) from error
    values = dict(_flatten(table, known, ""))
    for key in values:
        if key not in known:
            raise SettingError(key, str(path), "there is no such setting")
    return Source(values, dict.fromkeys(values, str(path)), text=False)


def resolve(defaults: Tree, sources: list[Source]) -> Resolved[Tree]:
    """
    Lay the sources over the defaults; an earlier source wins.

    Raises:
        SettingError: a value that its key cannot take.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for key, leaf in leaves(defaults):
        origins[key] = DEFAULT
        for source in sources:
            if key in source.values:
                origins[key] = source.origins[key]
                values[key] = _convert(key, leaf, source.values[key], origins[key], text=source.text)
                break
    return Resolved(_replace(defaults, values, ""), origins)


def _flatten(
    table: Mapping[str, object], known: Mapping[str, Leaf], prefix: str
) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = prefix + name
        # A table that is itself a setting (model aliases) is a value; any other is a branch.
        if isinstance(value, dict) and key not in known:
            yield from _flatten(value, known, key + ".")
        else:
            yield key, value


def _convert(key: str, leaf: Leaf, value: object, origin: str, *, text: bool) -> object:
    if text and isinstance(value, str) and value[:1] in ("[", "{") and leaf.type is not str:
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise SettingError(key, origin, str(error)) from error
    try:
        return msgspec.convert(value, leaf.type, strict=not text)
    except msgspec.ValidationError as error:
        raise SettingError(key, origin, str(error)) from error


def _replace(tree: Tree, values: Mapping[str, object], prefix: str) -> Tree:
    changes: dict[str, object] = {}
    for info in fields(tree):
        key, value = prefix + info.name, getattr(tree, info.name)
        if isinstance(value, Struct):
            changes[info.name] = _replace(value, values, key + ".")
        elif key in values:
            changes[info.name] = values[key]
    return replace(tree, **changes)
