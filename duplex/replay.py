"""`duplex replay`: the inspection tools on the configured store."""

from __future__ import annotations

import argparse
import asyncio
import sys

from eventstore import StoreUnavailable, open_store
from replay_tools import cli

from .settings import STORE_FLAGS, add_flags, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare flags and arguments."""
    common = argparse.ArgumentParser(add_help=False)
    add_flags(common, STORE_FLAGS)
    cli.add_arguments(parser, common)


def run(arguments: argparse.Namespace) -> int:
    """Run one of the tools."""
    url = from_arguments(arguments).settings.store_url
    try:
        return asyncio.run(_run(arguments, url))
    except StoreUnavailable as error:
        print(f"duplex: no store at {url}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        return 0


async def _run(arguments: argparse.Namespace, url: str) -> int:
    async with open_store(url) as store:
        return await cli.run(arguments, store)
