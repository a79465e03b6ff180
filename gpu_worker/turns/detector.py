"""The contract of a speech model: one for all sessions, it tells how likely a frame holds speech."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpu_worker.audio import Pcm


class SpeechModel(ABC):
    """
    A loaded model; lives as long as its stage. One thread calls it at a time, never the event loop's.

    It keeps nothing of a session: what it must remember of one is a row of `state_size` numbers that the
    caller holds, zeros before the first frame. A row's outcome does not depend on the other rows of the call.
    """

    name: str
    sample_rate_hz: int
    frame_samples: int
    state_size: int

    @abstractmethod
    def judge(self, states: Pcm, frames: Pcm) -> tuple[Pcm, Pcm]:
        """
        Judge the next frame of each of n sessions.

        Args:
            states: float32 [n, state_size], as the sessions' last frames left them.
            frames: float32 [n, frame_samples].

        Returns:
            The probabilities of speech, float32 [n], and the new states, float32 [n, state_size].
        """
