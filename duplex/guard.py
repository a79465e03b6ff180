"""
Guards: no process of the tree outlives the one that started it, however that one ends.

A guard is a shell that waits on a pipe whose other end only this process holds. When this process dies, by a
kill -9 too, the pipe closes and the guard ends what it guards. Portable, unlike a parent-death signal, and
the guarded program need not know: the embedded store is not ours to change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SCRIPT = """
exec 2>/dev/null
read -r _
sleep "$2"
kill -TERM "$1"
patience=100
while kill -0 "$1"; do
    [ "$patience" -gt 0 ] || exec kill -KILL "$1"
    patience=$((patience - 1))
    sleep 0.1
done
"""


@asynccontextmanager
async def guarded(pid: int, *, delay_s: float = 0.0) -> AsyncIterator[None]:
    """
    Guard a process for as long as the context lasts.

    Args:
        pid: a child of this process.
        delay_s: how long it may outlive this process, so that others can finish with its help.
    """
    # In a session of its own: an interrupt from the terminal is for this process to pass on, in order.
    guard = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _SCRIPT, "guard", str(pid), f"{delay_s:g}"),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            guard.kill()
        await guard.wait()
