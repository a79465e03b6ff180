"""
One load: N sessions that each send 80 ms of audio every 80 ms and get it back.

    python -m benchmarks.load_client --port 8000 --sessions 50 [--echo] [--pids gateway=123,worker=124]

Latency of a frame: from the moment it is handed to the socket until the audio delta that carries its sound
has arrived whole, both by this process's clock. A frame is one unit of the model, so no waiting for a unit to
fill is in it. Each session sends in a phase of its own and never waits for an answer, so a slow server does
not slow the load. Prints one line of JSON: a `Load`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import uvloop

from benchmarks.frame_socket import FrameSocket
from benchmarks.proc import cpu_s, resident_bytes

FRAME_S = 0.08
SERVICE_PATH = "/v1/duplex"
ECHO_PATH = "/echo"
OPEN_AT_ONCE = 8
WARM_UP_S = 2.0
SETTLE_S = 1.0
"""Long enough for what is under way to arrive."""
ANSWER_TIMEOUT_S = 20.0
OPENING = (
    b'{"type":"session.update","session":{"model":"echo","extra_body":{"auto_response":true},'
    b'"audio":{"input":{"format":{"type":"audio/pcm","rate":24000}},'
    b'"output":{"format":{"type":"audio/pcm","rate":24000}}}}}'
)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one load came to. CPU per answered frame in microseconds, by process; memory in bytes."""

    sessions: int
    frames: int
    unanswered: int
    late: int
    """Frames that this process itself sent more than 10 ms after their time."""
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]
    resident_before_bytes: dict[str, int]
    resident_open_bytes: dict[str, int]
    """All sessions are open, and nothing was sent yet."""


class Target(NamedTuple):
    """What is loaded: a server on 127.0.0.1, and the processes to watch."""

    port: int
    path: str
    pids: Mapping[str, int]

    def resident(self) -> dict[str, int]:
        """Memory of each process."""
        return {name: resident_bytes(pid) for name, pid in self.pids.items()}


class Talker:
    """One session of the load."""

    def __init__(self, path: str, latencies_ms: list[float]) -> None:
        self.created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.late = 0
        self._path = path
        self._latencies_ms = latencies_ms
        self._socket = FrameSocket(path, self._came_back, self._told)
        self._sent_s: dict[int, float] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unanswered(self) -> int:
        """Frames that did not come back yet."""
        return len(self._sent_s)

    async def open(self, port: int) -> None:
        """Connect and, at the service, open a session."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(lambda: self._socket, "127.0.0.1", port)
            await self._socket.upgraded
            if self._path == SERVICE_PATH:
                self._socket.send(OPENING)
                await self.created

    def start(self) -> None:
        """Send from now on, in a random phase."""
        loop = asyncio.get_running_loop()
        self._at(loop.time() + random.random() * FRAME_S)

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """End the session."""
        if self._path == SERVICE_PATH:
            self._socket.send(b'{"type":"session.close"}')
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._socket.lost
        self._socket.close()

    def _at(self, due_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due_s, self._send, due_s)

    def _send(self, due_s: float) -> None:
        now_s = time.monotonic()
        self.late += now_s - due_s > 0.01
        self._number += 1
        self._sent_s[self._number] = now_s
        self._socket.send_number(self._number)
        self._at(due_s + FRAME_S)

    def _came_back(self, number: int) -> None:
        self._latencies_ms.append((time.monotonic() - self._sent_s.pop(number)) * 1000)

    def _told(self, text: bytes) -> None:
        if b'"session.created"' in text and not self.created.done():
            self.created.set_result(None)
        elif b'"error"' in text:
            raise ConnectionError(text.decode(errors="replace"))


class Sample(NamedTuple):
    """CPU used so far by every process of interest, this one included, and what this one was late with."""

    cpu_s: dict[str, float]
    late: int

    @classmethod
    def now(cls, pids: Mapping[str, int], talkers: Sequence[Talker]) -> Sample:
        """Look."""
        used_s = {name: cpu_s(pid) for name, pid in pids.items()} | {"client": time.process_time()}
        return cls(used_s, sum(talker.late for talker in talkers))


async def run(target: Target, sessions: int, seconds: float) -> Load:
    """Open the sessions, let them talk, and measure between the warm-up and the end."""
    latencies_ms: list[float] = []
    talkers = [Talker(target.path, latencies_ms) for _ in range(sessions)]
    resident_before = target.resident()
    await _open(talkers, target.port)
    await asyncio.sleep(SETTLE_S)
    resident_open = target.resident()
    before = after = Sample.now(target.pids, talkers)
    if seconds:
        for talker in talkers:
            talker.start()
        await asyncio.sleep(WARM_UP_S)
        latencies_ms.clear()
        before = Sample.now(target.pids, talkers)
        await asyncio.sleep(seconds)
        after = Sample.now(target.pids, talkers)
    answered = sorted(latencies_ms)
    for talker in talkers:
        talker.stop()
    await asyncio.sleep(SETTLE_S)
    frames = len(answered)
    load = Load(
        sessions=sessions,
        frames=frames,
        unanswered=sum(talker.unanswered for talker in talkers),
        late=after.late - before.late,
        p50_ms=answered[frames // 2] if frames else 0.0,
        p99_ms=answered[frames * 99 // 100] if frames else 0.0,
        cpu_us={
            name: (used_s - before.cpu_s[name]) / max(1, frames) * 1e6 for name, used_s in after.cpu_s.items()
        },
        resident_before_bytes=resident_before,
        resident_open_bytes=resident_open,
    )
    await asyncio.gather(*(talker.close() for talker in talkers))
    return load


async def _open(talkers: Sequence[Talker], port: int) -> None:
    gate = asyncio.Semaphore(OPEN_AT_ONCE)

    async def open_one(talker: Talker) -> None:
        async with gate:
            await talker.open(port)

    await asyncio.gather(*map(open_one, talkers))


def main() -> None:
    """Run one load and print what it came to."""
    parser = argparse.ArgumentParser(description="One load on a service or an echo.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=8.0, help="0: the sessions only open")
    parser.add_argument("--echo", action="store_true", help="the server is the bare echo")
    parser.add_argument("--pids", default="", help="processes to watch: name=pid,...")
    given = parser.parse_args()
    pids = {
        name: int(pid) for name, _, pid in (each.partition("=") for each in given.pids.split(",")) if name
    }
    path = ECHO_PATH if given.echo else SERVICE_PATH
    load = uvloop.run(run(Target(given.port, path, pids), given.sessions, given.seconds))
    print(msgspec.json.encode(load).decode())


if __name__ == "__main__":
    main()
