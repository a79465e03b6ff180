"""`duplex bench [NAME]`: a benchmark of the repository's `benchmarks/` folder; without a name, `load`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from .errors import DuplexError

FOLDER = Path(__file__).parent.parent / "benchmarks"
DEFAULT = "load"
_SUFFIX = "_bench.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: flags and arguments are the benchmark's own."""


def run(arguments: argparse.Namespace) -> int:
    """
    Run the benchmark as a process of its own: it is no part of the installed packages.

    Raises:
        DuplexError: there is none of that name.
    """
    rest: list[str] = arguments.rest
    name = DEFAULT
    if rest and not rest[0].startswith("-"):
        name, *rest = rest
    script = FOLDER / f"{name}{_SUFFIX}"
    if not script.exists():
        known = ", ".join(sorted(path.name.removesuffix(_SUFFIX) for path in FOLDER.glob(f"*{_SUFFIX}")))
        raise DuplexError(f"no benchmark {name!r}; here are: {known}" if known else "run from a checkout")
    return subprocess.run([sys.executable, str(script), *rest], check=False).returncode
