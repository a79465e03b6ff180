"""
Names of things in the store: entries, sessions, processes, and the keys made of them.

Every key of a session carries its shard as a hash tag (`{s17}:journal:...`), so that in a cluster one
shard's keys live together; no command spans two tags. Ids come from clients and go into keys: parsing is
strict.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import Final, NamedTuple

from .errors import InvalidProcessId, InvalidSessionId

SHARDS: Final = 64
"""Number of shards a deployment is cut into. Fixed: it stands in every session id."""

_SESSION_ID: Final = re.compile(r"sess_([0-9]{2})_[A-Za-z0-9_-]{22}")
_PROCESS_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class EntryId(NamedTuple):
    """
    Position of an entry in its journal: store time in ms, and a number within that ms. Orders as the journal.
    """

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str | bytes) -> EntryId:
        """
        Read `"ms-seq"`.

        Raises:
            ValueError: not two decimal numbers with a dash between them.
        """
        ms, _, seq = text.partition("-") if isinstance(text, str) else text.partition(b"-")
        return cls(int(ms), int(seq))

    def next(self) -> EntryId:
        """The smallest id after this one."""
        return EntryId(self.ms, self.seq + 1)


START: Final = EntryId(0, 0)
"""The cursor before everything."""


class SessionKeys(NamedTuple):
    """The keys of one session, as bytes."""

    journal: bytes
    floor: bytes
    """Id of the newest trimmed entry; absent while nothing was trimmed."""
    snapshots: bytes
    hint: bytes
    """Pub/sub channel on which appends are announced."""
    directory: bytes
    """Sorted set of the shard's sessions by the time they were registered."""
    deadlines: bytes
    """Sorted set of the shard's sessions by their next deadline."""


class ProcessKeys(NamedTuple):
    """The keys of one process; those of all processes live under one hash tag."""

    beat: bytes
    slots: bytes
    """Hash: member -> store time in ms at which it was taken."""
    hint: bytes


PROCESS_INFO: Final = b"{proc}:info"
"""Hash: process id -> its last heartbeat's info. Outlives the heartbeat."""


def new_session_id(shards: int = SHARDS) -> str:
    """A fresh session id on a random shard."""
    return f"sess_{secrets.randbelow(min(shards, SHARDS)):02d}_{secrets.token_urlsafe(16)}"


def shard_of(session_id: str) -> int:
    """
    The shard that stands in the id.

    Raises:
        InvalidSessionId: the id has not exactly the form that `new_session_id` gives.
    """
    match = _SESSION_ID.fullmatch(session_id)
    if match is None or int(match[1]) >= SHARDS:
        raise InvalidSessionId(session_id)
    return int(match[1])


@lru_cache(maxsize=16_384)
def session_keys(session_id: str) -> SessionKeys:
    """
    The keys of a session.

    Raises:
        InvalidSessionId: see `shard_of`.
    """
    tag = shard_tag(shard_of(session_id))
    name = session_id.encode()
    return SessionKeys(
        journal=tag + b":journal:" + name,
        floor=tag + b":floor:" + name,
        snapshots=tag + b":snapshots:" + name,
        hint=tag + b":hint:" + name,
        directory=directory_key(shard_of(session_id)),
        deadlines=deadlines_key(shard_of(session_id)),
    )


def process_keys(process_id: str) -> ProcessKeys:
    """
    The keys of a process.

    Raises:
        InvalidProcessId: other characters than letters, digits and `._:-`, or too many.
    """
    if _PROCESS_ID.fullmatch(process_id) is None:
        raise InvalidProcessId(process_id)
    name = process_id.encode()
    return ProcessKeys(
        beat=b"{proc}:beat:" + name, slots=b"{proc}:slots:" + name, hint=b"{proc}:hint:" + name
    )


def shard_tag(shard: int) -> bytes:
    """The hash tag of a shard, braces included."""
    return b"{s%02d}" % shard


def directory_key(shard: int) -> bytes:
    """Key of the shard's session directory."""
    return shard_tag(shard) + b":sessions"


def deadlines_key(shard: int) -> bytes:
    """Key of the shard's deadlines."""
    return shard_tag(shard) + b":deadlines"
