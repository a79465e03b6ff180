"""The ASGI application: the WebSocket endpoint under both of its paths, and what operators ask over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.routing import WebSocketRoute

from api.client_secrets import give_key
from api.endpoint import RealtimeEndpoint
from api.gateway import Gateway
from api.metrics import CONTENT_TYPE, exposition
from api.settings import GatewaySettings
from eventstore.store import EventStore
from session_core.config import Dialect


def create_app(store: EventStore, settings: GatewaySettings | None = None) -> FastAPI:
    """
    Make the application of one gateway. Its lifespan is the gateway's; the store is open all the while.

    After this `app.state.gateway` holds the `Gateway`.
    """
    settings = settings or GatewaySettings()
    gateway = Gateway(store, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(title="duplex", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.gateway = gateway
    endpoint = RealtimeEndpoint(gateway)
    for path in ("/v1/realtime", "/v1/duplex"):
        app.router.routes.append(WebSocketRoute(path, endpoint))

    _add_operator_routes(app, gateway)
    _add_key_routes(app, gateway)
    return app


def _add_operator_routes(app: FastAPI, gateway: Gateway) -> None:
    """Health, readiness, models and metrics: for operators and their machines, without a key."""

    @app.get("/health")
    async def health() -> Response:
        silence_s = gateway.store.last_contact_s()
        healthy = silence_s < gateway.settings.store_silence_s
        status = "ok" if healthy else "store unreachable"
        stats: dict[str, int] = msgspec.to_builtins(gateway.stats)
        return _json(_Health(status, gateway.gateway_id, silence_s, stats), 200 if healthy else 503)

    @app.get("/ready")
    async def ready() -> Response:
        is_ready = await gateway.ready()
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/v1/models")
    async def models() -> Response:
        await gateway.ready()
        listed = [
            {"id": name, "object": "model", "owned_by": "duplex"} for name in sorted(gateway.fleet.models)
        ]
        return _json({"object": "list", "data": listed})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition(gateway), media_type=CONTENT_TYPE)


def _add_key_routes(app: FastAPI, gateway: Gateway) -> None:
    """Ephemeral keys, in both dialects."""

    @app.post("/v1/realtime/client_secrets")
    async def client_secrets(request: Request) -> Response:
        return await give_key(gateway, request, Dialect.GA)

    @app.post("/v1/realtime/sessions")
    async def sessions(request: Request) -> Response:
        return await give_key(gateway, request, Dialect.BETA)


class _Health(msgspec.Struct):
    status: str
    gateway: str
    last_contact_s: float
    stats: dict[str, int]


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
