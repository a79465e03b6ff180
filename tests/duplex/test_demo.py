from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from duplex.wav import correlation, read_wav
from eventstore import open_store
from replay_tools.reader import read_steps
from session_core.changes import AudioReceived
from tests.duplex.test_process_tree import PATIENCE_S, ROOT, named, service

pytestmark = pytest.mark.integration


async def duplex(*arguments: str, cwd: Path = ROOT) -> tuple[int | None, str]:
    """Run a command to its end; gives exit code and output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duplex", *arguments),
        cwd=cwd,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_the_demo_runs_from_any_folder(tmp_path: Path) -> None:
    """It starts everything, hears its own words back, verifies the journal, and stops everything."""
    code, output = await duplex("demo", cwd=tmp_path)

    assert 0 == code
    assert "verified, replay equals the live run: " in output
    assert output.endswith("all stopped\n")
    assert (tmp_path / "out" / "demo-reply.wav").exists()


@pytest.mark.parametrize("way", ["--duplex", "--openai"])
async def test_talk_brings_the_reply_home(tmp_path: Path, speech_dir: Path, way: str) -> None:
    """Either way of opening gives the user's own words as a WAV, and a result for machines."""
    clip, reply = speech_dir / "cards_001.wav", tmp_path / "reply.wav"
    async with service(tmp_path) as running:
        url = running.url.replace("http", "ws", 1)
        code, output = await duplex("talk", str(clip), "--out", str(reply), "--url", url, "--json", way)

    result = json.loads(output)
    assert 0 == code
    assert result["played_ms"] == result["reply_ms"]
    assert 0.9 < correlation(read_wav(reply, 24_000), read_wav(clip, 24_000))


async def test_talk_survives_a_killed_gateway(tmp_path: Path, speech_dir: Path) -> None:
    """The session goes on in the gateway's successor: no event is missed, no input is lost or doubled."""
    clip, reply = speech_dir / "austen_0880.wav", tmp_path / "reply.wav"
    async with service(tmp_path) as running:
        url = running.url.replace("http", "ws", 1)
        talking = asyncio.create_task(
            duplex("talk", str(clip), "--out", str(reply), "--url", url, "--json", "--patience", "30")
        )
        await until_heard(running.store_url, 96_000)
        os.kill(named(running.process.pid, "duplex gateway"), signal.SIGKILL)
        code, output = await talking
        result = json.loads(output)
        heard = await journaled_input(running.store_url, result["session_id"])

    assert 0 == code
    assert (1, 0) == (result["resumes"], result["missed_events"])
    sound = read_wav(clip, 24_000)
    # The outage itself is silence to the model, so what it answers may be cut in two. What came in may not.
    assert sound == heard[: len(sound)]
    assert set(heard[len(sound) :]) <= {0}


async def until_heard(store_url: str, size_bytes: int) -> None:
    """Wait until the store's one session has taken so much input."""
    async with open_store(store_url) as store, asyncio.timeout(PATIENCE_S):
        while not (sessions := await store.sessions()):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.05)
        async with aclosing(read_steps(store, sessions[0], live=True)) as steps:
            async for step in steps:
                if step.after.state.input.received_bytes >= size_bytes:
                    return


async def journaled_input(store_url: str, session_id: str) -> bytes:
    """The user's audio as the session took it."""
    heard = bytearray()
    async with open_store(store_url) as store:
        async for step in read_steps(store, session_id):
            heard += b"".join(c.audio for c in step.reduction.changes if isinstance(c, AudioReceived))
    return bytes(heard)
