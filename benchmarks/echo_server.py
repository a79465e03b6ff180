"""
The measure of all costs: a bare WebSocket echo on the gateway's own HTTP server, framework and codec.

    python -m benchmarks.echo_server PORT

It decodes each append (JSON, base64) into a Struct and encodes an audio delta back: what no gateway can save.
"""

from __future__ import annotations

import argparse

import msgspec
import uvloop
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from api.main import make_server
from api.settings import GatewaySettings


class Append(msgspec.Struct, tag_field="type", tag="input_audio_buffer.append"):
    """What the client sends."""

    audio: bytes


class Delta(msgspec.Struct, tag_field="type", tag="response.output_audio.delta"):
    """What it gets back."""

    delta: bytes


_decode = msgspec.json.Decoder(Append).decode
_encode = msgspec.json.Encoder().encode
app = FastAPI()


@app.get("/health")
async def health() -> str:
    """The server is up."""
    return "ok"


@app.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    """Answer every frame until the client is gone."""
    await socket.accept()
    try:
        while True:
            append = _decode(await socket.receive_text())
            await socket.send_text(_encode(Delta(append.audio)).decode())
    except WebSocketDisconnect:
        return


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description="A bare WebSocket echo.")
    parser.add_argument("port", type=int)
    server = make_server(app, GatewaySettings(port=parser.parse_args().port))
    uvloop.run(server.serve())


if __name__ == "__main__":
    main()
