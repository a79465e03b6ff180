"""Counters of one gateway: what it holds, and what it did since it started."""

from __future__ import annotations

from msgspec import Struct


class Stats(Struct):
    """Gauges and counters; plain numbers, changed where things happen, read by `/health`."""

    websockets: int = 0
    """Accepted WebSockets, with or without a session."""
    sockets: int = 0
    """Connections that hold a session."""
    followers: int = 0
    """Journals that are being followed for connections."""
    pending_bytes: int = 0
    """Events that wait for sockets, all connections together."""
    opened: int = 0
    resumed: int = 0
    """Attachments claimed for clients that came back."""
    taken_over: int = 0
    """Those of them that were to replace a client that still held its session."""
    refused_upgrades: int = 0
    refused_openings: int = 0
    refused_messages: int = 0
    commands: int = 0
    lagged: int = 0
    """How often a connection's buffer was dropped because its client read too slowly."""
    evicted: int = 0
    """Connections closed because their client took nothing for too long."""
    reassigned: int = 0
    """Sessions that this gateway gave another worker."""
    suspected: int = 0
    """Attachments of dead gateways that this gateway declared lost."""
    deadlines: int = 0
