"""
What can go wrong in a gateway, by who is at fault.

GatewayError
├── Told                    what the client is told in an `error` event
│   ├── CodecError          the client: a message that names no command; the socket lives
│   ├── OpeningRefused      the client or the deployment: no session comes of this connection
│   ├── ResumeFailed        the client or the journal: this connection cannot continue this session
│   └── TemporarilyRefused  infrastructure: the same request may succeed in a moment
├── FrameTooLarge           us: an event that no client could take
├── ResyncRequired          infrastructure: the journal no longer holds what this client has to be sent
└── SocketClosed            the client: it is gone

No text that a client is told comes from another exception's `str`.
"""

from __future__ import annotations


class GatewayError(Exception):
    """Base of what this package raises."""


class Told(GatewayError):
    """
    Something that the client is told in an `error` event.

    Attributes:
        code: of the way of opening (OpenAI's or vLLM-Omni's vocabulary).
        message: for humans.
        param: the offending parameter, if one is.
        event_id: the client's own id of its event, if it could be read.
        kind: OpenAI's class of the error.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(code, message, param)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class CodecError(Told):
    """A client's message that is refused before the journal."""


class OpeningRefused(Told):
    """No session can be opened."""


class ResumeFailed(Told):
    """The session cannot be resumed here, now or ever; `code` tells which."""


class TemporarilyRefused(Told):
    """Trying again may help: the code is none of those on which clients give up."""


class FrameTooLarge(GatewayError):
    """
    An event is larger than the largest frame that clients take: a plugin's units are too long.

    Attributes:
        event: the name of its class.
        size_bytes: of its frame.
    """

    def __init__(self, event: str, size_bytes: int) -> None:
        super().__init__(event, size_bytes)
        self.event = event
        self.size_bytes = size_bytes


class ResyncRequired(GatewayError):
    """
    What the client has cannot be continued from the journal; it has to begin a new session.

    Attributes:
        reason: `journal_gap` (trimmed) or `journal_rollback` (the store lost entries).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SocketClosed(GatewayError):
    """
    The client's socket is gone.

    Attributes:
        code: the WebSocket close code, as far as it is known.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
