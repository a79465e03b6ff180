from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pybase64
import pytest
from websockets.asyncio.server import ServerConnection, serve

from duplex.client import Opening, SessionClient
from duplex.errors import ConnectionLost, SessionRefused
from duplex.messages import ServerEvent

Handler = Callable[[ServerConnection, int], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """A gateway that does what the test says; `handler` is told the number of the connection, from 1."""
    connections = 0

    async def counted(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await handler(socket, connections)

    async with serve(counted, "127.0.0.1", 0) as running:
        yield f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"


async def send(socket: ServerConnection, kind: str, **fields: object) -> None:
    """Send one server event."""
    await socket.send(json.dumps({"type": kind, **fields}))


async def receive(socket: ServerConnection) -> dict[str, str | int]:
    """Receive one client event."""
    event: dict[str, str | int] = json.loads(await socket.recv())
    return event


async def greet(socket: ServerConnection) -> None:
    """Open a session the duplex way."""
    assert "session.update" == (await receive(socket))["type"]
    await send(socket, "session.created", session={"id": "sess_1"}, resume_token="token-1")


async def collect(client: SessionClient) -> list[ServerEvent]:
    """All events until the session is over."""
    return [event async for event in client.events()]


async def test_a_session_is_opened_and_closed() -> None:
    """Events come in order until the last one, which ends the iteration."""

    async def handler(socket: ServerConnection, number: int) -> None:
        await greet(socket)
        await send(socket, "session.updated", server_event_seq=1)
        assert "session.close" == (await receive(socket))["type"]
        await send(socket, "session.closed", server_event_seq=2)

    async with server(handler) as url, SessionClient(Opening(urls=(url,))) as client:
        await client.close()
        events = await collect(client)

    assert "sess_1" == client.session_id
    assert ["session.created", "session.updated", "session.closed"] == [event.type for event in events]


async def test_a_refusal_carries_its_code() -> None:
    """An error instead of a session is raised with the server's code."""

    async def handler(socket: ServerConnection, number: int) -> None:
        await receive(socket)
        await send(socket, "error", error={"code": "resource_exhausted", "message": "full"})

    async with server(handler) as url:
        with pytest.raises(SessionRefused) as caught:
            async with SessionClient(Opening(urls=(url,))):
                pass

    assert "resource_exhausted" == caught.value.code


async def test_a_broken_connection_is_resumed_with_receipts() -> None:
    """After a break the session goes on: events once, input from the receipt on, the newest token shown."""
    resumes: list[dict[str, str | int]] = []
    again = asyncio.get_running_loop().create_future()

    async def handler(socket: ServerConnection, number: int) -> None:
        if number == 1:
            await greet(socket)
            await send(socket, "session.updated", server_event_seq=1)
            await receive(socket)
            socket.transport.abort()
            return
        resumes.append(await receive(socket))
        await send(
            socket,
            "session.resumed",
            session={"id": "sess_1"},
            resume_token=f"token-{number}",
            input_audio_received_bytes=2,
        )
        if number == 2:
            await receive(socket)
            socket.transport.abort()
            return
        again.set_result(pybase64.b64decode(str((await receive(socket))["audio"])))
        await send(socket, "session.updated", server_event_seq=1)
        await send(socket, "session.closed", server_event_seq=2)

    async with server(handler) as url, SessionClient(Opening(urls=(url,), retry_s=0)) as client:
        await client.append(b"abcdef")
        async with asyncio.timeout(20):
            events = await collect(client)

    assert [("token-1", 1), ("token-2", 1)] == [
        (resume["resume_token"], resume["last_received_server_event_seq"]) for resume in resumes
    ]
    assert b"cdef" == await again
    kinds = ["session.created", "session.updated", "session.resumed", "session.resumed", "session.closed"]
    assert kinds == [event.type for event in events]
    assert (2, 0) == (client.resumes, client.missed)


async def test_a_gateway_that_is_not_back_yet_is_tried_again() -> None:
    """A temporary refusal is no end; a final one is."""

    async def handler(socket: ServerConnection, number: int) -> None:
        if number == 1:
            await greet(socket)
            socket.transport.abort()
            return
        await receive(socket)
        code = "owner_moving" if number == 2 else "session_resume_expired"
        await send(socket, "error", error={"code": code, "message": "no"})

    async with server(handler) as url, SessionClient(Opening(urls=(url,), retry_s=0)) as client:
        with pytest.raises(SessionRefused) as caught:
            await collect(client)

    assert "session_resume_expired" == caught.value.code


async def test_nobody_answers() -> None:
    """Without a server there is no session."""
    async with server(lambda socket, number: asyncio.sleep(0)) as url:
        pass

    with pytest.raises(ConnectionLost):
        async with SessionClient(Opening(urls=(url,))):
            pass


async def test_openais_way_opens_with_the_servers_greeting() -> None:
    """The server speaks first, and turn detection is switched off: the client commits by itself."""
    paths: list[str] = []

    async def handler(socket: ServerConnection, number: int) -> None:
        assert socket.request is not None
        paths.append(socket.request.path)
        await send(socket, "session.created", session={"id": "sess_1"})
        update = await receive(socket)
        assert '"turn_detection": null' in json.dumps(update)
        await send(socket, "session.updated", server_event_seq=3)

    async with server(handler) as url, SessionClient(Opening(urls=(url,), way="openai")) as client:
        events = await collect(client)

    assert ["/v1/realtime?model=loopback"] == paths
    assert ["session.created", "session.updated"] == [event.type for event in events]
