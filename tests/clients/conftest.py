"""Fixtures of the client tests: one gateway and one worker as they are shipped, for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from _pytest.reports import TestReport
from _pytest.runner import CallInfo

from tests.clients.tls_front import TlsFront, tls_front
from tests.integration.stack import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks these tests as `integration`: they start processes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.integration)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: CallInfo[None]) -> Iterator[None]:
    """Add what the processes said to the report of a test that failed."""
    report: TestReport = yield  # type: ignore[assignment]
    service = getattr(item, "funcargs", {}).get("service")
    if report.failed and isinstance(service, Stack):
        report.sections.append(("processes", service.logs()))
    return report  # type: ignore[return-value]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The service with its defaults, but for how soon it notices that somebody is gone."""
    async with Stack(tmp_path_factory.mktemp("service"), gateways=1, workers=1) as running:
        yield running
        await running.settled()
        assert [] == running.complaints()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def front(service: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsFront]:
    """The same behind TLS."""
    async with tls_front(service.port(), tmp_path_factory.mktemp("tls")) as standing:
        yield standing
