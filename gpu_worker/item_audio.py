"""The audio of user items that are to be transcribed, held until they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpu_worker.input_audio import InputAudio, InputReader
from session_core import changes as ch
from session_core.config import Transcription
from session_core.derive import ms_to_samples, received_samples
from session_core.items import Item
from session_core.state import State


class AudioRange(NamedTuple):
    """Input samples [first, first + samples) at the model's rate."""

    first: int
    samples: int
    wanted: Transcription
    """What the client asked for when it committed them; a later update is for later items."""


class ItemAudio:
    """
    Which audio a session's items have whose transcription is due, and what may become an item.

    Lives as long as the worker follows the session; holds nothing where nothing is transcribed.

    Args:
        longest_s: audio of an item that lies further back than this is not held.
    """

    def __init__(self, longest_s: int) -> None:
        self._longest_s = longest_s
        self._due: dict[str, AudioRange] = {}
        self._reader: InputReader | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return self._reader is None

    def take(self, changes: Iterable[ch.Change], state: State, audio: InputAudio) -> None:
        """Fold what one entry changed; `state` is the state after it."""
        for change in changes:
            match change:
                case ch.AudioCommitted(item=item) if item.item_id in state.transcribing:
                    self._due[item.item_id] = _range(item, state.config.transcription)
                case ch.Transcribed(item_id=item_id) | ch.ItemDeleted(item_id=item_id):
                    self._due.pop(item_id, None)
                case _:
                    pass
        self._hold(state, audio)

    def find(self, item_id: str) -> AudioRange | None:
        """Give where a due item's audio lies."""
        return self._due.get(item_id)

    def _hold(self, state: State, audio: InputAudio) -> None:
        needed = [due.first for due in self._due.values()]
        if state.config.transcription is not None:
            needed.append(_uncommitted(state))
        if not needed:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            return
        oldest = received_samples(state) - self._longest_s * audio.rate_hz
        first = max(0, oldest, min(needed))
        if self._reader is None:
            self._reader = audio.reader(first)
        else:
            self._reader.forget(first)


def _range(item: Item, wanted: Transcription | None) -> AudioRange:
    part = item.parts[0]
    return AudioRange(part.first_sample, part.samples, wanted or Transcription(""))


def _uncommitted(state: State) -> int:
    """Give the first sample that the next item may hold."""
    buffer, detection = state.input, state.config.turn_detection
    if detection is None or buffer.speech_from is None:
        return buffer.committed_samples
    return max(
        buffer.committed_samples, buffer.speech_from - ms_to_samples(state, detection.prefix_padding_ms)
    )
