"""The small parts of the process tree."""

from __future__ import annotations

import asyncio
import socket

import pytest

from duplex.background import STEADY_S, Backoff, background
from duplex.guard import guarded
from duplex.health import http_status
from duplex.ports import free_port, is_free


def test_pauses_double_up_to_the_longest() -> None:
    """A crash loop slows down; a process that ran steadily starts over with the shortest pause."""
    backoff = Backoff(0.5, 3.0)

    assert [0.5, 1.0, 2.0, 3.0, 3.0] == [backoff.next_s(0) for _ in range(5)]
    assert 0.5 == backoff.next_s(STEADY_S)


async def test_background_work_ends_with_its_context() -> None:
    """It is cancelled and awaited, and an exception of the context comes out as it is."""
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def context() -> None:
        async with background(work(), "work"):
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await context()

    assert ended.is_set()


async def test_a_guard_that_is_dismissed_harms_nobody() -> None:
    """When the context ends in good order the guarded process lives on."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    async with guarded(process.pid):
        pass

    assert process.returncode is None
    process.kill()
    await process.wait()


async def test_a_status_is_read() -> None:
    """The number of the first line; None where nobody answers or no HTTP comes back."""
    answers = [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"hello\r\n"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/health"
        assert 503 == await http_status(url)
        assert None is await http_status(url)

    assert None is await http_status(f"http://127.0.0.1:{free_port()}/")


def test_a_port_in_use_is_not_free() -> None:
    """Listening on a port takes it."""
    port = free_port()
    assert is_free(port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert not is_free(port)
