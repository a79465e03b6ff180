"""
Deadlines, derived from the state.

Whoever sees one pass appends `DeadlinePassed`; the fold checks it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from session_core.events import DeadlineKind
from session_core.state import Phase, State


class Deadline(NamedTuple):
    """Something that happens at `due_ms` of the store's clock unless the session moves on before."""

    due_ms: int
    kind: DeadlineKind


def deadlines(state: State) -> Iterator[Deadline]:
    """Give every deadline that the session has at this position; none before it opened or after it ended."""
    pinned, config, attachment = state.pinned, state.config, state.attachment
    if state.phase is not Phase.OPEN:
        return
    limits = pinned.limits
    maximum_ms = pinned.opened_ms + limits.max_session_ms
    yield Deadline(maximum_ms, DeadlineKind.MAXIMUM)
    if not state.warned:
        yield Deadline(maximum_ms - limits.warn_before_ms, DeadlineKind.WARNING)
    detection, ledger = config.turn_detection, state.playback
    if detection is not None and detection.idle_timeout_ms is not None and _waits_for_user(state):
        yield Deadline(ledger.ends_ms + detection.idle_timeout_ms, DeadlineKind.SILENCE)
    if attachment.attached:
        idle_ms = limits.idle_timeout_ms if config.idle_timeout_s is None else config.idle_timeout_s * 1000
        yield Deadline(state.active_ms + idle_ms, DeadlineKind.IDLE)
    else:
        yield Deadline(attachment.since_ms + limits.disconnect_grace_ms, DeadlineKind.GRACE)


def _waits_for_user(state: State) -> bool:
    """The last response was played out, and the user has neither spoken, written nor committed since."""
    quiet = state.response is None and state.input.speech_from is None and not state.input.text
    last = state.history[-1].item_id if state.history else ""
    return quiet and state.playback.item_id != "" and last == state.playback.item_id


def next_deadline(state: State) -> Deadline | None:
    """Give the earliest deadline, or None."""
    return min(deadlines(state), default=None)
