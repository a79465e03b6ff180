"""`duplex talk`: talk a WAV file to a model, write the reply as WAV, print the timeline."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from .client import Opening
from .talk import Talk, TalkResult, report
from .wav import read_wav, write_wav

RATE_HZ = 24_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    parser.add_argument("file", type=Path, metavar="FILE.wav", help="16-bit PCM, mono or stereo, any rate")
    parser.add_argument(
        "--out", type=Path, default=Path("reply.wav"), metavar="FILE.wav", help="where the reply goes"
    )
    parser.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help="ws://host:port of a gateway; several: a resume goes through the next one",
    )
    parser.add_argument("--model", default="loopback", metavar="NAME")
    parser.add_argument("--api-key", metavar="KEY", help="for a service that asks for one")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--duplex", dest="way", action="store_const", const="duplex", default="duplex")
    way.add_argument(
        "--openai", dest="way", action="store_const", const="openai", help="as OpenAI's clients do"
    )
    parser.add_argument(
        "--patience", type=float, default=10.0, metavar="SECONDS", help="how long a reply may take"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Talk; 0 if there was a reply, 1 if there was none."""
    opening = Opening(
        urls=tuple(arguments.url or ("ws://127.0.0.1:8000",)),
        model=arguments.model,
        way=arguments.way,
        rate_hz=RATE_HZ,
        api_key=arguments.api_key,
    )
    sound = read_wav(arguments.file, RATE_HZ)
    reply = asyncio.run(Talk(opening, sound, patience_s=arguments.patience, progress=progress_line()).run())
    end_progress()
    if reply.audio:
        write_wav(arguments.out, reply.audio, RATE_HZ)
    print_result(reply.result, as_json=arguments.json)
    return 0 if reply.audio else 1


def print_result(result: TalkResult, *, as_json: bool = False) -> None:
    """Print a result for machines or for people."""
    lines = [msgspec.json.encode(result).decode()] if as_json else report(result)
    print("\n".join(lines), flush=True)


def progress_line() -> _Progress | None:
    """Something that shows progress on a terminal; None where nobody watches."""
    return _Progress() if sys.stderr.isatty() else None


def end_progress() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _Progress:
    def __call__(self, line: str) -> None:
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
