"""OpenAI's own client against a gateway, and OpenAI's own types as the judge of every event it receives."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.api.conftest import Client, World, fast

_STRICT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


async def test_sdk_turn(world: World) -> None:
    """The SDK opens, updates, sends audio, asks and hears the answer, unchanged."""
    worker, site = await world.worker(), await world.site()
    sdk = AsyncOpenAI(api_key="any", base_url=f"http://127.0.0.1:{site.port}/v1")
    heard = b""
    async with asyncio.timeout(10), sdk.realtime.connect(model="gpt-realtime") as connection:
        created = await connection.recv()
        assert "session.created" == created.type
        session: Any = created.session  # Ours says its id beside OpenAI's fields.
        session_id = session.id
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(9_600)).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        await worker.speak(session_id, 2, b"\x05\x06" * 1_920)
        async for event in connection:
            if event.type == "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
            if event.type == "response.done":
                break
    await sdk.close()
    assert b"\x05\x06" * 3_840 == heard


async def test_sdk_gets_an_ephemeral_key(world: World) -> None:
    """The SDK asks for a key for a browser, and with that alone a session opens as it was wished."""
    await world.worker()
    site = await world.site(fast(api_keys=("key",)))
    base_url = f"http://127.0.0.1:{site.port}/v1"
    async with AsyncOpenAI(api_key="key", base_url=base_url) as sdk:
        given = await sdk.realtime.client_secrets.create(
            session={"type": "realtime", "instructions": "be kind"}
        )
    async with (
        asyncio.timeout(10),
        AsyncOpenAI(api_key=given.value, base_url=base_url) as browser,
        browser.realtime.connect(model="gpt-realtime") as connection,
    ):
        created: Any = await connection.recv()
        assert ("session.created", "be kind") == (created.type, created.session.instructions)


async def test_every_event_is_openai_s(world: World) -> None:
    """What a session opened OpenAI's way receives parses strictly as OpenAI's types, errors included."""
    worker, site = await world.worker(), await world.site()
    client = await site.client("/v1/realtime?model=x")
    events = [await client.next()]
    session_id = events[0]["session"]["id"]
    await client.send("session.update", session={"type": "realtime", "instructions": "hi"})
    await client.raw("{")
    await client.send("nonsense")
    await client.send("response.cancel", event_id="c")
    await client.append(bytes(9_600))
    await client.send("input_audio_buffer.commit")
    await client.send("conversation.item.create", item=_message("user", "input_text"))
    await client.send("response.create", response={"metadata": {"k": "v"}})
    await worker.speak(session_id, 2)
    events += await client.until("rate_limits.updated")
    await client.send("response.create")
    state = await worker.state(
        session_id, lambda state: state.response is not None and state.clock.next_unit == 2
    )
    await worker.write(session_id, state, *worker.units(state, [bytes(3_840)], end=False))
    events += await client.until("response.output_audio.delta")
    await client.send("response.cancel")
    events += await _rest(client)
    kinds = {event["type"] for event in events}
    assert {"error", "response.done", "session.updated", "input_audio_buffer.cleared"} <= kinds
    for event in events:
        _STRICT.validate_python(event, strict=True)


def _message(role: str, kind: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": "hello"}]}


async def _rest(client: Client) -> list[dict[str, Any]]:
    await client.send("input_audio_buffer.clear")
    return await client.until("input_audio_buffer.cleared")
