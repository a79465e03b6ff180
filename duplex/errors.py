"""
What can go wrong in the command line and its client.

    DuplexError
    ├── SettingError           the operator: a setting that is unknown or has a bad value
    ├── StartFailed            a process of the tree ended before the service was ready
    ├── AudioFileError         the user: a file that cannot be talked
    └── ClientError            the conversation:
        ├── SessionRefused     the server did not open the session, or not resume it
        ├── ConnectionLost     the connection broke and could not be made again
        └── OutboxFull         the server acknowledges no input
"""

from __future__ import annotations


class DuplexError(Exception):
    """The root of this package's errors."""


class SettingError(DuplexError):
    """A setting that cannot be taken: its key (or variable), where it stands, and why."""

    def __init__(self, key: str, origin: str, reason: str) -> None:
        super().__init__(key, origin, reason)
        self.key = key
        self.origin = origin
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} ({self.origin}): {self.reason}"


class StartFailed(DuplexError):
    """A process of the tree ended, or did not answer, before the service was ready."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} did not start: {self.reason}"


class AudioFileError(DuplexError):
    """A file that is no 16-bit PCM WAV, mono or stereo, or holds no sound."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ClientError(DuplexError):
    """The root of the client's errors."""


class SessionRefused(ClientError):
    """The server answered with an error instead of a session."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ConnectionLost(ClientError):
    """The connection is gone: its session cannot be resumed, or nobody answered for too long."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"connection lost: {self.reason}"


class OutboxFull(ClientError):
    """More input is unacknowledged than the client keeps for resending."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"more than {self.limit_bytes} bytes of input are unacknowledged"
