from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from duplex.errors import SettingError
from duplex.keys import Resolved
from duplex.serve import FLAGS
from duplex.settings import Settings, add_flags, as_environment, from_arguments, known_settings


def resolved(*arguments: str, environment: Mapping[str, str] | None = None) -> Resolved[Settings]:
    """The settings of a `serve` command line."""
    parser = argparse.ArgumentParser()
    add_flags(parser, FLAGS)
    return from_arguments(parser.parse_args(arguments), environment or {})


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a duplex.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_defaults_need_nothing() -> None:
    """No file, no environment, no flag: 127.0.0.1:8000, and the embedded store."""
    found = resolved()

    assert Settings() == found.settings
    assert {"default"} == set(found.origins.values())
    assert ("127.0.0.1", 8000) == (found.settings.gateway.host, found.settings.gateway.port)


def test_flags_win_over_environment_over_file_over_default(empty_folder: Path) -> None:
    """The order of precedence, one setting for each step of it."""
    (empty_folder / "duplex.toml").write_text(
        '[gateway]\nport = 1\nhost = "file"\ndefault_model = "file"\n[serve]\nworkers = 1\n'
    )
    environment = {"DUPLEX_GATEWAY_PORT": "2", "DUPLEX_GATEWAY_HOST": "environment"}

    found = resolved("--port", "3", environment=environment)

    gateway = found.settings.gateway
    assert (3, "environment", "file") == (gateway.port, gateway.host, gateway.default_model)
    keys = ("gateway.port", "gateway.host", "gateway.default_model", "gateway.beat_s")
    assert ["flag", "DUPLEX_GATEWAY_HOST", "duplex.toml", "default"] == [found.origins[key] for key in keys]


def test_a_file_is_named_by_flag_before_variable_before_habit(empty_folder: Path) -> None:
    """`--config`, then DUPLEX_CONFIG, then ./duplex.toml."""
    for number, name in enumerate(("duplex.toml", "variable.toml", "flag.toml"), 1):
        (empty_folder / name).write_text(f"[gateway]\nport = {number}\n")
    environment = {"DUPLEX_CONFIG": "variable.toml"}

    ports = [
        found.settings.gateway.port
        for found in (
            resolved(),
            resolved(environment=environment),
            resolved("--config", "flag.toml", environment=environment),
        )
    ]

    assert [1, 2, 3] == ports


def test_set_reaches_every_setting() -> None:
    """Nested limits too; what no setting has is refused by name."""
    assert (
        5 == resolved("--set", "gateway.limits.max_history_items=5").settings.gateway.limits.max_history_items
    )
    with pytest.raises(SettingError) as caught:
        resolved("--set", "gateway.limits.max_history=5")

    assert "gateway.limits.max_history" == caught.value.key


def test_one_store_url_serves_all() -> None:
    """The store's URL is said once; a gateway's and a worker's own are no settings."""
    settings = resolved("--redis", "redis://store:6379").settings

    assert {"redis://store:6379"} == {settings.for_gateway().store_url, settings.for_worker().store_url}
    assert {"gateway.store_url", "worker.store_url"}.isdisjoint(known_settings())


def test_a_worker_has_a_new_name_each_time() -> None:
    """A worker that comes back is another worker."""
    settings = resolved().settings

    assert settings.for_worker().worker_id != settings.for_worker().worker_id


def test_a_child_process_gets_the_same_settings(empty_folder: Path) -> None:
    """Whatever the sources were, the environment carries them on; variables of others stay."""
    (empty_folder / "settings.toml").write_text(
        '[gateway]\napi_keys = ["a", "b"]\n[gateway.model_aliases]\n"*" = "loopback"\n'
    )
    parent = resolved(
        "--port", "3", "--config", "settings.toml", environment={"DUPLEX_WORKER_CAPACITY": "7", "HOME": "/h"}
    )

    environment = as_environment(parent, {"DUPLEX_CONFIG": "settings.toml", "HOME": "/h"})

    assert parent.settings == resolved(environment=environment).settings
    assert "/h" == environment["HOME"]
    assert "DUPLEX_CONFIG" not in environment
