# ruff: noqa: D102 - the contract's docstrings stand in EventStore and the transports' in their protocols
"""
The event store on Redis or Valkey.

Four connections a process: appends, the multiplexed reader, hints, and all other calls. Journals are
streams with one field. What must be atomic is one Lua call on keys of one hash tag.

Durability: `relaxed` acknowledges what the server has in memory; a crash loses at most what its AOF policy
allows (everysec: a second or two). `durable` acknowledges what the server says is on its disk (WAITAOF).
Followers see an entry before it is acknowledged, so where they act on it (a gateway tells its client)
`durable` needs `appendfsync always`: then the server answers no one before the entry is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from .clock import StoreClock
from .commit import Ack, Group
from .errors import JournalGap, StoreUnavailable, UnknownSession
from .follow import Fetched, Standing, Want
from .hints import HintListener
from .ids import (
    PROCESS_INFO,
    SHARDS,
    START,
    EntryId,
    deadlines_key,
    directory_key,
    process_keys,
    session_keys,
)
from .link import Link, Reply, pack
from .options import StoreOptions
from .records import Entry, Process
from .store import EventStore

Durability: TypeAlias = Literal["relaxed", "durable"]

_TRIM = b"""
local newest = redis.call('XREVRANGE', KEYS[1], '(' .. ARGV[1], '-', 'COUNT', 1)
if #newest == 0 then return 0 end
redis.call('SET', KEYS[2], newest[1][1])
return redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
"""
_HOLD = b"""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
if ARGV[2] ~= '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
redis.call('PUBLISH', KEYS[2], '')
return 1
"""
_FORGET = b"""
if redis.call('HLEN', KEYS[1]) > 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3])
redis.call('PUBLISH', KEYS[4], '')
return 1
"""
_FIELD = b"d"
_TIME = pack(b"TIME")


def _entry_id(raw: bytes | None) -> EntryId:
    return START if raw is None else EntryId.parse(raw)


def _entries(rows: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
    return [Entry(EntryId.parse(raw_id), fields[1]) for raw_id, fields in rows]


def _time_ms(reply: Reply) -> float:
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) / 1000


def _integer(number: int) -> bytes:
    return b"%d" % number


def _position(entry_id: EntryId) -> bytes:
    return b"%d-%d" % entry_id


class _Appends:
    """The append side of a store, over a connection of its own; see `AppendTransport`."""

    def __init__(self, link: Link, clock: StoreClock, durability: Durability, timeout_s: float) -> None:
        self._link = link
        self._clock = clock
        # The server gives up a little before we do, so that the connection stays usable.
        self._fence = (
            pack(b"WAITAOF", b"1", b"0", _integer(int(timeout_s * 500))) if durability == "durable" else None
        )

    async def append_groups(self, groups: Sequence[Group]) -> list[Ack]:
        if not self._link.connected:
            await self._link.connect()
        commands: list[bytes] = []
        for session_id, payloads in groups:
            keys = session_keys(session_id)
            commands += [pack(b"XADD", keys.journal, b"*", _FIELD, payload) for payload in payloads]
            commands.append(pack(b"PUBLISH", keys.hint, b""))
        if self._fence is not None:
            commands.append(self._fence)
        replies = await self._link.pipeline(commands)
        if self._fence is not None:
            await self._until_on_disk(self._fence, replies.pop())
        return self._acks(groups, replies)

    async def _until_on_disk(self, fence: bytes, reply: Reply) -> None:
        # On the same connection the fence covers the same writes, so waiting on does not append again.
        while not isinstance(reply, ResponseError) and reply[0] < 1:
            [reply] = await self._link.pipeline([fence])
        if isinstance(reply, ResponseError):
            await self._link.close()
            raise StoreUnavailable("the server does not say what is on disk") from reply

    def _acks(self, groups: Sequence[Group], replies: Sequence[Reply]) -> list[Ack]:
        acks: list[Ack] = []
        first = 0
        for _, payloads in groups:
            ids: list[EntryId] = []
            refused: Exception | None = None
            for reply in replies[first : first + len(payloads)]:
                if isinstance(reply, ResponseError):
                    refused = reply
                    break
                ids.append(EntryId.parse(reply))
            acks.append(Ack(ids, refused))
            first += len(payloads) + 1
        if newest := [ack.ids[-1].ms for ack in acks if ack.ids]:
            self._clock.at_least(max(newest))
        return acks


class _Reads:
    """The multiplexed reader's side of a store, over a connection of its own; see `ReadTransport`."""

    def __init__(self, link: Link, hints: HintListener, clock: StoreClock) -> None:
        self._link = link
        self._hints = hints
        self._clock = clock

    async def connect(self) -> None:
        await self._link.connect()

    async def fetch(self, wants: Sequence[Want], limit: int) -> list[Fetched]:
        # One XREAD names a session once; a second position in the same session goes into a second XREAD.
        reads: list[dict[bytes, Want]] = []
        for want in wants:
            key = session_keys(want.session_id).journal
            read = next((read for read in reads if key not in read), None)
            if read is None:
                reads.append(read := {})
            read[key] = want
        commands = [
            pack(
                b"XREAD",
                b"COUNT",
                _integer(limit),
                b"STREAMS",
                *read,
                *[_position(w.after) for w in read.values()],
            )
            for read in reads
        ]
        commands.append(pack(b"MGET", *[session_keys(want.session_id).floor for want in wants]))
        *answers, floors = self._checked(await self._link.pipeline(commands))
        found: dict[Want, list[Entry]] = {}
        for read, answer in zip(reads, answers, strict=True):
            for key, rows in answer or ():
                found[read[key]] = _entries(rows)
        return [
            Fetched(found.get(want, []), _entry_id(floor)) for want, floor in zip(wants, floors, strict=True)
        ]

    async def standings(self, wants: Sequence[Want]) -> list[Standing]:
        commands: list[bytes] = []
        for want in wants:
            keys = session_keys(want.session_id)
            commands += (
                pack(b"EXISTS", keys.journal),
                pack(b"XREVRANGE", keys.journal, _position(want.after), b"-", b"COUNT", b"1"),
                pack(b"GET", keys.floor),
            )
        replies = self._checked(await self._link.pipeline(commands))
        return [
            Standing(bool(exists), EntryId.parse(rows[0][0]) if rows else START, _entry_id(floor))
            for exists, rows, floor in zip(replies[0::3], replies[1::3], replies[2::3], strict=True)
        ]

    async def existing(self, session_ids: Sequence[str]) -> list[bool]:
        commands = [pack(b"EXISTS", session_keys(session_id).journal) for session_id in session_ids]
        return [bool(reply) for reply in self._checked(await self._link.pipeline(commands))]

    async def sample_time(self) -> None:
        [reply] = self._checked(await self._link.pipeline([_TIME]))
        self._clock.sample(_time_ms(reply))

    def listen(self, session_id: str, on_hint: Callable[[], None]) -> None:
        self._hints.listen(session_keys(session_id).hint, on_hint)

    def unlisten(self, session_id: str, on_hint: Callable[[], None]) -> None:
        self._hints.unlisten(session_keys(session_id).hint, on_hint)

    def _checked(self, replies: list[Reply]) -> list[Reply]:
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise StoreUnavailable("refused") from reply
        return replies


class RedisEventStore(EventStore):
    """
    One process's store on a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        durability: what an acknowledged append means; see the module.
        client: a redis-py client whose pool makes the connections, instead of `url` (a fake one in tests).
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        durability: Durability = "relaxed",
        options: StoreOptions | None = None,
        client: Redis | None = None,
    ) -> None:
        super().__init__(options)
        timeout_s = self.options.timeout_s
        # RESP2: with one connection for hints alone there is no need for pushed replies between others.
        self._pool: ConnectionPool = (
            client.connection_pool
            if client
            else ConnectionPool.from_url(
                url,
                protocol=2,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
        )
        self._clock = StoreClock()
        self._hints = HintListener(self._pool, self.options)
        self._calls = self._new_link()
        self._append_link = self._new_link()
        self._read_link = self._new_link()
        self._start(
            _Appends(self._append_link, self._clock, durability, timeout_s),
            _Reads(self._read_link, self._hints, self._clock),
        )

    async def read(self, session_id: str, after: EntryId = START, limit: int = 256) -> list[Entry]:
        keys = session_keys(session_id)
        # The floor comes after the entries: a trim in between is then taken for a gap, never overlooked.
        rows, floor, exists = await self._calls.ask(
            pack(b"XRANGE", keys.journal, b"(" + _position(after), b"+", b"COUNT", _integer(limit)),
            pack(b"GET", keys.floor),
            pack(b"EXISTS", keys.journal),
        )
        if not exists:
            raise UnknownSession(session_id)
        entries = _entries(rows)
        if after < (trimmed := _entry_id(floor)):
            raise JournalGap(session_id, after, entries[0].id if entries else trimmed.next())
        return entries

    async def bounds(self, session_id: str) -> tuple[EntryId, EntryId] | None:
        key = session_keys(session_id).journal
        first, last = await self._calls.ask(
            pack(b"XRANGE", key, b"-", b"+", b"COUNT", b"1"),
            pack(b"XREVRANGE", key, b"+", b"-", b"COUNT", b"1"),
        )
        return (EntryId.parse(first[0][0]), EntryId.parse(last[0][0])) if first and last else None

    async def trim(self, session_id: str, before: EntryId) -> int:
        keys = session_keys(session_id)
        if before == START:
            return 0
        [removed] = await self._calls.ask(
            pack(b"EVAL", _TRIM, b"2", keys.journal, keys.floor, _position(before))
        )
        return int(removed)

    async def delete(self, session_id: str) -> None:
        keys = session_keys(session_id)
        name = session_id.encode()
        await self._calls.ask(
            pack(b"DEL", keys.journal, keys.floor, keys.snapshots),
            pack(b"ZREM", keys.directory, name),
            pack(b"ZREM", keys.deadlines, name),
        )

    async def save_snapshot(self, session_id: str, at: EntryId, data: bytes) -> None:
        key = session_keys(session_id).snapshots
        _, names = await self._calls.ask(pack(b"HSET", key, _position(at), data), pack(b"HKEYS", key))
        if old := sorted(map(EntryId.parse, names))[: -self.options.snapshots_kept]:
            await self._calls.ask(pack(b"HDEL", key, *map(_position, old)))

    async def load_snapshot(
        self, session_id: str, before: EntryId | None = None
    ) -> tuple[EntryId, bytes] | None:
        key = session_keys(session_id).snapshots
        [names] = await self._calls.ask(pack(b"HKEYS", key))
        for at in sorted(map(EntryId.parse, names), reverse=True):
            if before is None or at <= before:
                [data] = await self._calls.ask(pack(b"HGET", key, _position(at)))
                if data is not None:
                    return at, data
        return None

    async def register(self, session_id: str) -> None:
        score = _integer(self.now_ms())
        await self._calls.ask(
            pack(b"ZADD", session_keys(session_id).directory, b"NX", score, session_id.encode())
        )

    async def sessions(self) -> list[str]:
        replies = await self._calls.ask(
            *[pack(b"ZRANGE", directory_key(shard), b"0", b"-1", b"WITHSCORES") for shard in range(SHARDS)]
        )
        return self._by_score(replies)

    async def schedule(self, session_id: str, due_ms: int | None) -> None:
        key, name = session_keys(session_id).deadlines, session_id.encode()
        await self._calls.ask(
            pack(b"ZREM", key, name) if due_ms is None else pack(b"ZADD", key, _integer(due_ms), name)
        )

    async def due(self, now_ms: int, limit: int) -> list[str]:
        window = (b"-inf", _integer(now_ms), b"WITHSCORES", b"LIMIT", b"0", _integer(limit))
        replies = await self._calls.ask(
            *[pack(b"ZRANGEBYSCORE", deadlines_key(shard), *window) for shard in range(SHARDS)]
        )
        return self._by_score(replies)[:limit]

    async def beat(self, process_id: str, info: bytes, ttl_ms: int) -> None:
        keys = process_keys(process_id)
        await self._calls.ask(
            pack(b"HSET", PROCESS_INFO, process_id.encode(), info),
            pack(b"SET", keys.beat, b"", b"PX", _integer(ttl_ms)),
        )

    async def processes(self) -> list[Process]:
        [pairs] = await self._calls.ask(pack(b"HGETALL", PROCESS_INFO))
        known = sorted(zip([name.decode() for name in pairs[0::2]], pairs[1::2], strict=True))
        alive = await self._calls.ask(*[pack(b"EXISTS", process_keys(name).beat) for name, _ in known])
        return [Process(name, info, bool(beats)) for (name, info), beats in zip(known, alive, strict=True)]

    async def forget_process(self, process_id: str) -> bool:
        keys = process_keys(process_id)
        names = (keys.slots, PROCESS_INFO, keys.beat, keys.hint)
        [forgotten] = await self._calls.ask(pack(b"EVAL", _FORGET, b"4", *names, process_id.encode()))
        return bool(forgotten)

    async def hold(self, process_id: str, member: str, capacity: int | None) -> bool:
        keys = process_keys(process_id)
        limit = b"" if capacity is None else _integer(capacity)
        [taken] = await self._calls.ask(
            pack(b"EVAL", _HOLD, b"2", keys.slots, keys.hint, member.encode(), limit)
        )
        return bool(taken)

    async def release(self, process_id: str, member: str) -> None:
        keys = process_keys(process_id)
        await self._calls.ask(pack(b"HDEL", keys.slots, member.encode()), pack(b"PUBLISH", keys.hint, b""))

    async def held(self, process_id: str) -> dict[str, int]:
        [pairs] = await self._calls.ask(pack(b"HGETALL", process_keys(process_id).slots))
        return {
            member.decode(): int(taken_ms) for member, taken_ms in zip(pairs[0::2], pairs[1::2], strict=True)
        }

    def _listen(self, process_id: str, fire: Callable[[], None]) -> None:
        self._hints.listen(process_keys(process_id).hint, fire)

    def _unlisten(self, process_id: str, fire: Callable[[], None]) -> None:
        self._hints.unlisten(process_keys(process_id).hint, fire)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def last_contact_s(self) -> float:
        return self._clock.last_contact_s()

    async def _open(self) -> None:
        [reply] = await self._calls.ask(_TIME)
        self._clock.sample(_time_ms(reply))

    async def _serve(self) -> None:
        await self._hints.run()

    async def _close(self) -> None:
        for link in (self._calls, self._append_link, self._read_link):
            await link.close()

    def _new_link(self) -> Link:
        return Link(self._pool, self._clock, self.options.timeout_s)

    def _by_score(self, replies: Sequence[Reply]) -> list[str]:
        scored = [
            (float(score), name.decode())
            for reply in replies
            for name, score in zip(reply[0::2], reply[1::2], strict=True)
        ]
        return [name for _, name in sorted(scored)]
