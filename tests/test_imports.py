"""
The dependency rules, checked on the source text: nothing is imported to check it.

    duplex (composition root: may import all)
      api   gpu_worker   replay_tools          import eventstore and session_core, not one another
      eventstore   session_core                import nothing of ours, not even each other

session_core is pure besides: it imports only what ALLOWED_IN_CORE names and reads no clock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# package -> the packages of ours that it may import besides itself
LAYERS: dict[str, frozenset[str]] = {
    "eventstore": frozenset(),
    "session_core": frozenset(),
    "api": frozenset({"eventstore", "session_core"}),
    "gpu_worker": frozenset({"eventstore", "session_core"}),
    "replay_tools": frozenset({"eventstore", "session_core"}),
    "duplex": frozenset({"api", "eventstore", "gpu_worker", "replay_tools", "session_core"}),
}
NOT_PACKAGES = frozenset({"benchmarks", "tests"})
OURS = LAYERS.keys() | NOT_PACKAGES

# Every module here computes the same result from the same arguments, always. What is missing is forbidden:
# asyncio, redis, logging, time, random, uuid, secrets, os, socket, threading, ...
ALLOWED_IN_CORE = frozenset(
    {
        *("__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy", "dataclasses"),
        *("datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "math"),
        *("numbers", "operator", "re", "string", "struct", "types", "typing", "unicodedata"),
        *("msgspec", "typing_extensions"),
    }
)
# Builtins that do I/O, run text as code, or differ from one process to the next.
IMPURE_BUILTINS = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "hash", "id", "input", "open", "print"}
)
CLOCK_READS = frozenset({"now", "today", "utcnow"})


class Import(NamedTuple):
    """One imported module: its absolute dotted name, its line, and whether a function contains it."""

    module: str
    line: int
    in_function: bool

    @property
    def top(self) -> str:
        """The package that the module belongs to."""
        return self.module.partition(".")[0]


def imports(tree: ast.AST, package: str, *, in_function: bool = False) -> Iterator[Import]:
    """All imports below `tree`. A relative import counts as one of `package`: it cannot leave it."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(alias.name, node.lineno, in_function)
            case ast.ImportFrom(level=0, module=str(module)):
                yield Import(module, node.lineno, in_function)
            case ast.ImportFrom():
                yield Import(package, node.lineno, in_function)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from imports(node, package, in_function=True)
            case _:
                yield from imports(node, package, in_function=in_function)


def impurities(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every call that may give another result at another time or place."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node.lineno, f"calls {name}()"
            case ast.Attribute(attr=name) if name in CLOCK_READS:
                yield node.lineno, f"reads a clock: .{name}"


def violations(source: str, package: str) -> list[str]:
    """What `source`, as a module of `package`, does against the rules; each with its line."""
    tree = ast.parse(source)
    found: list[tuple[int, str]] = []
    for entry in imports(tree, package):
        if entry.top in OURS:
            if entry.in_function:
                found.append((entry.line, f"imports {entry.module} inside a function"))
            if entry.top != package and entry.top not in LAYERS[package]:
                found.append((entry.line, f"imports {entry.module}"))
        elif package == "session_core" and entry.top not in ALLOWED_IN_CORE:
            found.append((entry.line, f"imports {entry.module}, which is not on the list of pure modules"))
    if package == "session_core":
        found.extend(impurities(tree))
    return [f"line {line}: {what}" for line, what in sorted(found)]


def packages_on_disk() -> list[str]:
    """Our top-level packages: the folders of the root that hold an __init__.py or are named in LAYERS."""
    return sorted(
        folder.name
        for folder in ROOT.iterdir()
        if folder.is_dir()
        and folder.name not in NOT_PACKAGES
        and (folder.name in LAYERS or (folder / "__init__.py").exists())
    )


def test_every_package_has_a_rule() -> None:
    """A new or renamed top-level package fails here until LAYERS says what it may import."""
    unruled = set(packages_on_disk()) - LAYERS.keys()

    assert set() == unruled


@pytest.mark.parametrize("package", packages_on_disk())
def test_package_keeps_the_dependency_rules(package: str) -> None:
    """Every module of the package imports only what its layer may, and session_core is pure."""
    modules = sorted((ROOT / package).rglob("*.py"))
    broken = [
        f"{module.relative_to(ROOT)}, {violation}"
        for module in modules
        for violation in violations(module.read_text(encoding="utf-8"), package)
    ]

    assert [] == broken
    assert modules, f"{package}/ holds no module"


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("session_core", "import asyncio", "not on the list"),
        ("session_core", "import os.path as p", "not on the list"),
        ("session_core", "from time import time", "not on the list"),
        ("session_core", "def f():\n    import random", "not on the list"),
        ("session_core", "if TYPE_CHECKING:\n    import redis", "not on the list"),
        ("session_core", "import datetime\nx = datetime.datetime.now()", "reads a clock"),
        ("session_core", "x = hash('a')", "calls hash()"),
        ("session_core", "import eventstore", "imports eventstore"),
        ("eventstore", "from session_core.state import State", "imports session_core.state"),
        ("eventstore", "import tests.helpers", "imports tests.helpers"),
        ("api", "import gpu_worker", "imports gpu_worker"),
        ("gpu_worker", "from replay_tools import read", "imports replay_tools"),
        ("replay_tools", "import duplex.settings", "imports duplex.settings"),
        ("duplex", "def main():\n    from api import gateway", "inside a function"),
        ("api", "class A:\n    async def f(self):\n        from .codec import decode", "inside a function"),
    ],
)
def test_a_broken_rule_is_found(package: str, source: str, expected: str) -> None:
    """The check itself can fail: each rule finds the one line that breaks it."""
    (violation,) = violations(source, package)

    assert expected in violation


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("session_core", "from __future__ import annotations\nimport msgspec\nfrom .state import State"),
        ("session_core", "from collections.abc import Iterator\nfrom session_core.events import Event"),
        ("eventstore", "import asyncio\nimport redis.asyncio\nfrom . import errors"),
        ("api", "import eventstore\nfrom session_core import wire\nimport fastapi"),
        ("gpu_worker", "def load():\n    import torch"),
        ("duplex", "import api\nimport gpu_worker\nimport replay_tools"),
    ],
)
def test_a_kept_rule_is_not_reported(package: str, source: str) -> None:
    """What the layers permit is not reported; a heavy foreign import may wait in a function."""
    assert [] == violations(source, package)
