"""The inspection commands: `ls`, `show`, `state`, `verify`, `lint`, `tail`. They only read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import aclosing

import msgspec

from eventstore import EventStore, EventStoreError

from .cursor import Cursor, covers, parse_cursor, reaches
from .errors import BadCursor, ReplayError
from .lint import Seen, read, violations
from .reader import read_steps
from .render import Renderer, Style, state_json
from .summary import summarise_all, table
from .verify import Outcome, verify

LIVE_RUN_MS = 1_000
"""How much journal time `tail` gathers into one line."""


def add_arguments(parser: argparse.ArgumentParser, common: argparse.ArgumentParser | None = None) -> None:
    """Add the commands below `parser`, each with the arguments of `common` (made without help)."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    parents = [common] if common is not None else []
    listing = commands.add_parser("ls", help="the sessions of the store", parents=parents)
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    show = commands.add_parser("show", help="a session's entries, one line each", parents=parents)
    show.add_argument("--from", dest="first", type=_cursor, metavar="CURSOR", help="first entry to show")
    show.add_argument("--to", dest="last", type=_cursor, metavar="CURSOR", help="last entry to show")
    tail = commands.add_parser("tail", help="like show, and goes on with what is appended", parents=parents)
    for listed in (show, tail):
        listed.add_argument("session", metavar="SESSION")
        listed.add_argument("--events", action="store_true", help="the outbound events below their entry")
        listed.add_argument("--audio", action="store_true", help="the peak level of each piece of audio")
        listed.add_argument("--full", action="store_true", help="no runs: one line for every entry")
    state = commands.add_parser("state", help="a session's state as JSON", parents=parents)
    state.add_argument("session", metavar="SESSION")
    state.add_argument(
        "--at", type=_cursor, default="end", metavar="CURSOR", help='"ms-seq", "+1234ms", "seq:57", "end"'
    )
    check = commands.add_parser(
        "verify", help="fold again and compare with the recorded digests", parents=parents
    )
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("session", nargs="?", metavar="SESSION")
    which.add_argument("--all", action="store_true", help="every session of the store")
    lint = commands.add_parser(
        "lint", help="check the order and the number of a session's outbound events", parents=parents
    )
    lint.add_argument("session", metavar="SESSION")


async def run(arguments: argparse.Namespace, store: EventStore) -> int:
    """
    Run the command that `add_arguments` parsed, on an open store.

    Returns:
        The exit code.
    """
    try:
        match arguments.action:
            case "ls":
                return await _list(store, as_json=arguments.json)
            case "state":
                return await _state(store, arguments.session, arguments.at)
            case "verify":
                sessions = await store.sessions() if arguments.all else [arguments.session]
                return await _verify(store, sessions, named=arguments.all)
            case "lint":
                return await _lint(store, arguments.session)
            case _:
                return await _show(store, arguments)
    except (ReplayError, EventStoreError) as error:
        print(error, file=sys.stderr)
        return 1


async def _list(store: EventStore, *, as_json: bool) -> int:
    summaries = await summarise_all(store)
    for line in [msgspec.json.encode(s).decode() for s in summaries] if as_json else table(summaries):
        print(line)
    return 0


async def _show(store: EventStore, arguments: argparse.Namespace) -> int:
    live = arguments.action == "tail"
    run_ms = LIVE_RUN_MS if live else None
    style = Style(full=arguments.full, events=arguments.events, audio=arguments.audio, run_ms=run_ms)
    first: Cursor | None = getattr(arguments, "first", None)
    last: Cursor | None = getattr(arguments, "last", None)
    renderer: Renderer | None = None
    start_ms = 0
    async with aclosing(read_steps(store, arguments.session, live=live)) as steps:
        async for step in steps:
            if renderer is None:
                start_ms = step.before.state.pinned.opened_ms or step.id.ms
                renderer = Renderer(style, start_ms)
            if last is not None and not covers(last, step, start_ms):
                break
            if first is None or reaches(first, step, start_ms):
                _print(renderer.feed(step))
    if renderer is not None:
        _print(renderer.flush())
    return 0


async def _state(store: EventStore, session_id: str, at: Cursor) -> int:
    state, start_ms = None, 0
    async with aclosing(read_steps(store, session_id)) as steps:
        async for step in steps:
            start_ms = start_ms or step.before.state.pinned.opened_ms or step.id.ms
            if not covers(at, step, start_ms):
                break
            state = step.after.state
    if state is None:
        print("no entry at or before this cursor", file=sys.stderr)
        return 1
    print(state_json(state).decode())
    return 0


async def _verify(store: EventStore, sessions: list[str], *, named: bool) -> int:
    outcomes = [Outcome.VERIFIED]
    for session_id in sessions:
        report = await verify(store, session_id)
        print(f"{session_id}  {report}" if named else report)
        outcomes.append(report.outcome)
    # One failure outweighs any number of sessions without a digest.
    return Outcome.FAILED if Outcome.FAILED in outcomes else max(outcomes)


async def _lint(store: EventStore, session_id: str) -> int:
    """Check the canonical events: what every client of the session was shown, or a part of it."""
    events: list[Seen] = []
    async with aclosing(read_steps(store, session_id)) as steps:
        async for step in steps:
            session_events = [event for event, addressee in step.reduction.outbound if addressee is None]
            events.extend(read(msgspec.json.encode(event)) for event in session_events)
    wrong = violations(events)
    _print(wrong or [f"{len(events)} events, in order"])
    return 1 if wrong else 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _cursor(text: str) -> Cursor:
    try:
        return parse_cursor(text)
    except BadCursor as error:
        raise argparse.ArgumentTypeError(str(error)) from error
