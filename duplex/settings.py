"""
Everything an operator can set, as one tree. A process makes it once, at its start, and never changes it.

A value is looked for in flags, then in the environment (`DUPLEX_GATEWAY_PORT`), then in one TOML file
(`--config`, `DUPLEX_CONFIG`, or ./duplex.toml if there is one), then in the defaults below. A key that no
setting has is an error everywhere: a misspelt limit must not go unnoticed.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from api.settings import GatewaySettings
from gpu_worker.settings import WorkerSettings

from .errors import SettingError
from .keys import (
    CONFIG_VARIABLE,
    DEFAULT,
    Leaf,
    Resolved,
    Source,
    from_environment,
    from_file,
    leaves,
    resolve,
    to_text,
    value_of,
    variable,
)

FILE_NAME = "duplex.toml"
Flags: TypeAlias = Mapping[str, str]
"""Flag -> the key it sets."""

STORE_FLAGS: Flags = {"--redis": "redis"}


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The process tree of `duplex serve`."""

    gateways: int = 1
    """How many; each listens on a port of its own, counted up from `gateway.port`."""
    workers: int = 1
    store_port: int = 6390
    """Port of the embedded store on 127.0.0.1; 0 takes a free one."""
    data_dir: str = ""
    """Folder of the embedded store's data. Empty: a temporary one, gone when the service stops."""
    fsync: Literal["never", "everysec", "always"] = "everysec"
    """When the embedded store's data reach the disk."""
    restart_min_s: float = 0.2
    restart_max_s: float = 10.0
    """A process that ended is started again after this long, doubled each time up to here."""
    stop_timeout_s: float = 10.0
    """A process that does not end in this time is killed."""


class Settings(Struct, frozen=True, kw_only=True):
    """The whole tree."""

    redis: str = ""
    """
    The event store's URL. Empty: `serve` starts an embedded one, all other commands expect it on its port.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    serve: ServeSettings = ServeSettings()
    gateway: GatewaySettings = GatewaySettings()
    worker: WorkerSettings = WorkerSettings(worker_id="")

    @property
    def store_url(self) -> str:
        """Where the event store is."""
        return self.redis or f"redis://127.0.0.1:{self.serve.store_port}"

    def for_gateway(self) -> GatewaySettings:
        """What a gateway is started with."""
        return replace(self.gateway, store_url=self.store_url)

    def for_worker(self) -> WorkerSettings:
        """
        What a worker is started with; a new name each time, for a worker that comes back is another worker.
        """
        worker_id = f"worker-{secrets.token_urlsafe(9)}"
        return replace(self.worker, worker_id=worker_id, store_url=self.store_url)


# Filled in by `for_gateway` and `for_worker`: one store for all, said once.
_DERIVED = frozenset({"gateway.store_url", "worker.store_url", "worker.worker_id"})


def known_settings() -> dict[str, Leaf]:
    """Every key that can be set."""
    return {key: leaf for key, leaf in leaves(Settings()) if key not in _DERIVED}


def add_flags(parser: argparse.ArgumentParser, flags: Flags) -> None:
    """Add flags for some settings, and `--set` and `--config` for all."""
    for flag, key in flags.items():
        default = to_text(value_of(Settings(), key))
        parser.add_argument(
            flag, dest=f"setting {key}", metavar="VALUE", help=f"{key} (default: {default or 'none'})"
        )
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other setting",
    )
    parser.add_argument("--config", metavar="FILE", help=f"TOML file (default: {FILE_NAME}, if there is one)")


def from_arguments(
    arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> Resolved[Settings]:
    """
    The effective settings for a command line parsed with `add_flags`.

    Raises:
        SettingError: an unknown key or a bad value, in whichever source.
    """
    environment = os.environ if environment is None else environment
    known = known_settings()
    flags: dict[str, object] = {
        name.removeprefix("setting "): value
        for name, value in vars(arguments).items()
        if name.startswith("setting ") and value is not None
    }
    for assignment in arguments.assignments:
        key, _, value = assignment.partition("=")
        if key not in known:
            raise SettingError(key, "--set", "there is no such setting")
        flags[key] = value
    sources = [
        Source(flags, dict.fromkeys(flags, "flag"), text=True),
        from_environment(known, environment),
    ]
    path = _file(arguments.config or environment.get(CONFIG_VARIABLE))
    if path is not None:
        sources.append(from_file(known, path))
    return resolve(Settings(), sources)


def as_environment(
    resolved: Resolved[Settings], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """An environment in which a child process has the same settings, wherever this process found them."""
    environment = os.environ if environment is None else environment
    kept = {name: value for name, value in environment.items() if not name.startswith("DUPLEX_")}
    for key in known_settings():
        if resolved.origins[key] != DEFAULT:
            kept[variable(key)] = to_text(value_of(resolved.settings, key))
    return kept


def _file(named: str | None) -> Path | None:
    if named:
        return Path(named)
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None
