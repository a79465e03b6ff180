"""A scripted journal: a short conversation, with the digests that a gateway would have recorded."""

from __future__ import annotations

from eventstore import Entry, EntryId, MemoryEventStore, MemoryServer, new_session_id
from eventstore.memory import _Journal
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.fold import Fold
from session_core.journal import Body, Role, Stamp, encode_entry

START_MS = 1_700_000_000_000
FRAME_MS = 80
FRAME_BYTES = 3_840


class Script:
    """Writes a journal entry by entry, as client, worker and gateway would, one entry each 40 ms."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.entries: list[Entry] = []
        self.fold = Fold()
        self._appends = {Role.CLIENT: 0, Role.WORKER: 0}
        self._units = 0

    def fact(self, body: Body) -> None:
        """An entry that carries no stamp."""
        self._add(body, None)

    def client(self, body: Body, generation: int = 1) -> None:
        """The next append of the client."""
        self._add(body, self._stamp(Role.CLIENT, generation))

    def worker(self, body: Body) -> None:
        """The next append of the worker."""
        self._add(body, self._stamp(Role.WORKER, 1))

    def hear(self, frames: int) -> None:
        """The client sends frames and the model listens to each."""
        for _ in range(frames):
            self.client(cmd.AppendAudio(self._pcm()))
            self._unit(ev.Decision.LISTEN, b"")

    def speak(self, units: int) -> None:
        """The client sends frames and the model speaks in each; the last one ends the turn."""
        for left in reversed(range(units)):
            self.client(cmd.AppendAudio(self._pcm()))
            self._unit(ev.Decision.SPEAK if left else ev.Decision.TURN_END, self._pcm())

    def digest(self) -> None:
        """What the gateway appends from time to time."""
        self.fact(self.fold.outbound_digest())

    def _unit(self, decision: ev.Decision, audio: bytes) -> None:
        unit = self._units
        self._units += 1
        samples = FRAME_BYTES // 2
        self.worker(
            ev.ModelUnitCompleted(
                unit, self.fold.state.epoch, unit * samples, samples, 0, decision, (unit, 7), audio=audio
            )
        )

    def _pcm(self) -> bytes:
        return bytes((len(self.entries) * 7 + index) % 251 for index in range(FRAME_BYTES))

    def _stamp(self, role: Role, generation: int) -> Stamp:
        self._appends[role] += 1
        return Stamp(role, generation, self._appends[role])

    def _add(self, body: Body, stamp: Stamp | None) -> None:
        entry = Entry(EntryId(START_MS + 40 * len(self.entries), 0), encode_entry(body, stamp))
        self.entries.append(entry)
        self.fold, _ = self.fold.step(entry.id, entry.data)


def opened(session_id: str | None = None) -> Script:
    """A session with its client and its worker."""
    script = Script(session_id or new_session_id())
    script.fact(
        ev.SessionOpened(
            script.session_id,
            ModelProfile("loopback"),
            SessionConfig("loopback", auto_response=True),
            Limits(),
            Way.DUPLEX,
            Dialect.GA,
            1,
        )
    )
    script.fact(ev.WorkerAssigned("worker-1", 1))
    script.fact(ev.ClientAttached("att-1", "gateway-1", 1, None, b"h" * 32))
    return script


def conversation(session_id: str | None = None) -> Script:
    """The user speaks, the model answers, the client leaves: three digests, the last one after the end."""
    script = opened(session_id)
    script.hear(6)
    script.digest()
    script.speak(5)
    script.client(cmd.AckPlayback(played_ms=400))
    script.digest()
    script.hear(3)
    script.client(cmd.CloseSession())
    script.digest()
    return script


def serving(*scripts: Script) -> MemoryEventStore:
    """A store, not yet entered, whose server holds the journals as they are."""
    server = MemoryServer()
    for number, script in enumerate(scripts):
        server.directory[script.session_id] = number
        server.journals[script.session_id] = _Journal(list(script.entries), script.entries[-1].id)
    return MemoryEventStore(server)
