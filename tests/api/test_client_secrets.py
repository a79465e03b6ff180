"""Ephemeral keys: given out over HTTP, good on any gateway with the same secret, for their settings."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from openai.types.realtime import ClientSecretCreateResponse
from pydantic import TypeAdapter
from websockets.exceptions import InvalidStatus

from api.admission.ephemeral import MAX_SESSION_BYTES, Claims, ClientSecrets
from session_core.config import Dialect
from tests.api.conftest import World, fast

_SECRETS = "/v1/realtime/client_secrets"
_SESSIONS = "/v1/realtime/sessions"
_KEYS = fast(api_keys=("key",), client_secret_key="shared")


async def post(port: int, path: str, body: Any, key: str = "key", origin: str = "") -> tuple[int, Any]:
    """One request; its status and decoded body."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    if origin:
        head += f"Origin: {origin}\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    said, _, content = answer.partition(b"\r\n\r\n")
    return int(said.split()[1]), msgspec.json.decode(content)


async def test_key_opens_on_another_gateway(world: World) -> None:
    """A key from one gateway opens a session on another, by subprotocol, with its own settings."""
    await world.worker()
    site, other = await world.site(_KEYS), await world.site(_KEYS)
    session = {"type": "realtime", "model": "gpt-realtime", "instructions": "be kind", "tools": []}
    status, given = await post(site.port, _SECRETS, {"session": session})
    assert (200, "ek_") == (status, given["value"][:3])
    TypeAdapter(ClientSecretCreateResponse).validate_python(given, strict=True)
    assert ("loopback", "be kind") == (given["session"]["model"], given["session"]["instructions"])
    client = await other.client(subprotocols=["realtime", f"openai-insecure-api-key.{given['value']}"])
    created = await client.next()
    assert ("session.created", "be kind") == (created["type"], created["session"]["instructions"])


async def test_beta_session_key(world: World) -> None:
    """Beta's request is the flat session, its answer the same with a key inside; the key lives a minute."""
    await world.worker()
    site = await world.site(_KEYS)
    status, given = await post(site.port, _SESSIONS, {"voice": "ash", "turn_detection": None})
    assert (200, "ash", ["audio", "text"]) == (status, given["voice"], given["modalities"])
    secret = given["client_secret"]
    assert 59 <= secret["expires_at"] - site.gateway.store.now_ms() / 1000 <= 60
    headers = {"Authorization": f"Bearer {secret['value']}", "OpenAI-Beta": "realtime=v1"}
    client = await site.client(additional_headers=headers)
    assert "ash" == (await client.next())["session"]["voice"]


async def test_empty_request_gives_a_key(world: World) -> None:
    """A key for the defaults needs no body; its life can be chosen."""
    await world.worker()
    site = await world.site(_KEYS)
    assert 200 == (await post(site.port, _SECRETS, b""))[0]
    assert 200 == (await post(site.port, _SESSIONS, b""))[0]
    status, given = await post(site.port, _SECRETS, {"expires_after": {"seconds": 10}})
    assert 200 == status
    assert 9 <= given["expires_at"] - site.gateway.store.now_ms() / 1000 <= 10


async def test_largest_session_fits_into_a_header(world: World) -> None:
    """The largest session object that a key may hold still opens, as a subprotocol."""
    await world.worker()
    site = await world.site(_KEYS)
    frame = len(b'{"type":"realtime","instructions":""}')
    session = {"type": "realtime", "instructions": "x" * (MAX_SESSION_BYTES - frame)}
    status, given = await post(site.port, _SECRETS, {"session": session})
    assert 200 == status
    client = await site.client(subprotocols=["realtime", f"openai-insecure-api-key.{given['value']}"])
    assert session["instructions"] == (await client.next())["session"]["instructions"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (_SECRETS, b"{", "session"),
        (_SECRETS, {"expires_after": {"seconds": 9}}, "session"),
        (_SECRETS, {"session": {}}, "session.type"),
        (_SECRETS, {"session": {"type": "transcription"}}, "session.type"),
        (_SECRETS, {"session": {"type": "realtime", "voice": "v"}}, "session.voice"),
        (_SECRETS, {"session": {"type": "realtime", "instructions": "x" * 5_000}}, "session"),
        (_SECRETS, b" " * 70_000, "session"),
        (_SESSIONS, {"audio": {}}, "session.audio"),
        (_SESSIONS, [], "session"),
    ],
    ids=str,
)
async def test_settings_are_checked_first(world: World, path: str, body: Any, param: str) -> None:
    """Settings that an opening would refuse give no key, and the parameter is named."""
    await world.worker()
    site = await world.site(_KEYS)
    status, answer = await post(site.port, path, body)
    assert (400, param) == (status, answer["error"]["param"])


async def test_only_an_api_key_gives_keys(world: World) -> None:
    """Neither a wrong key nor an ephemeral one gives another; a foreign origin does not either."""
    await world.worker()
    site = await world.site(msgspec.structs.replace(_KEYS, allowed_origins=("https://good.example",)))
    given = (await post(site.port, _SECRETS, b""))[1]
    assert 401 == (await post(site.port, _SECRETS, b"", key="wrong"))[0]
    assert 401 == (await post(site.port, _SECRETS, b"", key=given["value"]))[0]
    assert 403 == (await post(site.port, _SECRETS, b"", origin="https://evil.example"))[0]


async def test_foreign_key_is_refused(world: World) -> None:
    """A key signed with another secret does not open."""
    site = await world.site(_KEYS)
    claims = Claims(2**40, Dialect.GA, msgspec.Raw(b'{"type":"realtime"}'))
    forged = ClientSecrets("another").sign(claims)
    with pytest.raises(InvalidStatus) as caught:
        await site.client(additional_headers={"Authorization": f"Bearer {forged}"})
    assert 401 == caught.value.response.status_code


def test_keys_expire_and_hold_no_surprises() -> None:
    """A key is good until its time, only as it was signed, and only where the secret is known."""
    keys = ClientSecrets("secret")
    key = keys.sign(Claims(100, Dialect.BETA, msgspec.Raw(b"{}")))
    claims = keys.read(key, 99)
    assert claims is not None
    assert (100, Dialect.BETA, b"{}") == (claims.expires_s, claims.dialect, bytes(claims.session))
    assert keys.read(key, 100) is None
    assert keys.read(key[:-1] + ("A" if key[-1] != "A" else "B"), 99) is None
    assert ClientSecrets("").read(key, 99) is None
    other_version = Claims("soon", Dialect.GA, msgspec.Raw(b"{}"))  # type: ignore[arg-type]
    assert keys.read(keys.sign(other_version), 0) is None
    for nonsense in ("", "ek_", "ek_%", "ek_a", "key", "ek_\u00e9"):
        assert keys.read(nonsense, 0) is None
