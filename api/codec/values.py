"""Small values that several events share: JSON that is kept unread, modalities, limits on tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from api.codec.context import CodecContext
from api.errors import CodecError
from session_core.config import Dialect, Modality, Way

Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)] | Literal["inf"]
Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
Modalities: TypeAlias = tuple[str, ...] | UnsetType | None

_MAX_DEPTH = 32
_MAX_INT = 2**63


def missing(context: CodecContext, param: str, duplex_code: str = "bad_event") -> CodecError:
    """The error of a parameter that must be there."""
    code = context.code("missing_required_parameter", duplex_code)
    return CodecError(code, f"Missing required parameter: '{param}'.", param=param)


def unknown(param: str) -> CodecError:
    """The error of a parameter of another dialect."""
    return CodecError("unknown_parameter", f"Unknown parameter: '{param}'.", param=param)


def invalid(context: CodecContext, duplex_code: str, message: str, param: str) -> CodecError:
    """The error of a value that cannot be taken."""
    return CodecError(context.code("invalid_value", duplex_code), message, param=param)


def token_limit(given: int | str | UnsetType | None) -> int | UnsetType | None:
    """Give the limit that `max_output_tokens` means; None: none."""
    return None if isinstance(given, str) else given


def modality(given: Modalities, model: str, context: CodecContext, param: str) -> Modality | UnsetType:
    """
    Give what responses are made of: audio always has its text, so both together mean audio.

    GA clients name one of them. Beta's and duplex clients name both for audio.

    Raises:
        CodecError: no such combination, or the model does not answer in text alone.
    """
    if given is None or given is UNSET:
        return UNSET
    names = set(given)
    both_allowed = context.way is Way.DUPLEX or context.dialect is Dialect.BETA
    if names == {"audio"} or (names == {"audio", "text"} and both_allowed):
        return Modality.AUDIO
    if names != {"text"}:
        message = f"Invalid value: '{param}' is not a combination of modalities that is served."
        raise invalid(context, "invalid_session_config", message, param)
    profile = context.profile(model)
    if profile is not None and not profile.supports_text:
        message = "This model does not answer in text alone."
        raise invalid(context, "text_only_turn_unsupported", message, param)
    return Modality.TEXT


def check_json(value: Any, context: CodecContext, param: str) -> None:
    """Refuse JSON that could not be kept: nested too deeply, or with integers of more than 64 bits."""
    level: Sequence[Any] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
            elif isinstance(one, int) and not -_MAX_INT <= one < _MAX_INT:
                message = f"Invalid value: '{param}' holds a number that is too large."
                raise invalid(context, "bad_event", message, param)
        if not inner:
            return
        level = inner
    raise invalid(context, "bad_event", f"Invalid value: '{param}' is nested too deeply.", param)
