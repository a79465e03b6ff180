"""Transcription as a stage of its own: one transcriber in a worker, for the items of all its sessions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import NamedTuple

from gpu_worker.audio import Pcm
from gpu_worker.errors import TranscriptionFailed, UnknownModel


class Utterance(NamedTuple):
    """What is to be transcribed, and the client's wishes for it."""

    pcm: Pcm
    """float32 [samples], mono, full scale 1."""
    sample_rate_hz: int
    model: str
    language: str | None
    prompt: str | None


class Transcriber(ABC):
    """
    A loaded recogniser; lives as long as its worker. Several threads call it at once, never the event loop's.
    """

    def start(self) -> None:  # noqa: B027 - most load when they are made
        """Load; blocking work, once."""

    @abstractmethod
    def transcribe(self, utterance: Utterance) -> str:
        """
        Give the text; blocking work.

        Raises:
            TranscriptionFailed: this utterance has no transcript. Any other error counts as the same.
        """


class LoopbackTranscriber(Transcriber):
    """A test double: it says how long the utterance is."""

    def transcribe(self, utterance: Utterance) -> str:
        """Give a text such as "[2.1 s of speech]"."""
        return f"[{len(utterance.pcm) / utterance.sample_rate_hz:.1f} s of speech]"


_BUILT_IN: Mapping[str, Callable[[], Transcriber]] = {"loopback": LoopbackTranscriber}


def create_transcriber(name: str) -> Transcriber:
    """
    Make a transcriber; it is not started.

    Args:
        name: a built-in one, or "package.module:attribute" of what makes one.

    Raises:
        UnknownModel: nothing is installed under this name.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownModel(name, sorted(_BUILT_IN))
    try:
        factory: Callable[[], Transcriber] = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownModel(name, sorted(_BUILT_IN), str(error)) from error
    return factory()


class TranscriptionStage:
    """
    Runs the transcriber off the event loop, a few utterances at once. Lives as long as its worker.

    An utterance that takes too long is given up, but its thread cannot be: until it ends, it takes one of the
    places. Sessions wait for a place on their own; nothing else of theirs waits.

    Args:
        transcriber: not yet started.
        concurrency: utterances at once.
        timeout_s: longest work on one utterance.
    """

    def __init__(self, transcriber: Transcriber, concurrency: int, timeout_s: float) -> None:
        self._transcriber = transcriber
        self._places = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix="transcription")

    async def start(self) -> None:
        """Load the transcriber."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._transcriber.start)

    async def transcribe(self, utterance: Callable[[], Awaitable[Utterance]]) -> str:
        """
        Give the text of an utterance, once there is a place for it.

        Args:
            utterance: gives it; called when it is needed, so that no audio waits for a place.

        Raises:
            TranscriptionFailed: there is none.
        """
        await self._places.acquire()
        try:
            heard = await utterance()
            work = asyncio.get_running_loop().run_in_executor(
                self._executor, self._transcriber.transcribe, heard
            )
        except BaseException:
            self._places.release()
            raise
        work.add_done_callback(self._leave_place)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(work)
        except TimeoutError as error:
            raise TranscriptionFailed("it took too long") from error
        except TranscriptionFailed:
            raise
        except Exception as error:
            raise TranscriptionFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _leave_place(self, work: asyncio.Future[str]) -> None:
        self._places.release()
        if not work.cancelled():
            work.exception()  # an utterance that was given up may fail later, and nobody asks
