"""
The command line: `duplex COMMAND ...`.

A command's module is imported only when that command runs. A client needs none of the server's packages and
`--help` none at all; importing them all would make each start take seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from .errors import DuplexError


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare flags and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run to the end; gives the exit code."""


class Entry(NamedTuple):
    """A command: its module in this package, and its line in `--help`."""

    module: str
    help: str
    passes_on: bool = False
    """All that follows the command's name is another program's: it becomes `rest`, unread."""


COMMANDS = {
    "serve": Entry("serve", "the whole service as one process tree"),
    "gateway": Entry("gateway", "one gateway"),
    "worker": Entry("worker", "one worker"),
    "talk": Entry("talk_command", "talk a WAV file to a model and write what it answers"),
    "demo": Entry("demo", "start everything, talk a recorded clip, verify the journal"),
    "replay": Entry("replay", "inspect journals"),
    "bench": Entry("bench", "the load generator and the other benchmarks", passes_on=True),
    "config": Entry("config", "the effective settings, and where each comes from"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("duplex", description="Sessions with full-duplex voice models.")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen: Command | None = None
    for name, entry in COMMANDS.items():
        subparser = parsers.add_parser(name, help=entry.help, description=entry.help)
        if arguments[:1] == [name]:
            chosen = cast("Command", import_module(f"{__package__}.{entry.module}"))
            chosen.add_arguments(subparser)
    passes_on = chosen is not None and COMMANDS[arguments[0]].passes_on
    namespace = parser.parse_args(arguments[:1] if passes_on else arguments)
    if passes_on:
        namespace.rest = arguments[1:]
    assert chosen is not None  # the parser accepts a command only as the first argument
    try:
        return chosen.run(namespace)
    except DuplexError as error:
        print(f"duplex: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
