"""
Canonical outbound events as a client of this way and dialect reads them: one to one, or left out.

The canonical Struct, encoded, is already the GA wire form; a dialect leaves events out and renames others,
and never splits one. `Projection` holds the choices of one connection.
"""

from __future__ import annotations

from msgspec import json
from msgspec.structs import replace

from api.codec import beta
from api.errors import FrameTooLarge, Told
from session_core import wire
from session_core.config import Dialect, Way

_encode = json.Encoder().encode

_BETA_ONLY = frozenset({wire.ItemCreated})
_GA_ONLY = frozenset({wire.ItemAdded, wire.ItemDone})


class Projection:
    """
    What one connection shows of the session's events. Lives as long as the connection.

    Args:
        way: how the session was opened.
        dialect: spelling of OpenAI's events.
        max_frame_bytes: no frame is larger; None: no limit.
    """

    def __init__(self, way: Way, dialect: Dialect, max_frame_bytes: int | None = None) -> None:
        self._way = way
        self._max_frame_bytes = max_frame_bytes
        self._hidden: frozenset[type[wire.ServerEvent]] = frozenset()
        self._beta = way is Way.OPENAI and dialect is Dialect.BETA
        if way is Way.OPENAI:
            self._hidden = _GA_ONLY if self._beta else _BETA_ONLY

    def encode(self, event: wire.ServerEvent) -> str | None:
        """
        Give the text frame of an event, or None if this client is not shown it.

        Raises:
            FrameTooLarge: it would be larger than clients take. Events are never split.
        """
        kind = type(event)
        if self._way is Way.OPENAI and (kind.tier == 3 or kind in self._hidden):
            return None
        frame = _beta_frame(event) if self._beta else _encode(event)
        if self._max_frame_bytes is not None and len(frame) > self._max_frame_bytes:
            raise FrameTooLarge(kind.__name__, len(frame))
        return frame.decode()

    def discarded(self, event: wire.AudioDelta) -> wire.AudioDelta | None:
        """Give what is left of a cancelled response's delta: its number, so that the count has no hole."""
        if self._way is Way.OPENAI:
            return None
        return replace(event, delta=b"", metadata=replace(event.metadata, discarded=True))

    def welcome(self, event: wire.SessionCreated | wire.SessionResumed, token: str) -> str:
        """
        Give an attachment's first event, with its token.

        OpenAI's clients know no resume: they see a session created.
        """
        if self._way is Way.OPENAI and isinstance(event, wire.SessionResumed):
            event = wire.SessionCreated(event_id=event.event_id, session=event.session)
        event = replace(event, resume_token=token)
        if self._beta and isinstance(event, wire.SessionCreated):
            return _encode(beta.session_created(event)).decode()
        return _encode(event).decode()

    def resync(self, reason: str, event_id: str) -> str | None:
        """Give a `session.resync_required`: what the client has cannot be continued."""
        if self._way is Way.OPENAI:
            return None
        return resync_text(reason, event_id)


def _beta_frame(event: wire.ServerEvent) -> bytes:
    kind = type(event)
    shape, name = beta.SHAPES.get(kind), beta.NAMES.get(kind)
    frame = _encode(event if shape is None else shape(event))
    # The type stands first, so the first place that reads like it is the type.
    return frame if name is None else frame.replace(name[0].encode(), name[1].encode(), 1)


def resync_text(reason: str, event_id: str) -> str:
    """Give a `session.resync_required` for a client that has no session yet."""
    return _encode(wire.ResyncRequired(event_id=event_id, reason=reason)).decode()


def error_text(error: Told, event_id: str) -> str:
    """Give an `error` event without a number: the answer to what never reached the journal."""
    detail = wire.ErrorDetail(
        type=error.kind, code=error.code, message=error.message, param=error.param, event_id=error.event_id
    )
    return _encode(wire.ErrorEvent(event_id=event_id, error=detail)).decode()
