from __future__ import annotations

import pytest

from gpu_worker.errors import AudioFormatError, ModelError, UnknownModel, WorkerError
from gpu_worker.loopback import LoopbackPartsPlugin, LoopbackPlugin
from gpu_worker.registry import create_plugin, known_models


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loopback", LoopbackPlugin),
        ("loopback_parts", LoopbackPartsPlugin),
        ("gpu_worker.loopback:LoopbackPlugin", LoopbackPlugin),
    ],
)
def test_a_name_gives_its_plugin(name: str, expected: type) -> None:
    """Built-in names and import paths give a plugin."""
    assert type(create_plugin(name)) is expected


@pytest.mark.parametrize("name", ["", "gpt", "no.such.module:Plugin", "gpu_worker.loopback:Nothing"])
def test_an_unknown_name_says_what_there_is(name: str) -> None:
    """The error of a wrong name lists the right ones."""
    with pytest.raises(UnknownModel, match="loopback") as caught:
        create_plugin(name)
    assert name == caught.value.name
    assert set(known_models()) == set(caught.value.known)


def test_options_reach_the_plugin() -> None:
    """What the operator sets is the plugin's to judge."""
    with pytest.raises(ModelError):
        create_plugin("loopback", {"speed": "2"})


def test_all_errors_are_of_one_tree() -> None:
    """Whoever catches the worker's errors catches the audio's, too."""
    assert issubclass(AudioFormatError, WorkerError)
