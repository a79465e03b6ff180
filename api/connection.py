"""
One client connection, from the accepted socket to its close.

    socket -> decode -> append          the reader
    follow -> fold -> buffer            the follower (api.outbox)
    buffer -> encode -> socket          the sender

Whichever of the three ends first ends the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from api.attachment import Attachment
from api.codec import client, server
from api.codec.command import to_command
from api.codec.context import CodecContext
from api.errors import CodecError, FrameTooLarge, ResumeFailed, SocketClosed, TemporarilyRefused, Told
from api.heads import newest_head
from api.opening import Joined
from api.outbox import Outbox, Verdict
from api.pacer import Pacer
from api.socket import NORMAL_CLOSURE, ClientSocket
from eventstore.errors import CursorLost, EventStoreError, StoreClosed, StoreUnavailable, UnknownSession
from session_core import commands as cmd
from session_core import events as ev
from session_core import wire
from session_core.config import Way
from session_core.deadlines import next_deadline
from session_core.fold import encode_snapshot
from session_core.state import EndReason, State

if TYPE_CHECKING:
    from api.gateway import Gateway

_log = structlog.get_logger()

CLOSE_REPLACED = 4001
"""Another connection holds the session."""
CLOSE_SLOW = 4002
"""The client took nothing for too long."""
_CLOSES: dict[Verdict, tuple[int, str]] = {
    Verdict.REPLACED: (CLOSE_REPLACED, "session taken over by another connection"),
    Verdict.DETACHED: (1012, "session detached, resume it"),
    Verdict.REFUSED: (1008, "session not resumed"),
    Verdict.GAP: (1011, "journal gap"),
    Verdict.ROLLBACK: (1011, "journal rollback"),
}
_END_CLOSES: dict[EndReason, tuple[int, str]] = {
    EndReason.CLOSED: (1000, "session closed"),
    EndReason.IDLE: (1001, "session expired"),
    EndReason.GRACE: (1001, "session expired"),
    EndReason.MAXIMUM: (1001, "session expired"),
    EndReason.ENGINE_ERROR: (1011, "engine error"),
    EndReason.INTERNAL_ERROR: (1011, "internal error"),
}
_RETRY_S = 0.5
_RESCHEDULE_MS = 10_000
"""A deadline that moves away is told to the store only when the one it knows of is this near."""


class Connection:
    """Serves one attachment over one socket; lives until `serve` returns."""

    def __init__(
        self, gateway: Gateway, socket: ClientSocket, joined: Joined, context: CodecContext, first: str | None
    ) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._socket = socket
        self._attachment: Attachment = joined.attachment
        self._outbox: Outbox = joined.outbox
        self._context = context
        self._first = first
        """A message that came before the session; served as the first one in it."""
        self._update_n = 0
        """Number of the last update appended."""
        self._projection = server.Projection(
            joined.way, joined.dialect, self._settings.max_server_frame_bytes
        )
        self._acks = Pacer(self._settings.ack_interval_s, self._attachment.append)
        self._heartbeats = Pacer(self._settings.heartbeat_interval_s, self._attachment.append)
        self._evicted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusals = 0
        self._scheduled_ms: int | None = None
        self._snapshot_entries = 0
        self._log = _log.bind(
            session_id=self._attachment.session_id,
            generation=self._attachment.generation,
            gateway=gateway.gateway_id,
        )

    async def serve(self) -> None:
        """Wait until the journal has the attachment, then serve until client, session or gateway is gone."""
        self._outbox.on_batch = self._batch_folded
        verdict: Verdict | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._outbox.follow(), name="connection.follow")
                try:
                    await self._welcome()
                    verdict = await self._exchange(tasks, following)
                except Told as error:
                    verdict = Verdict.REFUSED if isinstance(error, ResumeFailed) else None
                    await self._turn_away(error, 1008 if isinstance(error, ResumeFailed) else 1013)
                except SocketClosed:
                    pass
                finally:
                    following.cancel()
        finally:
            await self._leave(verdict)

    # --- the beginning --------------------------------------------------------------------------------------

    async def _welcome(self) -> None:
        """
        Send the first event, with the token.

        Raises:
            ResumeFailed: the journal says no.
            TemporarilyRefused: it says nothing in time.
        """
        try:
            async with asyncio.timeout(self._settings.attach_timeout_s):
                event = await asyncio.shield(self._outbox.welcome)
        except TimeoutError as error:
            message = "The session cannot be reached at the moment."
            raise TemporarilyRefused("resource_exhausted", message, kind="server_error") from error
        assert isinstance(event, (wire.SessionCreated, wire.SessionResumed))
        await self._socket.send(self._projection.welcome(event, self._attachment.token))
        self._log.info("session.attached", resumed=isinstance(event, wire.SessionResumed))
        with suppress(StoreUnavailable):
            await self.tick()

    async def _exchange(self, tasks: asyncio.TaskGroup, following: asyncio.Task[Verdict]) -> Verdict | None:
        """Read, fold and send until one of them ends; None: it is the client that is gone."""
        reading = tasks.create_task(self._read(), name="connection.read")
        sending = tasks.create_task(self._send(), name="connection.send")
        everything: set[asyncio.Future[Any]] = {following, reading, sending, self._evicted}
        try:
            with self._gateway.registered(self):
                await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            return await self._conclude(following, sending)
        finally:
            reading.cancel()
            sending.cancel()

    async def _conclude(
        self, following: asyncio.Task[Verdict], sending: asyncio.Task[Verdict | None]
    ) -> Verdict | None:
        """Say goodbye to a client that is still there, as the reason demands."""
        verdict = following.result() if following.done() else None
        if verdict is None and sending.done():
            verdict = sending.result()
        if verdict is None:
            if self._evicted.done():
                self._gateway.stats.evicted += 1
                self._log.warning("connection.evicted", lagging=self._outbox.lagging)
                await self._close(CLOSE_SLOW, "client reads too slowly")
            return None
        self._attachment.over = True
        self._log.info("attachment.over", verdict=verdict.value)
        if verdict is Verdict.ENDED:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_timeout_s):
                    await asyncio.shield(sending)
            reason = self._outbox.state.end_reason or EndReason.INTERNAL_ERROR
            await self._close(*_END_CLOSES[reason])
            return verdict
        await self._farewell(verdict)
        await self._close(*_CLOSES[verdict])
        return verdict

    async def _farewell(self, verdict: Verdict) -> None:
        text = None
        if verdict is Verdict.REPLACED and self._outbox.replaced is not None:
            text = self._projection.encode(self._outbox.replaced)
        elif verdict in (Verdict.GAP, Verdict.ROLLBACK):
            text = self._projection.resync(verdict.value, self._unnumbered())
        if text is not None:
            with suppress(SocketClosed, TimeoutError):
                async with asyncio.timeout(self._settings.drain_timeout_s):
                    await self._socket.send(text)

    async def _close(self, code: int, reason: str) -> None:
        with suppress(SocketClosed, TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await self._socket.close(code, reason)

    async def _leave(self, verdict: Verdict | None) -> None:
        """Journal what is left to say and wait until it is there: others must know of the client's end."""
        self._outbox.close()
        self._acks.flush()
        self._heartbeats.flush()
        self._attachment.over = True
        try:
            await self._persist(verdict)
        except EventStoreError as error:
            # Deleted, or this gateway stops without its store: the hold stays for others to find.
            self._log.warning("attachment.not_released", error=type(error).__name__)
        finally:
            self._attachment.close()
        self._log.info("session.detached", verdict=verdict.value if verdict else "socket")

    async def _persist(self, verdict: Verdict | None) -> None:
        """Detach, release and leave hints, however long the store takes: nobody else will."""
        while True:
            try:
                if verdict in (None, Verdict.GAP, Verdict.ROLLBACK):
                    await self._detach(verdict)
                if self._joined:
                    self._attachment.digest(self._outbox.live.fold, 1)
                await self._attachment.flush()
                if not self._hold_is_shared:
                    await self._attachment.release()
                if self._joined:
                    await self._remember(verdict)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    @property
    def _joined(self) -> bool:
        """Whether the session is known to have been this connection's."""
        return self._outbox.state.attachment.attachment_id == self._attachment.attachment_id

    @property
    def _hold_is_shared(self) -> bool:
        """
        Whether another connection of this gateway claimed the same generation, won it and still has it.

        Holds are named by generation, so the winner's is the same one, and the winner gives it up.
        """
        held, mine = self._outbox.state.attachment, self._attachment
        is_here = held.attached and held.gateway == self._gateway.gateway_id
        return not self._joined and is_here and held.generation == mine.generation

    async def _detach(self, verdict: Verdict | None) -> None:
        """Say that the client is gone. A generation is named, so it must be known to be this attachment's."""
        lost = verdict is Verdict.ROLLBACK
        if lost or (not self._joined and self._attachment.generation > 1):
            await self._attachment.flush()
            start = None if lost else self._outbox.live
            with suppress(CursorLost):
                self._outbox.live = await newest_head(self._gateway.store, self._attachment.session_id, start)
        if self._joined or self._attachment.generation == 1:
            self._attachment.state(ev.ClientDetached(self._attachment.generation))

    async def _remember(self, verdict: Verdict | None) -> None:
        """Leave hints for those who come after: a snapshot, and when to look at the session again."""
        store, session_id, head = self._gateway.store, self._attachment.session_id, self._outbox.live
        if self._settings.snapshot_entries and verdict is not Verdict.ROLLBACK:
            await store.save_snapshot(session_id, head.cursor, encode_snapshot(head.fold))
        if verdict is Verdict.ENDED:
            await store.schedule(session_id, None)
        elif verdict is None:
            grace_ms = self._outbox.state.pinned.limits.disconnect_grace_ms
            await store.schedule(session_id, store.now_ms() + grace_ms)

    async def _turn_away(self, error: Told, code: int) -> None:
        with suppress(SocketClosed):
            await self._socket.send(server.error_text(error, self._unnumbered()))
        await self._close(code, error.code)

    # --- socket to journal ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            text = self._first if self._first is not None else await self._socket.receive()
            while True:
                if not self._attachment.has_room:
                    await self._attachment.room()
                try:
                    self._take(text)
                except CodecError as error:
                    await self._refuse(error)
                text = await self._socket.receive()
        except SocketClosed as closed:
            if closed.code == NORMAL_CLOSURE and self._context.way is Way.OPENAI:
                # These clients have no other word for it, and a session that nobody resumes holds its slot.
                self._attachment.append(cmd.CloseSession())
        except StoreClosed:
            return

    def _take(self, text: str | None) -> None:
        """
        Journal what a frame asks for.

        Raises:
            CodecError: nothing that could be journaled.
        """
        if text is None:
            code = self._context.code("invalid_value", "bad_event")
            raise CodecError(code, "Messages are JSON text; binary frames are not understood.")
        self._journal(to_command(client.parse(text, self._context), self._context))

    def _journal(self, command: cmd.AnyCommand) -> None:
        """Append a command, as often as its kind may be appended."""
        self._gateway.stats.commands += 1
        match command:
            case cmd.AppendAudio():
                self._attachment.append(command)
            case cmd.ConfirmAttachment():
                self._confirm()
            case cmd.AckPlayback(truncate=False):
                self._acks.offer(command)
            case cmd.Heartbeat():
                self._heartbeats.offer(command)
            case cmd.UpdateSession():
                # What follows in the same breath is written against the settings that it asks for.
                self._context.config = command.patch.onto(self._context.config)
                self._update_n = self._attachment.append(command)
            case _:
                # What the client heard before it asked for this counts before it: a cancel freezes the heard
                # point.
                self._acks.flush()
                self._attachment.append(command)

    def _confirm(self) -> None:
        """Show in the journal that this attachment's client has spoken, if nothing has shown it yet."""
        if not self._attachment.has_commands:
            self._attachment.append(cmd.ConfirmAttachment())

    async def _refuse(self, error: CodecError) -> None:
        self._gateway.stats.refused_messages += 1
        self._confirm()
        await self._socket.send(server.error_text(error, self._unnumbered()))

    def _unnumbered(self) -> str:
        """An id for an event that is no event of the session."""
        self._refusals += 1
        return f"event_{self._attachment.attachment_id}_{self._refusals}"

    # --- journal to socket ----------------------------------------------------------------------------------

    async def _send(self) -> Verdict | None:
        projection, socket = self._projection, self._socket
        try:
            async for event, discarded in self._outbox.due():
                shown: wire.ServerEvent | None = event
                if discarded and isinstance(event, wire.AudioDelta):
                    shown = projection.discarded(event)
                text = None if shown is None else projection.encode(shown)
                if text is not None:
                    await socket.send(text)
        except SocketClosed:
            return None
        except FrameTooLarge as error:
            self._log.error("frame.too_large", event_type=error.event, size_bytes=error.size_bytes)
            message = "An event is too large to be sent."
            await self._turn_away(Told("event_too_large", message, kind="server_error"), 1011)
            return None
        except (CursorLost, UnknownSession):
            return Verdict.GAP
        return None

    @property
    def lagging(self) -> bool:
        """Whether this client reads more slowly than its session speaks."""
        return self._outbox.lagging

    # --- slow business --------------------------------------------------------------------------------------

    def _batch_folded(self, state: State) -> None:
        """Runs after each batch of entries: only comparisons, unless there is something to do."""
        self._attachment.digest(self._outbox.live.fold, self._settings.digest_events)
        if state.worker.worker is None and state.worker.generation:
            self._gateway.reaper.suspect(self._attachment.session_id)
        if self._context.config is not state.config and state.attachment.last_n >= self._update_n:
            # Taken or refused, the journal has answered every update of this client's.
            self._context.config = state.config

    async def tick(self) -> None:
        """
        Runs about once a second: the next deadline, a slow reader, a snapshot.

        Raises:
            EventStoreError: the store does not answer; the next tick tries again.
        """
        since_s = self._socket.sending_since_s
        loop = asyncio.get_running_loop()
        if since_s is not None and loop.time() - since_s > self._settings.slow_reader_timeout_s:
            if not self._evicted.done():
                self._evicted.set_result(None)
            return
        await self._schedule()
        every = self._settings.snapshot_entries
        if every and self._outbox.folded_entries - self._snapshot_entries >= every:
            self._snapshot_entries = self._outbox.folded_entries
            head = self._outbox.live
            await self._gateway.store.save_snapshot(
                self._attachment.session_id, head.cursor, encode_snapshot(head.fold)
            )

    async def _schedule(self) -> None:
        deadline = next_deadline(self._outbox.state)
        if deadline is None:
            return
        known_ms, store, due_ms = self._scheduled_ms, self._gateway.store, deadline.due_ms
        near_ms = store.now_ms() + _RESCHEDULE_MS
        if known_ms is None or due_ms < known_ms or (due_ms > known_ms and known_ms < near_ms):
            await store.schedule(self._attachment.session_id, deadline.due_ms)
            self._scheduled_ms = deadline.due_ms
