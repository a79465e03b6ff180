from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from duplex.health import http_status
from duplex.ports import free_port

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 30.0


class Service(NamedTuple):
    """A running `duplex serve`."""

    process: asyncio.subprocess.Process
    url: str
    store_url: str


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Service]:
    """Start `duplex serve` on ports of its own and wait until it says that it is ready."""
    store_port = free_port()
    ports = ["--port", str(free_port()), "--store-port", str(store_port)]
    command = ["serve", *ports, "--data-dir", str(folder)]
    with (folder / "serve.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "duplex", *command), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("ready: http://")
        yield Service(process, line.removeprefix("ready: ").strip(), f"redis://127.0.0.1:{store_port}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process.stdout.feed_eof()
        await until(lambda: not alive(folder))


def children(pid: int) -> dict[int, str]:
    """A process's children, with their command lines."""
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
    return {int(row[0]): row[2] for row in rows if int(row[1]) == pid and len(row) == 3}


def named(pid: int, name: str) -> int:
    """
    The first child whose command line holds `name`.

    Raises:
        LookupError: there is none. Never 0: that would signal a whole process group.
    """
    for child, command in children(pid).items():
        if name in command:
            return child
    raise LookupError(f"no {name} among {children(pid)}")


def is_replaced(parent: int, name: str, before: int) -> bool:
    """Whether another child has come in the place of `before`."""
    try:
        return named(parent, name) != before
    except LookupError:
        return False


def alive(folder: Path) -> bool:
    """Whether the store that works in `folder` still runs."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == folder:
                return True
        except OSError:
            continue
    return False


def gone(pid: int) -> bool:
    """Whether no such process runs; one that ended and that nobody asked about does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", ["duplex worker", "duplex gateway", "valkey-server"])
async def test_a_killed_process_is_started_again(tmp_path: Path, victim: str) -> None:
    """After a kill -9 of any of the three there is another one, and the service is ready again."""
    async with service(tmp_path) as running:
        before = named(running.process.pid, victim)
        os.kill(before, signal.SIGKILL)
        await until(lambda: is_replaced(running.process.pid, victim, before))
        async with asyncio.timeout(PATIENCE_S):
            while await http_status(f"{running.url}/ready") != 200:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)


async def test_sigterm_ends_everything_in_good_order(tmp_path: Path) -> None:
    """Exit code 0, and none of the processes is left."""
    async with service(tmp_path) as running:
        family = list(children(running.process.pid))
        running.process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            code = await running.process.wait()

        assert 0 == code
        assert [] == [pid for pid in family if not gone(pid)]


async def test_nothing_outlives_a_killed_serve(tmp_path: Path) -> None:
    """A kill -9 of the root of the tree ends the whole tree."""
    async with service(tmp_path) as running:
        family = list(children(running.process.pid))
        running.process.kill()
        await until(lambda: all(gone(pid) for pid in family))


async def test_a_process_that_cannot_start_ends_serve(tmp_path: Path) -> None:
    """A tree that never becomes ready says which process failed, and leaves nothing behind."""
    command = [
        "serve",
        "--port",
        str(free_port()),
        "--store-port",
        str(free_port()),
        "--data-dir",
        str(tmp_path),
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duplex", *command, "--model", "no-such-model"),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()

    assert 2 == process.returncode
    assert "duplex: worker-1 did not start: it ended with status 1" in errors.decode()
    assert not alive(tmp_path)
