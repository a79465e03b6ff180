"""
`duplex demo`: the whole product in half a minute, on nothing but this machine.

Starts the service, talks a recorded clip to the loopback model, checks that the reply is the clip's own
words, verifies the session's journal, and stops everything.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from msgspec.structs import replace

from eventstore import open_store
from replay_tools.verify import Outcome, Report, verify

from . import logs
from .client import Opening
from .errors import AudioFileError, DuplexError
from .keys import Resolved
from .ports import free_port
from .process_tree import process_tree
from .serve import until_signalled
from .settings import Settings, add_flags, from_arguments
from .talk import Talk
from .talk_command import RATE_HZ, end_progress, print_result, progress_line
from .wav import correlation, read_wav, write_wav

CLIP = Path(__file__).parent.parent / "tests" / "data" / "speech" / "austen_0880.wav"
REPLY = Path("out") / "demo-reply.wav"
LEAST_CORRELATION = 0.9
DIGEST_TIMEOUT_S = 5.0
"""How long the gateway may take to journal its last digest."""


class DemoFailed(DuplexError):
    """The service runs, and does not do what it should."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    add_flags(parser, {})
    parser.add_argument("--clip", type=Path, default=CLIP, metavar="FILE.wav", help="what to say instead")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 if all went as it should."""
    if not arguments.clip.exists():
        raise AudioFileError(
            str(arguments.clip), "the demo's clip is in the repository; give another one with --clip"
        )
    resolved = _apart(from_arguments(arguments))
    logs.configure("warning")
    asyncio.run(until_signalled(_demo(resolved, arguments.clip)))
    return 0


def _apart(resolved: Resolved[Settings]) -> Resolved[Settings]:
    """The settings with everything of its own: ports, data, store, and quiet processes."""
    settings = resolved.settings
    own = replace(
        settings,
        redis="",
        log_level="warning",
        gateway=replace(settings.gateway, port=free_port()),
        serve=replace(settings.serve, store_port=0, data_dir="", gateways=1, workers=1),
    )
    changed = {"log_level": "demo", "gateway.port": "demo"}
    return Resolved(own, resolved.origins | changed)


async def _demo(resolved: Resolved[Settings], clip: Path) -> None:
    sound = read_wav(clip, RATE_HZ)
    print("starting an event store, a worker and a gateway ...", flush=True)
    async with process_tree(resolved) as tree:
        print(f"ready: {tree.urls[0]}; talking {clip.name} ...", flush=True)
        url = tree.urls[0].replace("http", "ws", 1)
        api_key = next(iter(resolved.settings.gateway.api_keys), None)
        reply = await Talk(Opening(urls=(url,), api_key=api_key), sound, progress=progress_line()).run()
        end_progress()
        print_result(reply.result)
        if not reply.audio:
            raise DemoFailed("the model did not answer")
        await asyncio.to_thread(write_wav, REPLY, reply.audio, RATE_HZ)
        likeness = correlation(reply.audio, sound)
        print(f"reply written to {REPLY}; correlation with what was said: {likeness:.3f}")
        report = await _verify(tree.store_url, reply.result.session_id)
        print(report, flush=True)
    if likeness < LEAST_CORRELATION:
        raise DemoFailed(f"the reply is not what was said: correlation {likeness:.3f}")
    if report.outcome is not Outcome.VERIFIED:
        raise DemoFailed("the journal could not be verified")
    print("all stopped", file=sys.stdout)


async def _verify(store_url: str, session_id: str) -> Report:
    async with open_store(store_url) as store:
        report = await verify(store, session_id)
        # The session's end was told to us before the gateway's last digest was appended.
        try:
            async with asyncio.timeout(DIGEST_TIMEOUT_S):
                while report.outcome is Outcome.NOTHING_TO_COMPARE:
                    await asyncio.sleep(0.05)
                    report = await verify(store, session_id)
        except TimeoutError:
            pass
        return report
