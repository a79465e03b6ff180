"""
Runs a driver: a real client in an environment of its own, which holds the conversation of drivers/talk.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from duplex.wav import read_wav

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-clients"
DRIVERS = Path(__file__).parent / "drivers"
SPEECH = ROOT / "tests" / "data" / "speech"
CLIPS = ("austen_0880.wav", "austen_0930.wav", "cards_001.wav")
"""What the user says, in order; the answer to the second is talked over with the third."""
PATIENCE_S = 100.0
RATE_HZ = 24_000
SILENT: dict[str, str] = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    # Whatever a client tries to reach beside the service under test is not there.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


class Family(NamedTuple):
    """
    One client, and how to run it.

    Attributes:
        environment: its folder under .venv-clients.
        driver: its module or script under drivers/.
        scheme: of the address that it wants.
        flags: of the driver.
    """

    environment: str
    driver: str
    scheme: str
    flags: tuple[str, ...] = ()

    @property
    def is_node(self) -> bool:
        """Whether it runs in Node."""
        return self.driver.endswith(".mjs")


class Answer(msgspec.Struct):
    """One answer as the client gave it."""

    transcript: str
    status: str
    audio: bytes = b""


class Report(msgspec.Struct):
    """
    What the client saw.

    Attributes:
        version: the client's own.
        seen: how often it gave what, by name.
        errors: in its words.
        log: what it said beside the report.
    """

    version: str
    answers: list[Answer]
    seen: dict[str, int]
    errors: list[str]
    log: str = ""


def said(number: int, rate_hz: int = RATE_HZ) -> bytes:
    """What the user says, as PCM16."""
    return read_wav(SPEECH / CLIPS[number], rate_hz)


def require(family: Family) -> None:
    """Skip the test where the client is not installed."""
    if not (ENVIRONMENTS / family.environment / ".stamp").exists():
        pytest.skip(f"{family.environment} is not installed: scripts/setup-clients {family.environment}")


async def converse(
    family: Family, url: str, folder: Path, *options: str, rate_hz: int = RATE_HZ, **environment: str
) -> Report:
    """
    Let a client hold the conversation; gives its report.

    Args:
        family: the client.
        url: of the gateway, without a path.
        folder: empty, for audio.
        options: `--explicit`, or none.
        rate_hz: of what the user says, for clients that do not say 24 kHz.
        environment: variables beside the usual ones.
    """
    for number in range(len(CLIPS)):
        (folder / f"said-{number}.pcm").write_bytes(said(number, rate_hz))
    command = [*_program(family), url, str(folder), "--rate-hz", str(rate_hz), *family.flags, *options]
    output, log, code = await _run(command, environment)
    lines = output.strip().splitlines()
    assert lines, f"{family.driver} ended with {code} and no report\n{log[-6000:]}"
    report = msgspec.json.decode(lines[-1], type=Report)
    report.log = log
    for number, answer in enumerate(report.answers):
        answer.audio = (folder / f"heard-{number}.pcm").read_bytes()
    return report


def _program(family: Family) -> list[str]:
    if family.is_node:
        return [shutil.which("node") or "node", str(DRIVERS / family.driver)]
    python = ENVIRONMENTS / family.environment / "bin" / "python"
    return [str(python), "-m", f"tests.clients.drivers.{family.driver}"]


async def _run(command: list[str], environment: dict[str, str]) -> tuple[str, str, int | None]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **SILENT, "NODE_FOLDER": str(ENVIRONMENTS / "node"), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(), log.decode(errors="replace"), process.returncode
