"""
What can go wrong in a worker, by who is at fault.

WorkerError
├── AudioFormatError      the journal holds audio that does not fit its format (us: the gateway should have
│                         refused it)
├── ModelError            the model cannot go on with one session (the model; others go on)
├── TranscriptionFailed   one utterance has no transcript (the transcriber; everything else goes on)
└── UnknownModel          the operator asked for a model that is not installed
"""

from __future__ import annotations

from collections.abc import Sequence


class WorkerError(Exception):
    """Base of what the worker and its models raise."""


class AudioFormatError(WorkerError, ValueError):
    """
    Audio or a format that cannot be converted.

    `param` names what is wrong ("encoding", "sample_rate_hz" or "audio"), `reason` says why.
    """

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(param, reason)
        self.param = param
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.param}: {self.reason}"


class ModelError(WorkerError):
    """
    The model cannot open a session or go on with it; other sessions are not touched.

    `reason` is for operators: it is journaled, and never told to clients.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class TranscriptionFailed(WorkerError):
    """One utterance has no transcript; `reason` is for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class UnknownModel(WorkerError):
    """There is no plugin under this name; `known` are the names that there are."""

    def __init__(self, name: str, known: Sequence[str], reason: str = "") -> None:
        super().__init__(name, known, reason)
        self.name = name
        self.known = tuple(known)
        self.reason = reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        known = ", ".join(self.known)
        return f"no model {self.name!r}{why}; known: {known}, or an import path package.module:attribute"
