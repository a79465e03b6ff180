"""
Other people's clients hold a spoken conversation with the service, and talk over one of its answers.

Each client runs twice against the service as it comes: as it comes itself, and with everything set that an
application would set.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from duplex.wav import correlation
from session_core.state import EndReason, Phase
from tests.clients.client import RATE_HZ, Family, Report, converse, require, said
from tests.clients.tls_front import TlsFront
from tests.integration.caller import Event
from tests.integration.record import record
from tests.integration.relay import Relay
from tests.integration.stack import Stack, run_duplex, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ECHO = re.compile(r"\[echo of (\d+\.\d) s of speech\]")
SDK = Family("openai", "openai_sdk", "http")
SDK_BETA = Family("openai", "openai_beta", "ws")
NPM = Family("node", "openai_npm.mjs", "https")
NPM_BETA = Family("node", "openai_npm.mjs", "https", ("--beta",))
AGENTS = Family("agents", "agents_runner", "ws")
PIPECAT = Family("pipecat", "pipecat_service", "ws")
LIVEKIT = Family("livekit", "livekit_session", "http")
OMNI = Family("omni", "omni", "ws")
STOCK = [SDK, SDK_BETA, NPM, NPM_BETA, AGENTS, PIPECAT, LIVEKIT]
EXPECTED_REFUSALS = {LIVEKIT: ["response_cancel_not_active"]}
"""
By client. LiveKit's cancels what the service has already cancelled, and passes over the answer.
"""
AS_CLOSED = (EndReason.CLOSED, EndReason.GRACE)
"""Clients made for OpenAI's service have no word for the end: a clean close ends the session, a lost
connection runs out its grace. Which it is depends on how the client shuts down."""
WAYS = [pytest.param((), id="as it comes"), pytest.param(("--explicit",), id="explicit")]


def name(family: Family) -> str:
    """Name a family in a test's id."""
    return family.driver + "".join(family.flags)


def check_report(report: Report) -> None:
    """The client heard both utterances that it let be answered, and a part of the one that it talked over."""
    assert [] == report.errors, report.log[-4000:]
    whole, cut, last = report.answers
    assert ["completed", "cancelled", "completed"] == [answer.status for answer in report.answers]
    for number, answer in enumerate(report.answers):
        assert correlation(answer.audio, said(number)) > 0.9, f"answer {number} is something else"
    for answer in (whole, last):
        assert length_s(answer.audio) == pytest.approx(announced_s(answer.transcript), abs=0.1)
    assert length_s(cut.audio) < announced_s(cut.transcript) - 0.5


def announced_s(transcript: str) -> float:
    """Read how long an answer was going to be."""
    found = ECHO.fullmatch(transcript.strip())
    assert found, transcript
    return float(found[1])


def length_s(pcm: bytes) -> float:
    """Tell how long PCM16 plays."""
    return len(pcm) / (2 * RATE_HZ)


async def new_session(service: Stack, known: Sequence[str]) -> str:
    """Find the one session that was opened since."""
    [session_id] = set(await service.store.sessions()) - set(known)
    return session_id


async def check_journal(
    service: Stack, session_id: str, reasons: Collection[EndReason], refused: Sequence[str] = ()
) -> None:
    """The session ended as it should, and the service saw the conversation as the client did."""
    found = await ended_journal(service, session_id, reasons, refused)
    done = [event["response"] for event in found if event["type"] == "response.done"]
    assert ["completed", "cancelled", "completed"] == [response["status"] for response in done]
    assert "turn_detected" == done[1]["status_details"]["reason"]


async def ended_journal(
    service: Stack, session_id: str, reasons: Collection[EndReason], refused: Sequence[str] = ()
) -> list[Event]:
    """
    Wait for a session's end; gives the events that its client was sent.

    It ended for one of the reasons given, its journal verifies, and nothing was refused but what `refused`
    names.
    """
    state = await service.state_when(session_id, lambda state: state.phase is Phase.ENDED)
    assert state.end_reason in reasons
    code, output = await run_duplex("replay", "verify", session_id, "--redis", service.store_url)
    assert 0 == code, output
    events = (await record(service.store, session_id)).outbound
    assert set(refused) >= {event["error"]["code"] for event in events if event["type"] == "error"}
    return events


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("family", STOCK, ids=name)
async def test_a_stock_client(
    service: Stack, front: TlsFront, tmp_path: Path, family: Family, options: Sequence[str]
) -> None:
    """A client made for OpenAI's service holds the conversation with this one."""
    require(family)
    known = await service.store.sessions()
    url = front.url if family.scheme == "https" else service.url(0, family.scheme)
    report = await converse(family, url, tmp_path, *options, CA_FILE=str(front.certificate))
    check_report(report)
    refused = EXPECTED_REFUSALS.get(family, ())
    await check_journal(service, await new_session(service, known), AS_CLOSED, refused)


@pytest.mark.parametrize(
    ("options", "rate_hz"),
    [pytest.param((), 16_000, id="as it comes"), pytest.param(("--explicit",), RATE_HZ, id="explicit")],
)
async def test_the_duplex_client(
    service: Stack, tmp_path: Path, options: Sequence[str], rate_hz: int
) -> None:
    """vLLM-Omni's client holds it too, and closes the session itself."""
    require(OMNI)
    known = await service.store.sessions()
    report = await converse(OMNI, service.url(), tmp_path, *options, rate_hz=rate_hz)
    check_report(report)
    await check_journal(service, await new_session(service, known), (EndReason.CLOSED,))


@pytest.mark.parametrize("family", [AGENTS, PIPECAT, LIVEKIT], ids=name)
async def test_a_function(service: Stack, tmp_path: Path, family: Family) -> None:
    """The model calls a function of the application, which the framework runs, and tells what came out."""
    require(family)
    known = await service.store.sessions()
    report = await converse(family, service.url(0, family.scheme), tmp_path, "--tool")
    assert [] == report.errors, report.log[-4000:]
    assert "[echo of add: 5]" == report.answers[-1].transcript.strip()
    assert report.answers[-1].audio
    found = await ended_journal(service, await new_session(service, known), AS_CLOSED)
    [called] = [event for event in found if event["type"] == "response.function_call_arguments.done"]
    assert ("add", {"a": 2, "b": 3}) == (called["name"], msgspec.json.decode(called["arguments"]))


@pytest.mark.parametrize(
    ("family", "reasons", "resumed"),
    [
        pytest.param(SDK, AS_CLOSED, {"session.created": 2}, id="openai"),
        pytest.param(OMNI, (EndReason.CLOSED,), {"connection.resumed": 1}, id="omni"),
    ],
)
async def test_a_cut_connection(
    service: Stack, tmp_path: Path, family: Family, reasons: Collection[EndReason], resumed: Mapping[str, int]
) -> None:
    """
    The network breaks in mid-answer: the client resumes with the means that it has, and the answer is whole.
    """
    require(family)
    known = await service.store.sessions()
    async with Relay(service.port()) as relay:
        url = f"{family.scheme}://127.0.0.1:{relay.port}"
        async with asyncio.TaskGroup() as tasks:
            talking = tasks.create_task(converse(family, url, tmp_path, "--explicit"))
            await until(partial(is_open, service, known))
            session_id = await new_session(service, known)
            await service.state_when(session_id, lambda state: state.playback.sent_ms > 500)
            relay.cut()
        assert 2 == relay.connections

    report = talking.result()
    check_report(report)
    assert resumed.items() <= report.seen.items()
    await check_journal(service, session_id, reasons)
    assert 2 == (await service.state(session_id)).attachment.generation


async def is_open(service: Stack, known: Sequence[str]) -> bool:
    """Tell whether a session was opened since."""
    return set(await service.store.sessions()) > set(known)
