"""
Fixtures of the conformance suite.

    pytest tests/conformance                                    a stack of our own, once a run
    pytest tests/conformance --server-url wss://host --server-key KEY --server-model NAME

Each test says with `covers` which events it is about; that it sent or saw them is checked in the end. Tests
that need a deployment of their own are skipped where a foreign server is named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.conformance.coverage import Coverage
from tests.conformance.recorder import Recorder, Server
from tests.integration.stack import Options, Stack, run_duplex

MODEL = "tests.conformance.performer:Performer"
SETTINGS: Mapping[str, str] = {
    "gateway.limits.disconnect_grace_ms": "5000",
    "worker.transcriber": "tests.conformance.performer:Transcriber",
    "worker.speech_model": "energy",
    "worker.capacity": "500",
}

_coverage = pytest.StashKey[Coverage]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the server under test is."""
    group = parser.getgroup("conformance")
    group.addoption("--server-url", help="scheme, host and port of the server; without: a stack of our own")
    group.addoption("--server-key", help="its API key")
    group.addoption("--server-model", default="loopback", help="the model to ask for")
    group.addoption("--server-openai-only", action="store_true", help="it knows no duplex way")
    group.addoption("--fuzz-seed", type=int, help="repeat a run of the random client")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the suite's markers."""
    config.addinivalue_line("markers", "conformance: talks to a live server over a real socket")
    config.addinivalue_line("markers", "covers(*events): the events that this test sends or must see")
    config.addinivalue_line("markers", "own_deployment: needs processes of its own; no foreign server")
    config.addinivalue_line("markers", "duplex_way: opens sessions the duplex way")
    config.stash[_coverage] = Coverage()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what the named server cannot be asked, and check the coverage last."""
    foreign = config.getoption("--server-url", default=None)
    openai_only = config.getoption("--server-openai-only", default=False)
    for item in items:
        if "tests/conformance" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.conformance)
        item.add_marker(pytest.mark.integration)
        if foreign and item.get_closest_marker("own_deployment"):
            item.add_marker(pytest.mark.skip(reason="NOT TESTED: needs a deployment of its own"))
        if openai_only and (item.get_closest_marker("duplex_way") or "[duplex" in item.name):
            item.add_marker(pytest.mark.skip(reason="NOT TESTED: needs the duplex way"))
    items.sort(key=lambda item: item.path.name == "test_vocabulary.py" and "conformance" in item.path.parts)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def own_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack | None]:
    """
    Our own two gateways and one worker, each a process; None where a foreign server is named.

    When the run is over nothing is held, every journal verifies, and nobody complained.
    """
    if request.config.getoption("--server-url", default=None):
        yield None
        return
    folder = tmp_path_factory.mktemp("stack")
    async with Stack(folder, Options(model=MODEL, settings=SETTINGS), gateways=2, workers=1) as stack:
        yield stack
        await stack.settled()
        code, output = await run_duplex("replay", "verify", "--all", "--redis", stack.store_url)
        assert 0 == code, output
        assert [] == stack.complaints()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, own_stack: Stack | None) -> Server:
    """The server under test."""
    option = request.config.getoption
    if own_stack is None:
        return Server(option("--server-url").rstrip("/"), option("--server-key"), option("--server-model"))
    return Server(own_stack.url(0), more_urls=[own_stack.url(1)], ours=True)


@pytest_asyncio.fixture(loop_scope="session")
async def recorder(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Recorder]]:
    """
    Makes recorders, for the server under test unless another is given. All are checked when the test is over.
    """
    made: list[Recorder] = []

    def make(server: Server | None = None) -> Recorder:
        made.append(Recorder(server or request.getfixturevalue("server")))
        return made[-1]

    yield make
    everybody = [each for first in made for each in first.family]
    async with AsyncExitStack() as stack:
        for each in everybody:
            stack.push_async_callback(each.close)
    _check(request, everybody)


@pytest.fixture
def client(recorder: Callable[..., Recorder]) -> Recorder:
    """One recorder, not connected."""
    return recorder()


def _check(request: pytest.FixtureRequest, made: list[Recorder]) -> None:
    """Every session is in order. What was sent and seen counts for the suite's coverage."""
    seen = {event["type"] for each in made for event in each.events}
    sent = {name for each in made for name in each.sent}
    coverage = request.config.stash[_coverage]
    coverage.see(request.node.function, sent | seen)
    if request.node.stash.get(_failed, False):
        return
    assert [] == [what for each in made for what in each.wrong()]


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Note that a test failed, and add what our processes said."""
    report: pytest.TestReport = yield  # type: ignore[assignment, misc]
    if not report.passed:
        item.stash[_failed] = True
    stack = getattr(item, "funcargs", {}).get("own_stack")
    if report.failed and isinstance(stack, Stack):
        report.sections.append(("processes", stack.logs()))
    return report  # type: ignore[return-value]


@pytest.fixture(scope="session")
def coverage(request: pytest.FixtureRequest) -> Coverage:
    """What was sent and seen in this run so far."""
    return request.config.stash[_coverage]
