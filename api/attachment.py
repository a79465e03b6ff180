"""One client connection's hold on a session, as the journal's writer sees it."""

from __future__ import annotations

import hashlib
import secrets

from eventstore.errors import StoreUnavailable
from eventstore.store import EventStore
from session_core import commands as cmd
from session_core import events as ev
from session_core.fleet import slot_member
from session_core.fold import Fold
from session_core.journal import Role, Stamp, encode_entry


def new_token() -> str:
    """Make a resume token. Its hash alone goes into the journal."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> bytes:
    """Give what stands for a token in the journal."""
    return hashlib.sha256(token.encode()).digest()


class Attachment:
    """
    Writes one attachment's entries in order, each command with its number. Lives until `close`.

    Attributes:
        session_id: the session.
        attachment_id: unique for this connection.
        generation: which attachment of the session this is, from 1.
        token: what the client may resume with.
        over: nothing is appended any more.
    """

    def __init__(self, store: EventStore, gateway_id: str, session_id: str, generation: int) -> None:
        self.session_id = session_id
        self.attachment_id = f"att_{secrets.token_urlsafe(12)}"
        self.generation = generation
        self.token = new_token()
        self.over = False
        self._store = store
        self._gateway_id = gateway_id
        self._member = slot_member(session_id, generation)
        self._writer = store.writer(session_id)
        self._commands = 0
        self._digest_seq = 0

    @property
    def has_commands(self) -> bool:
        """Whether this attachment's client has shown itself in the journal."""
        return self._commands > 0

    async def hold(self) -> None:
        """
        Enter the attachment into the gateway's set, so that others can clean up after this process.

        Raises:
            StoreUnavailable: no answer; the attachment is of no use then.
        """
        try:
            await self._store.hold(self._gateway_id, self._member, None)
        except StoreUnavailable:
            self._writer.close()
            raise

    def attach(self, presented_hash: bytes | None, received_seq: int | None) -> None:
        """Claim the session."""
        self.state(
            ev.ClientAttached(
                self.attachment_id,
                self._gateway_id,
                self.generation,
                presented_hash,
                token_hash(self.token),
                received_seq,
            )
        )

    def append(self, command: cmd.AnyCommand) -> int:
        """Journal a command of the client's and give its number; dropped once the attachment is over."""
        if not self.over:
            self._commands += 1
            stamp = Stamp(Role.CLIENT, self.generation, self._commands)
            self._writer.append(encode_entry(command, stamp))
        return self._commands

    def state(self, fact: ev.AnyEvent) -> None:
        """Journal a fact, behind everything appended before."""
        self._writer.append(encode_entry(fact))

    def digest(self, fold: Fold, every: int) -> None:
        """Journal what was folded so far, if that is `every` events more than last time."""
        seq = fold.state.seq
        if seq - self._digest_seq >= max(1, every):
            self._digest_seq = seq
            self.state(fold.outbound_digest())

    @property
    def has_room(self) -> bool:
        """Whether the store keeps up."""
        return self._writer.has_room

    async def room(self) -> None:
        """
        Wait until the store keeps up.

        Raises:
            StoreClosed: the gateway stops.
        """
        await self._writer.room()

    async def flush(self) -> None:
        """
        Wait until everything appended is in the journal.

        Raises:
            StoreClosed: the gateway stops.
        """
        await self._writer.flush()

    async def release(self) -> None:
        """
        Wait until everything appended is in the journal, then give up the hold.

        Raises:
            StoreUnavailable: no answer; the hold stays.
            StoreClosed: the gateway stops; the hold stays.
        """
        await self._writer.flush()
        await self._store.release(self._gateway_id, self._member)

    def close(self) -> None:
        """Write no more; what is not in the journal yet may never be."""
        self._writer.close()
