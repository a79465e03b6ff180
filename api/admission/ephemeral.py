"""
Ephemeral keys: what a server of the operator's gets for a browser, which must not see an API key.

A key is its claims, signed: any gateway with the same secret accepts it, and nothing is stored. It opens any
number of sessions until it expires, each with the settings that it was made with.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets

import msgspec
from msgspec import Struct

from session_core.config import Dialect

PREFIX = "ek_"
MAX_SESSION_BYTES = 4_096
"""Of the session object in a key: a key has to fit into a header line of 8 KiB."""
_SIGNATURE_BYTES = 32


class Claims(Struct, frozen=True):
    """
    What a key says of itself.

    Attributes:
        expires_s: unix seconds at which it ceases to open sessions.
        dialect: how `session` is spelled.
        session: the session object to begin with, as JSON.
    """

    expires_s: int
    dialect: Dialect
    session: msgspec.Raw


class ClientSecrets:
    """Makes and reads ephemeral keys; lives as long as the gateway."""

    def __init__(self, key: str) -> None:
        self._key = key.encode() or secrets.token_bytes(32)

    def sign(self, claims: Claims) -> str:
        """Give the key for these claims: characters that a header and a subprotocol may hold."""
        payload = msgspec.json.encode(claims)
        return PREFIX + base64.urlsafe_b64encode(self._signature(payload) + payload).rstrip(b"=").decode()

    def read(self, key: str, now_s: float) -> Claims | None:
        """Give the claims of a key, or None if it is none of ours or has expired."""
        body = key.removeprefix(PREFIX)
        if body == key:
            return None
        try:
            signed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        except (binascii.Error, ValueError):
            return None
        signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(payload)):
            return None
        try:
            claims = msgspec.json.decode(payload, type=Claims)
        except msgspec.DecodeError:
            return None  # Signed by a version that said it otherwise.
        return claims if now_s < claims.expires_s else None

    def _signature(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")
