"""The protocol's page against the code: nothing that a client may send or be sent is missing from it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

import msgspec

from api.codec import beta, client
from api.codec.formats import ENCODINGS
from api.codec.session import FLAT_KEYS, GA_KEYS
from session_core import wire
from session_core.errors import Cause

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\s]+)`", PAGE))


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def test_every_client_event_is_described() -> None:
    """Each event and alias that the decoder knows stands on the page."""
    assert set() == {_tag(kind) for kind in get_args(client.AnyClientEvent)} - CODE


def test_every_server_event_is_described() -> None:
    """Each event of the vocabulary stands on the page."""
    known = {
        _tag(kind)
        for _, kind in inspect.getmembers(wire, inspect.isclass)
        if issubclass(kind, wire.ServerEvent) and kind not in (wire.ServerEvent, wire.AddressedEvent)
    }
    assert set() == known - CODE
    names = {name.rsplit(".", 1)[0] for _, name in beta.NAMES.values()}
    assert set() == {name for name in names if name not in PAGE}


def test_every_refusal_of_the_core_is_described() -> None:
    """Each code that the fold gives stands on the page."""
    codes = {code for cause in Cause for code in cause.value}
    assert set() == codes - CODE


def test_every_code_of_the_codec_is_described() -> None:
    """Each code that the gateway gives by itself stands on the page."""
    api = Path(inspect.getfile(client)).parents[1]
    source = "".join(path.read_text(encoding="utf-8") for path in api.rglob("*.py"))
    given = set(
        re.findall(r'(?:CodecError|Told|OpeningRefused|ResumeFailed|invalid)\(\s*"([a-z_]+)"', source)
    )
    given |= set(re.findall(r'invalid\(\s*context,\s*"([a-z_]+)"', source))
    given |= {code for pair in re.findall(r'\.code\("([a-z_]+)", "([a-z_]+)"\)', source) for code in pair}
    assert len(given) > 20
    assert set() == given - CODE - {"invalid_api_key"}


def test_every_setting_and_format_is_described() -> None:
    """Each key of a dialect's own and each name of an encoding stands on the page."""
    assert set() == {*GA_KEYS, *FLAT_KEYS} - CODE - {"audio"}
    assert set() == set(ENCODINGS) - CODE
