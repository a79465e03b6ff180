"""A gateway's settings: one frozen object, made by the composition root; lives as long as the process."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from session_core.config import Limits


class SemanticVad(Struct, frozen=True):
    """What OpenAI's `semantic_vad` stands for here: silence after which a turn is over, by eagerness."""

    low_ms: int = 1_000
    medium_ms: int = 500
    high_ms: int = 300
    """`auto` is medium, as with OpenAI."""


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """Everything an operator can choose. Times of clients and deadlines; sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8000
    store_url: str = "redis://127.0.0.1:6379"
    durability: Literal["relaxed", "durable"] = "relaxed"
    limits: Limits = Limits()
    """Pinned in each session that this gateway opens."""

    api_keys: tuple[str, ...] = ()
    """Empty: anybody may connect."""
    allowed_origins: tuple[str, ...] = ()
    """Empty: any `Origin`. Requests without one (no browser) are always let through."""

    default_model: str = ""
    """For clients that name none. Empty: the only served model, if there is exactly one."""
    model_aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """Name that clients use -> name of a served model; `*` catches every other name."""
    accept_any_model: bool = True
    """OpenAI's way: while exactly one model is served, every name means it. Stock clients send a name of
    OpenAI's unasked, and a refusal would reject their whole update. The session echoes the real name."""
    voice_aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """The same for voices. A name without an alias is handed to the model and echoed as it is."""
    transcription_aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """The same for the models that transcribe the user's audio."""
    semantic_vad: SemanticVad = SemanticVad()

    client_secret_key: str = ""
    """Signs ephemeral keys. All gateways of a deployment need the same one, at least 32 random characters.
    Empty: a random one, so that this process alone takes the keys that it gives out."""

    handshake_timeout_s: float = 10.0
    """Duplex way: how long the first message may take."""
    attach_timeout_s: float = 5.0
    """How long the journal may take to answer an attachment."""
    drain_timeout_s: float = 5.0
    """How long an ended session's last events may take to reach the client."""
    slow_reader_timeout_s: float = 60.0
    """A client that takes nothing for so long is disconnected; it may resume."""
    detach_timeout_s: float = 3.0
    """At shutdown: how long a connection's last entries may take to reach the store."""

    max_frame_bytes: int = 22 << 20
    """One append of 15 MiB as base64, and what is around it."""
    pending_bytes: int = 256 << 10
    """Events that wait for a connection's socket; what does not fit is read from the journal again, later."""
    max_server_frame_bytes: int = 1 << 20

    ack_interval_s: float = 0.2
    """Playback acks of a connection are journaled at most this often; the newest wins."""
    heartbeat_interval_s: float = 1.0
    """The same for the client's heartbeats."""
    digest_events: int = 1_000
    snapshot_entries: int = 5_000
    """A connection saves a snapshot after so many entries, and when it ends. 0: never."""

    store_silence_s: float = 10.0
    """`/health` is 503 when the store has not answered for so long."""
    beat_s: float = 1.0
    beat_ttl_ms: int = 3_000
    reap_s: float = 0.5
    tick_s: float = 1.0
    """How often a connection's slow business is looked at: deadlines, a slow reader."""
    reap_concurrency: int = 8

    ws_ping_interval_s: float = 20.0
    ws_ping_timeout_s: float = 40.0
    """Generous: while the store takes nothing, sockets are not read, and their pongs are not seen."""
