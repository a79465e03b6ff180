"""Tools as clients write them. Functions only: what would have to be called from here is refused by name."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec.context import CodecContext
from api.codec.values import check_json, invalid, missing
from api.errors import CodecError
from session_core.config import JsonObject, Tool

ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]


class WireFunction(Struct, frozen=True):
    """A function, flat as in the Realtime dialects or under `function` as in chat completions."""

    name: ToolName | None = None
    description: str | None = None
    parameters: JsonObject | None = None


class WireTool(WireFunction, frozen=True):
    """A tool; `type` other than `function` is refused by name."""

    type: str = "function"
    function: WireFunction | None = None


class WireChoice(Struct, frozen=True):
    """A tool that the model has to call."""

    type: str
    name: ToolName | None = None
    function: WireFunction | None = None


Tools: TypeAlias = tuple[WireTool, ...] | UnsetType | None
Choice: TypeAlias = str | WireChoice | UnsetType | None


def tools(given: Tools, context: CodecContext, param: str) -> tuple[Tool, ...] | UnsetType:
    """
    Give the functions that the model may call; None means none.

    Raises:
        CodecError: a tool that is no function, has no name, or a name that another one has.
    """
    if isinstance(given, UnsetType):
        return UNSET
    functions = tuple(_tool(one, context, f"{param}[{index}]") for index, one in enumerate(given or ()))
    if len({function.name for function in functions}) < len(functions):
        message = f"Invalid value: two of '{param}' have one name."
        raise invalid(context, "invalid_session_config", message, param)
    return functions


def _tool(given: WireTool, context: CodecContext, param: str) -> Tool:
    if given.type != "function":
        raise _unsupported(f"{param}.type")
    said: WireFunction = given.function or given
    if said.name is None:
        raise missing(context, f"{param}.name", "invalid_session_config")
    check_json(said.parameters, context, f"{param}.parameters")
    return Tool(said.name, said.description or "", said.parameters or {})


def tool_choice(given: Choice, context: CodecContext, param: str) -> str | JsonObject | UnsetType:
    """
    Give what is said about calling tools; None means the default.

    Raises:
        CodecError: no such choice.
    """
    if isinstance(given, UnsetType):
        return UNSET
    if given is None:
        return "auto"
    if isinstance(given, str):
        if given not in ("auto", "none", "required"):
            message = f"Invalid value: '{param}' is not one of 'auto', 'none', 'required' and a function."
            raise invalid(context, "invalid_session_config", message, param)
        return given
    if given.type != "function":
        raise _unsupported(f"{param}.type")
    name = given.function.name if given.function is not None else given.name
    if name is None:
        raise missing(context, f"{param}.name", "invalid_session_config")
    return {"type": "function", "name": name}


def _unsupported(param: str) -> CodecError:
    message = "Only tools of type 'function' are served; MCP servers are not called from here."
    return CodecError("unsupported_tool_type", message, param=param)
