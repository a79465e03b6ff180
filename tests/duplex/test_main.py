from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duplex import bench
from duplex.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", [name for name, entry in COMMANDS.items() if not entry.passes_on])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`duplex COMMAND --help` loads the command's module and declares its arguments."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])

    assert 0 == caught.value.code
    assert f"duplex {command}" in capsys.readouterr().out


def test_help_loads_no_command() -> None:
    """The list of commands comes at once: neither a server nor an array library is imported for it."""
    script = (
        "import sys, duplex.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(','.join({'fastapi', 'numpy', 'websockets', 'redis', 'msgspec'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "" == done.stderr.strip()


def test_bench_passes_everything_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flags of a benchmark are read by nobody else, `--help` included, and its exit code is ours."""
    for name in ("load", "fold"):
        script = tmp_path / f"{name}_bench.py"
        script.write_text(f"import sys; print('{name}', sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr(bench, "FOLDER", tmp_path)

    codes = [
        main(["bench", "--sessions", "5", "--help"]),
        main(["bench", "fold", "x"]),
        main(["bench", "what"]),
    ]

    output = capfd.readouterr()
    assert [3, 3, 2] == codes
    assert "load ['--sessions', '5', '--help']\nfold ['x']\n" == output.out
    assert "duplex: no benchmark 'what'; here are: fold, load\n" == output.err


def test_config_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys and passwords are known to be set, and not known."""
    given = ("gateway.client_secret_key=sesame", 'gateway.api_keys=["sesame"]')
    code = main(
        ["config", "--redis", "redis://me:sesame@host:1/0", *(x for one in given for x in ("--set", one))]
    )
    shown = capsys.readouterr().out

    assert 0 == code
    assert "sesame" not in shown
    assert "redis://me:...@host:1/0" in shown


def test_config_shows_values_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line a setting; keys that are secrets are not shown."""
    monkeypatch.setenv("DUPLEX_GATEWAY_API_KEYS", '["very-secret"]')

    code = main(["config", "--set", "gateway.port=9000"])

    shown = capsys.readouterr().out
    lines = {line.split(" ")[0]: line for line in shown.splitlines()}
    assert 0 == code
    assert ["gateway.port", "=", "9000", "#", "flag"] == lines["gateway.port"].split()
    assert lines["gateway.api_keys"].endswith("# DUPLEX_GATEWAY_API_KEYS")
    assert "very-secret" not in shown


def test_a_bad_setting_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for the operator's mistake."""
    code = main(["config", "--set", "gateway.prot=1"])

    assert 2 == code
    assert "duplex: gateway.prot (--set): there is no such setting\n" == capsys.readouterr().err
