"""
A TLS front, as an operator puts one before the gateways: takes wss and https, passes them on in the clear.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class TlsFront(NamedTuple):
    """
    A standing front.

    Attributes:
        url: where it listens.
        certificate: what a client must trust.
    """

    url: str
    certificate: Path


@asynccontextmanager
async def tls_front(target_port: int, folder: Path) -> AsyncIterator[TlsFront]:
    """
    Stand before a port of this machine as long as the context lasts, with a certificate of its own.

    Args:
        target_port: where connections are passed on to.
        folder: for the certificate and its key.
    """
    certificate, key = folder / "front.crt", folder / "front.key"
    await asyncio.to_thread(_make_certificate, certificate, key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(_pass(reader, back), _pass(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield TlsFront(f"https://localhost:{server.sockets[0].getsockname()[1]}", certificate)
    finally:
        server.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _make_certificate(certificate: Path, key: Path) -> None:
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=localhost", "-addext", names)
    subprocess.run([*command, *files], check=True, capture_output=True)
