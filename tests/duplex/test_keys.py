from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct, field

from duplex.errors import SettingError
from duplex.keys import Source, from_environment, from_file, leaves, resolve, to_text, variable


class Inner(Struct, frozen=True):
    port: int = 8000
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)


class Root(Struct, frozen=True):
    url: str = ""
    quiet: bool = False
    limit: int | None = None
    inner: Inner = Inner()


KNOWN = dict(leaves(Root()))


def text(**values: str) -> Source:
    """A source of strings; `__` stands for the dot in a key."""
    keyed = {key.replace("__", "."): value for key, value in values.items()}
    return Source(keyed, dict.fromkeys(keyed, "test"), text=True)


def test_every_leaf_has_a_key_and_a_variable() -> None:
    """Keys are dotted, variables are their upper case."""
    keys = ["url", "quiet", "limit", "inner.port", "inner.ratio", "inner.names", "inner.aliases"]

    assert keys == list(KNOWN)
    assert "DUPLEX_INNER_PORT" == variable("inner.port")


def test_an_earlier_source_wins() -> None:
    """Sources are laid over one another, and each value knows its origin."""
    first = Source({"inner.port": "1"}, {"inner.port": "flag"}, text=True)
    second = Source({"inner.port": 2, "url": "x"}, {"inner.port": "file", "url": "file"}, text=False)

    resolved = resolve(Root(), [first, second])

    assert Root(url="x", inner=Inner(port=1)) == resolved.settings
    assert ("flag", "file", "default") == tuple(
        resolved.origins[key] for key in ("inner.port", "url", "quiet")
    )


def test_text_is_parsed_as_its_type() -> None:
    """Numbers, booleans, lists and tables can be written in a variable."""
    source = text(
        quiet="true", limit="5", inner__ratio="0.25", inner__names='["a", "b"]', inner__aliases='{"x": "y"}'
    )

    expected = Root(quiet=True, limit=5, inner=Inner(ratio=0.25, names=("a", "b"), aliases={"x": "y"}))
    assert expected == resolve(Root(), [source]).settings


def test_text_survives_the_way_to_a_child_process() -> None:
    """What `to_text` writes is read as the same value."""
    settings = Root(url="[x", quiet=True, limit=None, inner=Inner(1, 0.5, ("a",), {"b": "c"}))
    written = {
        "url": to_text(settings.url),
        "quiet": to_text(settings.quiet),
        "limit": to_text(settings.limit),
        "inner__port": to_text(settings.inner.port),
        "inner__names": to_text(settings.inner.names),
        "inner__aliases": to_text(settings.inner.aliases),
    }

    assert settings == resolve(Root(), [text(**written)]).settings


def test_a_bad_value_names_its_key_and_origin() -> None:
    """The error says what to mend, and where."""
    with pytest.raises(SettingError) as caught:
        resolve(Root(), [text(inner__port="many")])

    assert ("inner.port", "test") == (caught.value.key, caught.value.origin)


def test_an_unknown_variable_is_an_error() -> None:
    """Only our own prefix is looked at, and all of it has to be known."""
    assert {"url": "x"} == from_environment(KNOWN, {"DUPLEX_URL": "x", "HOME": "/"}).values
    with pytest.raises(SettingError) as caught:
        from_environment(KNOWN, {"DUPLEX_ULR": "x"})

    assert "DUPLEX_ULR" == caught.value.key


def test_a_file_holds_tables(tmp_path: Path) -> None:
    """A table is a branch of the tree, unless the setting itself is a table."""
    path = tmp_path / "duplex.toml"
    path.write_text('url = "x"\n[inner]\nport = 1\n[inner.aliases]\n"gpt-realtime" = "loopback"\n')

    resolved = resolve(Root(), [from_file(KNOWN, path)])

    assert Root("x", inner=Inner(1, aliases={"gpt-realtime": "loopback"})) == resolved.settings
    assert str(path) == resolved.origins["inner.port"]


@pytest.mark.parametrize(
    ("content", "key"), [("[inner]\nprot = 1", "inner.prot"), ("[innner]\nport = 1", "innner.port")]
)
def test_an_unknown_key_of_a_file_is_an_error(tmp_path: Path, content: str, key: str) -> None:
    """The whole dotted key is named."""
    path = tmp_path / "duplex.toml"
    path.write_text(content)

    with pytest.raises(SettingError) as caught:
        from_file(KNOWN, path)

    assert (key, str(path)) == (caught.value.key, caught.value.origin)


def test_a_file_that_is_missing_or_broken_is_an_error(tmp_path: Path) -> None:
    """A file that was asked for has to be there and has to be TOML."""
    broken = tmp_path / "broken.toml"
    broken.write_text("port =")

    for path in (tmp_path / "none.toml", broken):
        with pytest.raises(SettingError):
            from_file(KNOWN, path)


def test_a_file_is_strict_about_types(tmp_path: Path) -> None:
    """TOML has types: a port in quotes is a mistake."""
    path = tmp_path / "duplex.toml"
    path.write_text('[inner]\nport = "1"\n')

    with pytest.raises(SettingError):
        resolve(Root(), [from_file(KNOWN, path)])
