"""
Fixtures on a real vLLM engine with a tiny checkpoint that is made here: no download, one boot for most tests.

Where vLLM is not installed these tests are skipped; `make test-vllm` installs its CPU build and runs them.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_worker.causal_lm import CausalLmSettings
from gpu_worker.engine.engine import Engine

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

WINDOW_TOKENS = 512


def pytest_sessionfinish() -> None:
    """Lets go of vLLM's sockets, which it leaves to the garbage collector, while nobody is warned of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs vLLM where there is none, and lets vLLM's own warnings be."""
    missing = find_spec("vllm") is None
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if not missing:
            # Also what an engine leaves for the garbage collector, whenever that finds it.
            item.add_marker(pytest.mark.filterwarnings("default"))
        elif "settings" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed; make test-vllm"))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CausalLmSettings:
    """How the tests start the engine: the same numbers in every run, and ready as fast as it can be."""
    from tests.vllm.checkpoint import write_checkpoint  # noqa: PLC0415 - needs what vLLM brings along

    return CausalLmSettings(
        checkpoint=str(write_checkpoint(tmp_path_factory.mktemp("checkpoint"))),
        window_tokens=WINDOW_TOKENS,
        max_sessions=32,
        dtype="float32",
        kv_cache_bytes=64 << 20,
        prefix_caching=False,
        eager=True,
        temperature=0.0,
        answer_tokens=128,
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(settings: CausalLmSettings) -> AsyncIterator[Engine]:
    """The one engine of most tests, without prefix caching: all is computed from the tokens alone."""
    loaded = await Engine.start(settings)
    try:
        yield loaded
    finally:
        await loaded.aclose()
