"""Authentication of a request: API keys, ephemeral keys, an allow-list of origins. Needs no socket."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

from api.admission.ephemeral import Claims, ClientSecrets
from api.settings import GatewaySettings

KEY_PROTOCOL = "openai-insecure-api-key."
"""Browsers cannot set headers; OpenAI's SDK offers the key as a subprotocol."""
REALTIME_PROTOCOL = "realtime"


class Admission(NamedTuple):
    """Whether a request may come in: not if `refusal` is a status. `claims` are those of an ephemeral key."""

    refusal: HTTPStatus | None
    claims: Claims | None = None


def admit(
    headers: Mapping[str, str],
    subprotocols: Sequence[str],
    settings: GatewaySettings,
    client_secrets: ClientSecrets,
    now_s: float,
) -> Admission:
    """Judge a request by its origin and its key."""
    origin = headers.get("origin")
    if origin is not None and settings.allowed_origins and origin not in settings.allowed_origins:
        return Admission(HTTPStatus.FORBIDDEN)
    offered = _offered(headers, subprotocols)
    claims = None if offered is None else client_secrets.read(offered, now_s)
    if settings.api_keys and claims is None and not _known(offered, settings.api_keys):
        return Admission(HTTPStatus.UNAUTHORIZED)
    return Admission(None, claims)


def accepted_subprotocol(subprotocols: Sequence[str]) -> str | None:
    """Choose what to echo: only `realtime`, never the one that carries a key."""
    return REALTIME_PROTOCOL if REALTIME_PROTOCOL in subprotocols else None


def _offered(headers: Mapping[str, str], subprotocols: Sequence[str]) -> str | None:
    scheme, _, key = (headers.get("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    for name in subprotocols:
        if name.startswith(KEY_PROTOCOL):
            return name.removeprefix(KEY_PROTOCOL)
    return None


def _known(offered: str | None, keys: Iterable[str]) -> bool:
    """Compare with every key, in a time that tells nothing about any of them."""
    if offered is None:
        return False
    given = offered.encode()
    return sum(hmac.compare_digest(given, key.encode()) for key in keys) > 0
