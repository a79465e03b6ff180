"""A worker's settings; fixed for the life of its process."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from gpu_worker.turns.models import SpeechModelName


class WorkerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator decides about one worker. The defaults are for production; tests shorten the times."""

    worker_id: str
    """Unique among all processes that ever ran: a worker that comes back under its name is another worker."""
    model: str = "loopback"
    """See `registry.create_plugin`."""
    model_options: dict[str, str] = field(default_factory=dict)
    store_url: str = "redis://127.0.0.1:6379/0"
    durability: Literal["relaxed", "durable"] = "relaxed"
    capacity: int = 64
    """Sessions at once."""
    start_concurrency: int = 4
    """Contexts built at once: a worker that takes over many sessions goes on serving the others."""
    heartbeat_s: float = 1.0
    heartbeat_ttl_ms: int = 3_000
    claim_timeout_ms: int = 10_000
    """How long a slot is reserved for a session that is not assigned."""
    open_timeout_s: float = 60.0
    """Longest work on one context."""
    step_timeout_s: float = 30.0
    """Longest work on one unit, or on one rendered part, before the model counts as failed."""
    store_quiet_s: float = 1.0
    """
    A store that has not answered for so long may hold input that is not read: no silence stands in for it.
    """
    speech_model: SpeechModelName = "auto"
    """What turn detection hears with; see `turns.models`."""
    transcriber: str = "loopback"
    """See `transcription.create_transcriber`."""
    transcription_concurrency: int = 2
    """Utterances at once."""
    transcription_timeout_s: float = 60.0
    """Longest work on one utterance."""
    longest_transcribed_s: int = 300
    """Audio of an utterance is held for so long at most; a longer one has no transcript."""
    stop_timeout_s: float = 10.0
    """How long a leaving worker waits for its sessions to reach the end of a unit."""
