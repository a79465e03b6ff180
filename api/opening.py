"""Opening and resuming: from a client's wish to an attachment that waits for the journal's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from api.attachment import Attachment, token_hash
from api.errors import OpeningRefused, ResumeFailed, ResyncRequired, TemporarilyRefused
from api.heads import replay
from api.outbox import Outbox
from eventstore.errors import CursorLost, InvalidSessionId, StoreUnavailable, UnknownSession
from eventstore.ids import new_session_id
from session_core import events as ev
from session_core.config import Dialect, SessionConfig, Way
from session_core.fleet import slot_member
from session_core.reducer import REDUCER_VERSION
from session_core.state import Phase, State

if TYPE_CHECKING:
    from api.gateway import Gateway


class Joined(NamedTuple):
    """An attachment on its way into the journal, and what is sent to its client."""

    attachment: Attachment
    outbox: Outbox
    way: Way
    dialect: Dialect
    config: SessionConfig


class ResumeWish(NamedTuple):
    """What a client brings to continue a session."""

    session_id: str
    token: str
    received_seq: int


async def open_session(gateway: Gateway, config: SessionConfig, way: Way, dialect: Dialect) -> Joined:
    """
    Take a slot and state the session: opened, assigned, attached, in this order.

    Raises:
        OpeningRefused: nobody serves the model.
        TemporarilyRefused: no slot is free, or the store does not answer.
    """
    session_id = new_session_id()
    try:
        worker = await gateway.fleet.place(config.model, slot_member(session_id, 1))
    except StoreUnavailable as error:
        raise _busy("The service is not available at the moment.") from error
    if worker is None:
        gateway.stats.refused_openings += 1
        if gateway.fleet.models and config.model not in gateway.fleet.models:
            message = "The model does not exist or is not served here."
            raise OpeningRefused("model_not_found", message, param="model")
        raise _busy("All slots are taken. Try again later.")
    attachment = Attachment(gateway.store, gateway.gateway_id, session_id, 1)
    outbox = Outbox(
        gateway.store,
        session_id,
        attachment.attachment_id,
        stats=gateway.stats,
        limit_bytes=gateway.settings.pending_bytes,
    )
    try:
        await gateway.store.register(session_id)
        await attachment.hold()
    except StoreUnavailable as error:
        raise _busy("The service is not available at the moment.") from error
    attachment.state(
        ev.SessionOpened(
            session_id, worker.profile, config, gateway.settings.limits, way, dialect, REDUCER_VERSION
        )
    )
    attachment.state(ev.WorkerAssigned(worker.worker_id, 1))
    attachment.attach(None, None)
    gateway.stats.opened += 1
    return Joined(attachment, outbox, way, dialect, config)


async def resume_session(gateway: Gateway, wish: ResumeWish) -> Joined:
    """
    Read the session's journal and claim its next attachment. The journal's answer decides.

    Raises:
        ResumeFailed: this session will not be resumed with this.
        ResyncRequired: the journal no longer holds what the client lacks.
        TemporarilyRefused: the store does not answer.
    """
    try:
        found = await replay(gateway.store, wish.session_id, wish.received_seq)
    except (InvalidSessionId, UnknownSession) as error:
        raise ResumeFailed("session_resume_expired", "There is no such session (any more).") from error
    except CursorLost as error:
        raise ResyncRequired("journal_gap") from error
    except StoreUnavailable as error:
        raise _busy("The session cannot be reached at the moment.") from error
    state = found.head.fold.state
    presented = token_hash(wish.token)
    _check(state, presented, wish.received_seq)
    attachment = Attachment(
        gateway.store, gateway.gateway_id, wish.session_id, state.attachment.generation + 1
    )
    outbox = Outbox(
        gateway.store,
        wish.session_id,
        attachment.attachment_id,
        stats=gateway.stats,
        limit_bytes=gateway.settings.pending_bytes,
        live=found.head,
        sent=found.sent,
        sent_seq=wish.received_seq,
        cancelled=found.cancelled,
    )
    try:
        await attachment.hold()
    except StoreUnavailable as error:
        raise _busy("The session cannot be reached at the moment.") from error
    attachment.attach(presented, wish.received_seq)
    gateway.stats.resumed += 1
    gateway.stats.taken_over += state.attachment.attached
    return Joined(attachment, outbox, state.pinned.way, state.pinned.dialect, state.config)


def _check(state: State, presented: bytes, received_seq: int) -> None:
    """Refuse early what the journal would refuse: a wrong guess must not even be able to grow the journal."""
    if state.phase is not Phase.OPEN:
        raise ResumeFailed("session_resume_expired", "The session has ended.")
    held = state.attachment
    if presented not in (held.offered_hash, held.confirmed_hash):
        raise ResumeFailed("invalid_resume_token", "The resume token is not valid.")
    if received_seq > state.seq:
        raise ResyncRequired("journal_rollback")


def _busy(message: str) -> TemporarilyRefused:
    return TemporarilyRefused("resource_exhausted", message, kind="server_error")
