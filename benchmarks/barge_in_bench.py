"""
How long the service goes on talking when the user talks over it. `duplex bench barge_in`.

    python benchmarks/barge_in_bench.py [--rounds 20] [--server-url ws://127.0.0.1:8000 --model loopback]

Each round asks for an answer, plays a recorded clip at real time over it, and takes the time from handing
the first overlapping speech to the socket until the last audio of the old answer was there, by this process's
clock. Turn detection has its default settings. Without a URL a service of its own is started. Prints one line
for people and one of JSON: a `Result`.

The clip begins with silence; its first sample of speech is the first above -40 dB of its peak.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.report import machine
from duplex.wav import read_wav
from tests.integration.stack import Options, Stack

RATE_HZ = 24_000
FRAME_MS = 20
FRAME_BYTES = 2 * RATE_HZ * FRAME_MS // 1000
CLIP = Path(__file__).parents[1] / "tests" / "data" / "speech" / "austen_0930.wav"
QUESTION = "Please count with me: one, two, three, four, five, six, seven, eight, nine, ten, eleven."
AHEAD_MS = 500
"""Of silence, before the user talks over the answer: the answer is well under way."""
PATIENCE_S = 15.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in milliseconds, over all rounds that were interrupted."""

    machine: str
    rounds: int
    not_interrupted: int
    p50_ms: float
    p99_ms: float
    detected_p50_ms: float
    """Until `input_audio_buffer.speech_started` was there."""
    settled_p50_ms: float
    """Until the old answer's `response.done` was there."""


class Round(msgspec.Struct):
    """When what happened, in seconds of this process's clock; 0: not."""

    spoke_s: float = 0.0
    last_delta_s: float = 0.0
    detected_s: float = 0.0
    done_s: float = 0.0
    cancelled: bool = False


class _Event(msgspec.Struct):
    """What is read of an event."""

    class Response(msgspec.Struct):
        """What is read of a response."""

        status: str = ""

    type: str
    response: Response | None = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


def overlapping_speech() -> bytes:
    """The clip from its first sample of speech on, PCM16."""
    pcm = np.frombuffer(read_wav(CLIP, RATE_HZ), "<i2")
    loud = np.abs(pcm.astype(np.int32)) > np.abs(pcm.astype(np.int32)).max() // 100
    return pcm[int(loud.argmax()) :].tobytes()


class Talker:
    """One client that talks over one answer. Lives as long as its connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._speaking = asyncio.Event()
        self.round = Round()

    async def run(self, speech: bytes) -> Round:
        """Ask, talk over the answer, and wait until that is over."""
        await self._send("conversation.item.create", item=_message(QUESTION))
        await self._send("response.create")
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            microphone = tasks.create_task(self._talk(speech))
            await self._listen()
            microphone.cancel()
        return self.round

    async def _talk(self, speech: bytes) -> None:
        """
        Send one frame every 20 ms: silence, the speech, silence. The clock sets the pace, not the pauses.
        """
        await self._speaking.wait()
        silence = bytes(FRAME_BYTES)
        quiet = AHEAD_MS // FRAME_MS
        start_s, number = time.perf_counter(), 0
        while True:
            at = (number - quiet) * FRAME_BYTES
            frame = speech[at : at + FRAME_BYTES] if at >= 0 else silence
            if number == quiet:
                self.round.spoke_s = time.perf_counter()
            await self._send("input_audio_buffer.append", audio=base64.b64encode(frame or silence).decode())
            number += 1
            await asyncio.sleep(start_s + number * FRAME_MS / 1000 - time.perf_counter())

    async def _listen(self) -> None:
        async for frame in self._socket:
            now_s, event = time.perf_counter(), _decode(frame)
            match event.type:
                case "response.output_audio.delta":
                    self._speaking.set()
                    self.round.last_delta_s = now_s
                case "input_audio_buffer.speech_started":
                    self.round.detected_s = self.round.detected_s or now_s
                case "response.done":
                    self.round.done_s = now_s
                    self.round.cancelled = event.response is not None and event.response.status == "cancelled"
                    return
                case "error":
                    raise RuntimeError(str(frame))

    async def _send(self, type_: str, **fields: object) -> None:
        await self._socket.send(_encode({"type": type_, **fields}).decode())


def _message(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def measure(url: str, model: str, rounds: int) -> Result:
    """Run all rounds, one after the other, each in a session of its own."""
    speech = overlapping_speech()
    found: list[Round] = []
    for _ in range(rounds):
        async with connect(f"{url}/v1/realtime?model={quote(model)}", compression=None) as socket:
            vad = {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
            await socket.send(_encode({"type": "session.update", "session": vad}).decode())
            found.append(await Talker(socket).run(speech))
    return _result(found)


def _result(found: list[Round]) -> Result:
    stopped = [each for each in found if each.cancelled]
    if not stopped:
        raise RuntimeError("no answer was interrupted")
    latencies = [1000 * (each.last_delta_s - each.spoke_s) for each in stopped]
    return Result(
        machine=machine(),
        rounds=len(found),
        not_interrupted=len(found) - len(stopped),
        p50_ms=float(np.percentile(latencies, 50)),
        p99_ms=float(np.percentile(latencies, 99)),
        detected_p50_ms=float(np.median([1000 * (each.detected_s - each.spoke_s) for each in stopped])),
        settled_p50_ms=float(np.median([1000 * (each.done_s - each.spoke_s) for each in stopped])),
    )


@asynccontextmanager
async def service(model: str) -> AsyncIterator[str]:
    """One gateway and one worker as processes; gives the address."""
    with TemporaryDirectory() as folder:
        async with Stack(Path(folder), Options(model=model), gateways=1, workers=1) as stack:
            yield stack.url()


async def run(url: str | None, model: str, rounds: int) -> Result:
    """Measure a running service, or one that is started for it."""
    if url is not None:
        return await measure(url, model, rounds)
    async with service(model) as own:
        return await measure(own, model, rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        "duplex bench barge_in", description="How fast a barge-in stops the audio."
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--server-url", help="scheme, host and port; without: a service of its own")
    parser.add_argument("--model", default="loopback")
    given = parser.parse_args()
    found = asyncio.run(run(given.server_url, given.model, given.rounds))
    print(
        f"barge-in, {found.rounds} rounds: last old audio after p50 {found.p50_ms:.0f} ms, "
        f"p99 {found.p99_ms:.0f} ms; speech told after {found.detected_p50_ms:.0f} ms; "
        f"{found.not_interrupted} not interrupted"
    )
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
