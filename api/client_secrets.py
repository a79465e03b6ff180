"""Giving out ephemeral keys over HTTP: GA's `client_secrets`, and beta's `sessions`."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from fastapi import Request, Response
from msgspec import Meta, Struct

from api.admission.auth import admit
from api.admission.ephemeral import MAX_SESSION_BYTES, Claims
from api.codec.beta import BetaSession, flat_session
from api.codec.context import CodecContext, default_config
from api.codec.patch import session_patch
from api.codec.session import WireSession
from api.codec.values import invalid
from api.endpoint import codec_context
from api.errors import CodecError
from api.gateway import Gateway
from eventstore.errors import StoreUnavailable
from session_core import views, wire
from session_core.config import Dialect, ModelProfile, SessionConfig, Way
from session_core.state import Pinned, State

_GA_LIFE_S = 600
_BETA_LIFE_S = 60
_MAX_BODY_BYTES = 64 << 10


class _Life(Struct, frozen=True):
    seconds: Annotated[int, Meta(ge=10, le=7_200)] = _GA_LIFE_S
    anchor: Literal["created_at"] = "created_at"


class _Asked(Struct, frozen=True):
    """GA's body. Beta's body is the session object itself."""

    session: msgspec.Raw = msgspec.Raw(b'{"type":"realtime"}')
    expires_after: _Life | None = None


class _Given(Struct, frozen=True):
    """GA's answer."""

    value: str
    expires_at: int
    session: wire.SessionView


class _Secret(Struct, frozen=True):
    value: str
    expires_at: int


class _BetaGiven(BetaSession, frozen=True, kw_only=True):
    """Beta's answer: the session, and the key in it."""

    client_secret: _Secret


async def give_key(gateway: Gateway, request: Request, dialect: Dialect) -> Response:
    """Answer a request for an ephemeral key: only with an API key, and only for settings that can be had."""
    now_s = int(gateway.store.now_ms() / 1000)
    admission = admit(request.headers, (), gateway.settings, gateway.client_secrets, now_s)
    status = admission.refusal
    if status is None and admission.claims is not None:
        status = HTTPStatus.UNAUTHORIZED  # A key must not be able to live on by making others.
    if status is not None:
        return _error(CodecError("invalid_api_key", "A valid API key is needed."), status)
    try:
        await gateway.fleet.refresh()
        return _json(_give(gateway, await _body(request), dialect, now_s), HTTPStatus.OK)
    except StoreUnavailable:
        error = CodecError(
            "resource_exhausted", "The service is not available at the moment.", kind="server_error"
        )
        return _error(error, HTTPStatus.SERVICE_UNAVAILABLE)
    except CodecError as error:
        return _error(error, HTTPStatus.BAD_REQUEST)


async def _body(request: Request) -> bytes:
    """
    Read a small body.

    Raises:
        CodecError: it is not small.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise CodecError("invalid_value", "The request is too large.", param="session")
    return body


def _give(gateway: Gateway, body: bytes, dialect: Dialect, now_s: int) -> _Given | _BetaGiven:
    """
    Sign a key for the settings in `body`.

    Raises:
        CodecError: they are refused.
    """
    fleet = gateway.fleet
    base = default_config(Way.OPENAI, fleet.unnamed_model())
    context = codec_context(gateway, Way.OPENAI, dialect, base)
    session, life_s = _read(body or b"{}", dialect, context)
    config = session_patch(session[1], context).onto(base)
    expires_s = now_s + life_s
    key = gateway.client_secrets.sign(Claims(expires_s, dialect, session[0]))
    view = _view(config, fleet.models.get(config.model), gateway, now_s)
    if dialect is Dialect.GA:
        return _Given(key, expires_s, view)
    flat = msgspec.structs.asdict(flat_session(view))
    return _BetaGiven(**flat, client_secret=_Secret(key, expires_s))


def _read(
    body: bytes, dialect: Dialect, context: CodecContext
) -> tuple[tuple[msgspec.Raw, WireSession], int]:
    """Give the session object, as it is and decoded, and the life of the key in seconds."""
    try:
        asked = (
            msgspec.json.decode(body, type=_Asked)
            if dialect is Dialect.GA
            else _Asked(msgspec.Raw(body), _Life(_BETA_LIFE_S))
        )
        session = msgspec.json.decode(asked.session, type=WireSession)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid(context, "bad_event", "The body is no session request.", "session") from error
    if len(asked.session) > MAX_SESSION_BYTES:
        message = f"The session object of a key may take {MAX_SESSION_BYTES} bytes; update the session later."
        raise invalid(context, "event_too_large", message, "session")
    return (asked.session, session), (asked.expires_after or _Life()).seconds


def _view(
    config: SessionConfig, profile: ModelProfile | None, gateway: Gateway, now_s: int
) -> wire.SessionView:
    """The session as it would be. Its id is a stand-in: the real one is allotted when the session opens."""
    pinned = Pinned(
        session_id=f"sess_{secrets.token_urlsafe(12)}",
        opened_ms=now_s * 1000,
        profile=profile or ModelProfile(config.model),
        limits=gateway.settings.limits,
    )
    return views.session(State(pinned=pinned, config=config))


def _json(content: object, status: HTTPStatus) -> Response:
    return Response(msgspec.json.encode(content), int(status), media_type="application/json")


def _error(error: CodecError, status: HTTPStatus) -> Response:
    detail = wire.ErrorDetail(type=error.kind, code=error.code, message=error.message, param=error.param)
    return _json({"error": detail}, status)
