"""
How fast one core folds a journal with the real reducer, payloads decoded.

    python benchmarks/fold_bench.py [--entries 12000] [--rounds 7]

The journal is a conversation at its dearest: every 80 ms the client's audio and a unit of speech in answer,
five playback acks a second, a turn every four seconds. Speeds are per second of this process's CPU time, the
median of some rounds, each over the whole journal, after a first one that is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from session_core.commands import AckPlayback, AppendAudio
from session_core.config import Dialect, Limits, ModelProfile, SessionConfig, Way
from session_core.events import ClientAttached, Decision, ModelUnitCompleted, SessionOpened, WorkerAssigned
from session_core.fold import Fold
from session_core.journal import Body, Position, Role, Stamp, decode_entry, encode_entry
from session_core.reducer import REDUCER_VERSION, reduce_bytes
from session_core.state import State

UNIT_SAMPLES = 1_920
UNIT_BYTES = 2 * UNIT_SAMPLES
UNITS_PER_TURN = 50
ACK_EVERY_MS = 200

Journal: TypeAlias = Sequence[tuple[Position, bytes]]


class Speed(Struct, frozen=True):
    """One line of the table."""

    what: str
    entries_per_s: float
    of_decoding: float
    """Share of the speed of decoding alone."""


def journal(entries: int) -> Journal:
    """Make a conversation of about so many entries."""
    profile = ModelProfile(model="bench", unit_samples=UNIT_SAMPLES)
    config = SessionConfig(model="bench", auto_response=True)
    opened = SessionOpened("bench", profile, config, Limits(), Way.DUPLEX, Dialect.GA, REDUCER_VERSION)
    facts: list[Body] = [
        opened,
        WorkerAssigned("worker", 1),
        ClientAttached("attachment", "gateway", 1, None, bytes(32)),
    ]
    made: list[tuple[Position, bytes]] = [((1, n), encode_entry(fact)) for n, fact in enumerate(facts)]
    audio = random.Random(1).randbytes(UNIT_BYTES)
    client_n = worker_n = unit = 0
    now_ms = acked_ms = 1_000
    while len(made) < entries:
        now_ms += 80
        client_n += 1
        append = AppendAudio(audio, f"event_{client_n}")
        made.append(((now_ms, 0), encode_entry(append, Stamp(Role.CLIENT, 1, client_n))))
        worker_n += 1
        made.append(((now_ms + 2, 0), encode_entry(_unit(unit, audio), Stamp(Role.WORKER, 1, worker_n))))
        unit += 1
        if now_ms - acked_ms >= ACK_EVERY_MS:
            acked_ms = now_ms
            client_n += 1
            ack = AckPlayback(played_ms=unit % UNITS_PER_TURN * 80)
            made.append(((now_ms + 3, 0), encode_entry(ack, Stamp(Role.CLIENT, 1, client_n))))
    return made


def _unit(unit: int, audio: bytes) -> ModelUnitCompleted:
    ends_turn = unit % UNITS_PER_TURN == UNITS_PER_TURN - 1
    return ModelUnitCompleted(
        unit=unit,
        epoch=0,
        first_sample=unit * UNIT_SAMPLES,
        input_samples=UNIT_SAMPLES,
        silence_samples=0,
        decision=Decision.TURN_END if ends_turn else Decision.SPEAK,
        token_ids=(unit, unit + 1),
        audio=audio,
    )


def _decode(entries: Journal) -> None:
    for _, data in entries:
        decode_entry(data)


def _reduce(entries: Journal) -> None:
    state = State()
    for position, data in entries:
        state = reduce_bytes(state, position, data).state
    assert state.clock.next_unit > 0


def _step(entries: Journal) -> None:
    fold = Fold()
    for position, data in entries:
        fold, _ = fold.step(position, data)
    assert fold.state.clock.next_unit > 0


def measure(entries: int, rounds: int) -> list[Speed]:
    """Time decoding alone, decoding and reducing, and a gateway's whole step with its digests."""
    made = journal(entries)
    runs = (_decode, _reduce, _step)
    decoding, reducing, stepping = (len(made) / _median_s(run, made, rounds) for run in runs)
    return [
        Speed("decode", decoding, 1.0),
        Speed("decode, reduce", reducing, reducing / decoding),
        Speed("decode, reduce, digests", stepping, stepping / decoding),
    ]


def _median_s(run: Callable[[Journal], None], entries: Journal, rounds: int) -> float:
    run(entries)
    times_s = []
    for _ in range(rounds):
        started_s = time.process_time()
        run(entries)
        times_s.append(time.process_time() - started_s)
    return statistics.median(times_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of the fold.")
    parser.add_argument("--entries", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for speed in measure(arguments.entries, arguments.rounds):
        print(
            f"{speed.what:<26} {speed.entries_per_s:>10,.0f} entries/s  {speed.of_decoding:.2f} of decoding"
        )


if __name__ == "__main__":
    main()
