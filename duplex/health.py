"""One HTTP question, without an HTTP library: what does this URL answer?"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

TIMEOUT_S = 2.0


async def http_status(url: str) -> int | None:
    """The status of a GET; None if nobody answers in time."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(
                    f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
                )
                _, status, *_ = (await reader.readline()).split(maxsplit=2)
                return int(status)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return None
