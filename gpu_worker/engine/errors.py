"""
What can go wrong in the engine, by who is at fault.

ModelError (gpu_worker.errors)
└── EngineError
    ├── EngineDied        the engine's process is gone: every session of this worker is over (us)
    ├── StreamClosed      the stream was closed, or a unit of it was cancelled, and it was used again (us)
    ├── TooLong           the context would exceed what the model can hold (the session)
    └── EngineRefused     the engine took the request and gave it up, or does not accept it (the session)
"""

from __future__ import annotations

from gpu_worker.errors import ModelError


class EngineError(ModelError):
    """Base of the engine's errors; the worker journals each as a failure of the session's model."""


class EngineDied(EngineError):
    """The engine's process is gone. Nothing can be opened in this worker any more: it has to leave."""


class StreamClosed(EngineError):
    """The stream is over. After this a new one has to be opened."""


class TooLong(EngineError):
    """`tokens` in the context, where the model holds `limit`."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"{tokens} tokens in the context, and the model holds {limit}")
        self.tokens = tokens
        self.limit = limit


class EngineRefused(EngineError):
    """The engine does not accept a request, or gave it up."""
