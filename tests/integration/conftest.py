"""Fixtures of the integration tests: one stack a module, checked when its tests are over."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio

from tests.integration.stack import DEFAULT, Options, Stack, run_duplex

OMNI = "vllm-omni==0.30.0"
OMNI_WHEEL = "vllm_omni-0.30.0-py3-none-any.whl"
OMNI_SHA256 = "141cb0c7b9c07970e5c92a99aab9696e81682dbfa3d2bfcde359c3c1533385f4"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the processes said to the report of a test that failed."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(stack, Stack):
        report.sections.append(("processes", stack.logs()))
    return report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """
    Two gateways and two workers, with the options of the module's `STACK`, if it has one.

    When the module's tests are over nothing is held, every journal verifies, and nobody complained.
    """
    options: Options = getattr(request.module, "STACK", DEFAULT)
    async with Stack(tmp_path_factory.mktemp("stack"), options) as running:
        yield running
        await running.settled()
        code, output = await run_duplex("replay", "verify", "--all", "--redis", running.store_url)
        assert 0 == code, output
        assert [] == running.complaints()


@pytest.fixture(scope="session")
def omni_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """vLLM-Omni's own duplex client, out of its wheel; the rest of that package is not installed."""
    folder = tmp_path_factory.mktemp("vllm_omni")
    with zipfile.ZipFile(_omni_wheel()) as wheel:
        for name in wheel.namelist():
            if name.startswith("vllm_omni/clients/"):
                wheel.extract(name, folder)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("vllm_omni.clients.duplex")
    finally:
        sys.path.remove(str(folder))


def _omni_wheel() -> Path:
    """The wheel, from the user's cache; fetched once, and again if it is damaged."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duplex-sessions" / "clients"
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / OMNI_WHEEL
    with _locked(cache / ".lock"):
        if not wheel.exists() or OMNI_SHA256 != _sha256(wheel):
            options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(cache)]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, OMNI], check=True)
    assert OMNI_SHA256 == _sha256(wheel)
    return wheel


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
