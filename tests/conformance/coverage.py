"""
Which event is covered by which test: what tests declare, what a run saw, and the page made of it.

    python -m tests.conformance.coverage        writes docs/events.md
"""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from tests.conformance.vocabulary import CLIENT_EVENTS, EXCUSED, NEVER_SENT, SERVER_EVENTS

PAGE = Path(__file__).parents[2] / "docs" / "events.md"
Function: TypeAlias = Callable[..., Any]
_PREFACE = """\
Made from the suite in `tests/conformance/` by `python -m tests.conformance.coverage`; do not edit.
A test covers an event if the suite fails when that test does not send it, or does not receive it.

Tier 1: OpenAI's event as it is. Tier 2: OpenAI's, with keys of ours that its clients ignore. Tier 3: only in
sessions opened the duplex way.""".splitlines()


class Coverage:
    """The events that each test sent and saw; lives as long as a run."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}
        """Test -> events."""

    def see(self, test: Function, events: set[str]) -> None:
        """Add what one run of a test sent and saw."""
        self.seen.setdefault(place(test), set()).update(events)

    @property
    def all_seen(self) -> set[str]:
        """What all tests sent and saw."""
        return {name for events in self.seen.values() for name in events}

    def missed(self) -> dict[str, set[str]]:
        """Test -> events that it claims to cover and neither sent nor saw."""
        claims = {place(test): covered_by(test) for test in functions()}
        lacking = {test: claims[test] - events for test, events in self.seen.items() if test in claims}
        return {test: names for test, names in lacking.items() if names}


def place(test: Function) -> str:
    """A test's module and name."""
    return f"{test.__module__.rpartition('.')[2]}.{test.__name__}"


def covered_by(test: Function) -> set[str]:
    """The events that a test says it covers."""
    marks = getattr(test, "pytestmark", [])
    return {name for mark in marks if mark.name == "covers" for name in mark.args}


def modules() -> list[ModuleType]:
    """The suite's test modules."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    return [importlib.import_module(f"tests.conformance.{name}") for name in names]


def functions() -> Iterator[Function]:
    """Every test function of the suite."""
    for module in modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and function.__module__ == module.__name__:
                yield function


def declared() -> Mapping[str, list[str]]:
    """Event -> the tests that cover it."""
    found: dict[str, list[str]] = defaultdict(list)
    for function in functions():
        for name in covered_by(function):
            found[name].append(place(function))
    return found


def page() -> str:
    """The table of events as Markdown."""
    found = declared()
    return "\n".join(
        [
            "# Events and the tests that cover them",
            "",
            *_PREFACE,
            "",
            f"## Client to server ({len(CLIENT_EVENTS)})",
            "",
            *_table(CLIENT_EVENTS, found),
            "",
            f"## Server to client ({len(SERVER_EVENTS)})",
            "",
            *_table(SERVER_EVENTS, found),
            "",
            "## Never sent",
            "",
            "| event of OpenAI's | why |",
            "|---|---|",
            *(f"| `{name}` | {why} |" for name, why in NEVER_SENT.items()),
            "",
        ]
    )


def _table(events: Mapping[str, int], found: Mapping[str, list[str]]) -> Iterator[str]:
    yield "| event | tier | covered by |"
    yield "|---|--:|---|"
    for name, tier in events.items():
        places = ", ".join(f"`{place}`" for place in sorted(found.get(name, [])))
        yield f"| `{name}` | {tier} | {places or EXCUSED.get(name, 'nothing')} |"


if __name__ == "__main__":
    PAGE.write_text(page())
