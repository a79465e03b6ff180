"""
The contract between the worker and a model.

What two kinds of models taught about it: docs/adr/0004.

A *plugin* is one loaded model in one worker process; it serves many sessions and batches their work inside. A
*model session* is one session's place in it, opened with a context and closed when the session, its worker
generation or its context is over. Everything a model session holds is a cache of the journal:
`ModelPlugin.open` must be able to build the same from a `Context`, on another machine, after any unit.

One contract fits both clocks. Unit-clocked models (Moshi family, MiniCPM-o, Nemotron VoiceChat, loopback)
step once per unit of input, heard or silent. Commit-clocked models (Qwen3-Omni, a chain of recognition,
language model and voice) step from the moment a response is asked for until they end the turn: there a unit
is one piece of the answer, and only the first one carries input.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, Protocol

from gpu_worker.audio import Pcm as Pcm
from session_core.config import ModelProfile, SessionConfig
from session_core.events import Decision, ModelUnitCompleted, ToolCall
from session_core.items import Item
from session_core.state import Response
from session_core.units import UnitPlan


class UnitRecord(NamedTuple):
    """
    A unit as the journal holds it, but without its audio: contexts are built of tokens and codes.

    `muted`: the model said it, but no client heard of it.
    """

    completed: ModelUnitCompleted
    muted: bool


class Context(NamedTuple):
    """All that a model's context at a cursor is built from. A pure function of the journal."""

    session_id: str
    config: SessionConfig
    units: tuple[UnitRecord, ...]
    """The units of the window, oldest first; tokens and codes are taken as they are, never sampled again."""
    pcm: Pcm
    """
    Input of the window: samples [first_sample, first_sample + len(pcm)), up to what the last unit consumed.

    Input that was dropped before a unit took it is silence here.
    """
    first_sample: int
    history: tuple[Item, ...]
    epoch: int
    """The epoch at the cursor; if it is past the last unit's, what that unit was saying is void."""


class UnitInput(NamedTuple):
    """What the model is given for one unit."""

    plan: UnitPlan
    pcm: Pcm
    """[unit_samples]: `plan.input_samples` of input, then silence. Not to be written to."""
    interrupted: bool
    """The epoch advanced since the last unit: stop saying what was being said."""
    history: tuple[Item, ...]
    config: SessionConfig
    response: Response | None
    """The response in progress, with the client's wishes for it in `options`."""


class UnitOutput(NamedTuple):
    """What came out of one unit. Nothing of it may be lost: with it another owner goes on exactly here."""

    decision: Decision
    token_ids: tuple[int, ...] = ()
    codes: bytes = b""
    """The plugin's own record: whatever besides the token ids its context or codec is rebuilt from."""
    text: str = ""
    audio: Pcm | None = None
    """Output of this unit; None with a decision to speak: `ModelSession.render` gives it in parts."""
    calls: tuple[ToolCall, ...] = ()
    """Function calls, after what the unit says."""


class RenderedPart(NamedTuple):
    """A piece of a unit's audio, in order. `last`: the unit is whole."""

    audio: Pcm
    last: bool


class Spoken(NamedTuple):
    """
    What a model said so far in the turn that it is in: how many samples of output, and the last of them.
    """

    samples: int
    tail: Pcm


class SideRequest(NamedTuple):
    """A response outside the conversation: asked for beside it, from items of its own or from the history."""

    session_id: str
    response: Response
    """With the client's wishes for it in `options`."""
    items: tuple[Item, ...]
    """What it answers to, oldest first."""
    config: SessionConfig
    said: str
    """What a lost worker said of it already: the model gives what follows. Empty for one that begins."""


class SidePiece(NamedTuple):
    """A piece of a response outside the conversation. `last`: with it the response is whole."""

    text: str = ""
    audio: Pcm | None = None
    """At the model's rate; not asked for where the response is to be text."""
    calls: tuple[ToolCall, ...] = ()
    """Only with the last piece."""
    tokens: int = 0
    last: bool = True


class ModelSession(ABC):
    """
    One session's place in a model, from a context on.

    Calls never overlap, except that `render` runs beside `step`.
    """

    @abstractmethod
    async def step(self, unit: UnitInput) -> UnitOutput:
        """
        Work on the next unit. Units come in order, each once.

        Raises:
            ModelError: this session cannot go on in this worker; others can.
        """

    def render(self, unit: ModelUnitCompleted, first_sample: int) -> AsyncGenerator[RenderedPart, None]:
        """
        Give the audio of a unit that had none, from a sample of the unit's output on, at the model's rate.

        Only for models that render later. The unit may have been worked on by another owner. The generator
        is closed early where nobody needs the rest.
        """
        raise NotImplementedError(f"{type(self).__name__} renders nothing")

    def spoken(self, samples: int) -> Spoken | None:  # noqa: ARG002 - for those that override it
        """
        Tell what was said so far of the turn that the context ends in; None if it ends between two turns.

        Asked at most once, before the first unit, where the client's rate is not the model's: the worker's
        converter goes on without a seam if it has the last `samples` of the output. A model that cannot give
        them keeps this default, and a failover in the middle of its speech costs the client 5 ms at most.
        """
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Give up the place; nothing of the session stays in the model."""


class ModelPlugin(ABC):
    """One loaded model. Lives as long as its worker process."""

    profile: ModelProfile
    window_units: int = 750
    """How many of the last units a context needs."""
    window_samples: int = 0
    """How much of the last input a context needs, in samples at the model's rate."""

    @property
    def capacity(self) -> int | None:
        """Sessions that there is room for, once the model is loaded; None: as many as the operator says."""
        return None

    async def start(self) -> None:  # noqa: B027 - most models load when they are made
        """Load; the worker claims no session before this returns."""

    async def failed(self) -> str:
        """Wait until the model can serve nobody any more, and tell why: the worker leaves. Most never do."""
        await asyncio.Event().wait()
        return ""

    @abstractmethod
    async def open(self, context: Context) -> ModelSession:
        """
        Build the context and give the session its place.

        Raises:
            ModelError: this session cannot be served here.
        """

    def respond(self, request: SideRequest) -> AsyncGenerator[SidePiece, None]:
        """
        Give a response outside the conversation; it leaves no trace in any model session.

        Several run at once, beside everything else. The generator is closed early where the client cancels.

        Raises:
            ModelError: this response fails, and nothing else.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no responses outside a conversation")

    async def aclose(self) -> None:  # noqa: B027 - the process's end unloads most models
        """Unload; every model session is closed before."""


class PluginFactory(Protocol):
    """Makes a plugin from its operator's options; what a model's name stands for in the registry."""

    def __call__(self, options: Mapping[str, str], /) -> ModelPlugin:
        """
        Give the plugin, not yet started.

        Raises:
            ModelError: the options do not fit.
        """
        ...
