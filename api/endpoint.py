"""The WebSocket endpoint: from an upgrade request to a connection that serves a session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qs

import msgspec
import structlog
from starlette.datastructures import Headers

from api.admission.auth import accepted_subprotocol, admit
from api.admission.ephemeral import Claims
from api.codec import client
from api.codec.command import to_command
from api.codec.context import CodecContext, default_config
from api.codec.patch import session_patch
from api.codec.server import error_text, resync_text
from api.codec.session import WireSession
from api.connection import Connection
from api.errors import CodecError, OpeningRefused, ResyncRequired, SocketClosed, TemporarilyRefused, Told
from api.gateway import Gateway
from api.opening import Joined, ResumeWish, open_session, resume_session
from api.socket import ClientSocket, Message, Receive, Send
from eventstore.errors import StoreUnavailable
from session_core.commands import UpdateSession
from session_core.config import Dialect, ModelProfile, SessionConfig, Way

_log = structlog.get_logger()

_BETA_PROTOCOL = "openai-beta.realtime-v1"
_TRUE = ("1", "true", "on")


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """What a client asked for by its URL and headers; `claims` are those of its ephemeral key."""

    way: Way
    dialect: Dialect
    model: str
    resume: ResumeWish | None
    claims: Claims | None

    @classmethod
    def of(cls, scope: Message, claims: Claims | None) -> UpgradeRequest:
        """Read a request; what makes no sense in a query counts as not said."""
        query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        duplex = (
            scope["path"].endswith("/duplex")
            or query.get("duplex", "").lower() in _TRUE
            or query.get("autostart") == "0"
            or query.get("resume") == "1"
        )
        headers = Headers(raw=scope["headers"])
        beta = headers.get("openai-beta") == "realtime=v1" or _BETA_PROTOCOL in scope["subprotocols"]
        return cls(
            way=Way.DUPLEX if duplex else Way.OPENAI,
            dialect=Dialect.BETA if beta and not duplex else Dialect.GA,
            model=query.get("model", ""),
            resume=_resume_wish(query),
            claims=claims,
        )


def _resume_wish(query: dict[str, str]) -> ResumeWish | None:
    if "session_id" not in query or "resume_token" not in query:
        return None
    seq = query.get("last_received_server_event_seq", "0")
    return ResumeWish(query["session_id"], query["resume_token"], int(seq) if seq.isdecimal() else 0)


def codec_context(gateway: Gateway, way: Way, dialect: Dialect, config: SessionConfig) -> CodecContext:
    """Give what the codec has to know of a client, as this gateway sees the fleet."""
    fleet = gateway.fleet

    def name_model(name: str, current: str) -> str:
        return fleet.name_model(name, current, way)

    def profile(model: str) -> ModelProfile | None:
        return fleet.models.get(model)

    return CodecContext(way, dialect, config, name_model, profile, gateway.settings)


class RealtimeEndpoint:
    """An ASGI application for WebSocket scopes; one per app."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one WebSocket, whatever comes of it."""
        socket = ClientSocket(receive, send)
        gateway = self._gateway
        admission = admit(
            Headers(raw=scope["headers"]),
            scope["subprotocols"],
            gateway.settings,
            gateway.client_secrets,
            gateway.store.now_ms() / 1000,
        )
        if admission.refusal is not None:
            gateway.stats.refused_upgrades += 1
            _log.info("upgrade.refused", status=int(admission.refusal), path=scope["path"])
            await socket.deny(admission.refusal)
            return
        await socket.accept(accepted_subprotocol(scope["subprotocols"]))
        gateway.stats.websockets += 1
        try:
            await _Arrival(gateway, socket, UpgradeRequest.of(scope, admission.claims)).serve()
        except SocketClosed:
            pass
        except Exception:  # noqa: BLE001 - the outer edge of a connection: it fails alone
            _log.exception("connection.failed")
            await _turn_away(
                socket, Told("internal_error", "The connection failed.", kind="server_error"), 1011
            )
        finally:
            gateway.stats.websockets -= 1


class _Arrival:
    """A socket before it has a session."""

    def __init__(self, gateway: Gateway, socket: ClientSocket, request: UpgradeRequest) -> None:
        self._gateway = gateway
        self._socket = socket
        self._request = request
        self._first: str | None = None
        """The message that opened the session, to be served in it."""
        self._errors = 0

    async def serve(self) -> None:
        """
        Open or resume, then serve.

        Raises:
            SocketClosed: the client went away.
        """
        try:
            await self._refresh()
            joined = await self._join()
        except ResyncRequired as error:
            await self._socket.send(resync_text(error.reason, self._event_id()))
            await self._socket.close(1008, error.reason)
        except Told as error:
            await _turn_away(self._socket, error, 1013 if isinstance(error, TemporarilyRefused) else 1008)
        else:
            context = self._context(joined.way, joined.dialect, joined.config)
            await Connection(self._gateway, self._socket, joined, context, self._first).serve()

    async def _refresh(self) -> None:
        try:
            await self._gateway.fleet.refresh()
        except StoreUnavailable as error:
            message = "The service is not available at the moment."
            raise TemporarilyRefused("resource_exhausted", message, kind="server_error") from error

    async def _join(self) -> Joined:
        request = self._request
        if request.resume is not None:
            return await resume_session(self._gateway, request.resume)
        if request.way is Way.OPENAI:
            return await self._open(self._default())
        try:
            async with asyncio.timeout(self._gateway.settings.handshake_timeout_s):
                wish = await self._first_message()
        except TimeoutError as error:
            raise OpeningRefused("config_timeout", "No session was asked for in time.") from error
        if isinstance(wish, ResumeWish):
            return await resume_session(self._gateway, wish)
        return await self._open(wish)

    async def _first_message(self) -> SessionConfig | ResumeWish:
        """Wait for a message that says what to do; what cannot be understood is refused, the wait goes on."""
        while True:
            text = await self._socket.receive()
            config = self._default()
            context = self._context(self._request.way, self._request.dialect, config)
            try:
                if text is None:
                    raise CodecError("bad_event", "Messages are JSON text; binary frames are not understood.")
                event = client.parse(text, context)
                if isinstance(event, client.SessionResume):
                    return ResumeWish(
                        event.session_id, event.resume_token, event.last_received_server_event_seq
                    )
                if isinstance(event, client.SessionEventAck):
                    continue
                if isinstance(event, client.SessionUpdate):
                    command = to_command(event, context)
                    assert isinstance(command, UpdateSession)
                    config = command.patch.onto(config)
                self._first = text
                return config
            except CodecError as error:
                await self._socket.send(error_text(error, self._event_id()))

    async def _open(self, config: SessionConfig) -> Joined:
        return await open_session(self._gateway, config, self._request.way, self._request.dialect)

    def _default(self) -> SessionConfig:
        """
        Give the settings to begin with: the way's, the model of the URL, and what the ephemeral key says.

        Raises:
            CodecError: what the key says cannot be had any more.
        """
        fleet, way, claims = self._gateway.fleet, self._request.way, self._request.claims
        model = self._request.model
        config = default_config(way, fleet.name_model(model, "", way) if model else fleet.unnamed_model())
        if claims is None:
            return config
        session = msgspec.json.decode(claims.session, type=WireSession)
        return session_patch(session, self._context(way, claims.dialect, config)).onto(config)

    def _context(self, way: Way, dialect: Dialect, config: SessionConfig) -> CodecContext:
        return codec_context(self._gateway, way, dialect, config)

    def _event_id(self) -> str:
        self._errors += 1
        return f"event_arrival_{self._errors}"


async def _turn_away(socket: ClientSocket, error: Told, code: int) -> None:
    try:
        await socket.send(error_text(error, "event_arrival_0"))
        await socket.close(code, error.code)
    except SocketClosed:
        return
