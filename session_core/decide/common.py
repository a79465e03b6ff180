"""What the deciding modules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from session_core import changes as ch
from session_core import commands as cmd
from session_core import events as ev
from session_core.config import Modality
from session_core.derive import received_samples
from session_core.errors import Cause, Refusal
from session_core.items import ItemStatus
from session_core.state import EndReason, Response, State

Changes: TypeAlias = Sequence[ch.Change]
NOTHING: Changes = ()

Decide: TypeAlias = Callable[[State, Any], Changes]
"""The form of every deciding function. The body's type is fixed by the reducer's table, which mypy cannot
follow."""


def new_id(prefix: str, state: State) -> str:
    """An id that every process derives alike: one entry gives at most one id of a kind."""
    return f"{prefix}_{state.position[0]}_{state.position[1]}"


def refused(body: Any, cause: Cause, message: str, param: str | None = None) -> Changes:
    """The client's command makes no sense here; it is told so, and nothing else happens."""
    return (ch.Refused(Refusal(cause, message, param), getattr(body, "event_id", None)),)


def new_response(
    state: State,
    *,
    requested: bool,
    options: cmd.ResponseOptions | None = None,
    first: ev.ModelUnitCompleted | None = None,
) -> Response:
    """
    A response that begins here, with the configuration in force and its own overrides.

    `first` is the unit with which the model began unasked. It may name the format of its audio.
    """
    options = options or cmd.ResponseOptions()
    modality = options.output_modality
    return Response(
        response_id=new_id("resp", state),
        output_format=(first and first.output_format) or state.config.output_format,
        modality=modality if isinstance(modality, Modality) else state.config.output_modality,
        options=options,
        requested=requested,
        after_sample=received_samples(state) if requested else state.clock.consumed_samples,
        output_tokens=len(first.token_ids) if first else 0,
    )


def rate_exhausted(state: State) -> str | None:
    """The name of a rate limit that allows no response now, or None."""
    for limit, rate in zip(state.pinned.limits.rate_limits, state.rates, strict=True):
        if rate.used >= limit.limit and state.now_ms < rate.window_from_ms + limit.window_s * 1000:
            return limit.name
    return None


def respond(state: State, body: Any) -> Changes:
    """Begin the response that `body` asks for besides, if none is in progress and the limits allow it."""
    if state.response is not None:
        return NOTHING
    exhausted = rate_exhausted(state)
    if exhausted is not None:
        return refused(body, Cause.LIMIT_REACHED, f"Rate limit reached for {exhausted}.")
    return (ch.ResponseBegan(new_response(state, requested=True)),)


def interrupt(state: State, reason: str, cause: str) -> Changes:
    """A new epoch; the response in progress, if any, ends with its last epoch before it."""
    return (*_stopped(state, "cancelled", reason, cause), ch.EpochAdvanced())


def end(state: State, reason: EndReason) -> Changes:
    """End the session, and before it the responses in progress."""
    failed = reason in (EndReason.ENGINE_ERROR, EndReason.INTERNAL_ERROR)
    status, why = ("failed", None) if failed else ("cancelled", "client_cancelled")
    sides = [ch.SideEnded(response.response_id, status, why, reason) for response in state.side]
    return (*_stopped(state, status, why, reason), *sides, ch.Ended(reason))


def _stopped(state: State, status: str, reason: str | None, cause: str) -> Changes:
    if state.response is None:
        return NOTHING
    ended = ch.ResponseEnded(status, reason, cause)
    if state.response.message is None:
        return (ended,)
    return (ch.MessageClosed(ItemStatus.INCOMPLETE), ended)
