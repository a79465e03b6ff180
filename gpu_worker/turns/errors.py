"""
What can go wrong in turn detection.

WorkerError
├── DetectionFailed          the speech model broke: no session of this stage is heard any more (us)
└── SpeechModelUnavailable   the operator asked for a model whose packages are not installed
"""

from __future__ import annotations

from gpu_worker.errors import WorkerError


class DetectionFailed(WorkerError):
    """Speech is no longer detected in this worker; `reason` is for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"turn detection failed: {self.reason}"


class SpeechModelUnavailable(WorkerError):
    """The speech model `name` cannot be loaded; `reason` says what is missing."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"speech model {self.name!r}: {self.reason}"
