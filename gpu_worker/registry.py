"""
Which plugin serves a model: the built-in ones, those that installed packages announce, or an import path.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points

from gpu_worker.causal_lm import causal_lm
from gpu_worker.errors import UnknownModel
from gpu_worker.frames_lm import frames_lm
from gpu_worker.loopback import LoopbackPartsPlugin, LoopbackPlugin
from gpu_worker.plugin import ModelPlugin, PluginFactory

ENTRY_POINT_GROUP = "duplex.models"
"""A package announces its model here: name = "package.module:factory"."""

_BUILT_IN: Mapping[str, PluginFactory] = {
    "causal_lm": causal_lm,
    "frames_lm": frames_lm,
    "loopback": LoopbackPlugin,
    "loopback_parts": LoopbackPartsPlugin,
}


def known_models() -> list[str]:
    """Names of the models that are installed."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def create_plugin(name: str, options: Mapping[str, str] | None = None) -> ModelPlugin:
    """
    Make the plugin of a model; it is not started.

    Args:
        name: a built-in model, one that a package announces, or "package.module:attribute" of a
            `PluginFactory`.
        options: the operator's options for it.

    Raises:
        UnknownModel: nothing is installed under this name.
        ModelError: the model does not take these options.
    """
    return _factory(name)(options or {})


def _factory(name: str) -> PluginFactory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        factory: PluginFactory = point.load()
        return factory
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise UnknownModel(name, known_models())
    try:
        imported: PluginFactory = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownModel(name, known_models(), str(error)) from error
    return imported
