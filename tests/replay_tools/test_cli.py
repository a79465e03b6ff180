from __future__ import annotations

import argparse
import asyncio
import json

import pytest

from eventstore import Entry, EventStore
from replay_tools.cli import add_arguments, run
from session_core import commands as cmd
from session_core.journal import Role, Stamp, encode_entry
from tests.replay_tools.journals import Script, conversation, opened, serving


async def replay(store: EventStore, *arguments: str) -> int:
    """Run a command line on an open store."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return await run(parser.parse_args(arguments), store)


async def test_ls_lists_every_session(capsys: pytest.CaptureFixture[str]) -> None:
    """Oldest first, live and ended ones, one line each below the head."""
    ended, live = conversation(), opened()

    async with serving(ended, live) as store:
        code = await replay(store, "ls")

    head, first, second = capsys.readouterr().out.splitlines()
    assert 0 == code
    assert ["SESSION", "STARTED", "MODEL"] == head.split()[:3]
    assert [ended.session_id, "loopback", "duplex", "ended", "36", "20", "closed"] == [
        first.split()[column] for column in (0, 2, 3, 4, 6, 7, 10)
    ]
    assert [live.session_id, "open"] == [second.split()[column] for column in (0, 4)]


async def test_ls_gives_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, for machines."""
    script = conversation()

    async with serving(script) as store:
        await replay(store, "ls", "--json")

    summary = json.loads(capsys.readouterr().out)
    assert (script.session_id, 1400, 1, 1, "closed") == tuple(
        summary[key]
        for key in ("session_id", "duration_ms", "worker_generation", "attachment_generation", "end_reason")
    )


async def test_ls_names_what_is_wrong_with_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that cannot be folded does not spoil the listing."""
    script = conversation()

    async with serving(script) as store:
        await store.trim(script.session_id, script.entries[4].id)
        code = await replay(store, "ls")

    assert 0 == code
    assert "no snapshot stands in for them" in capsys.readouterr().out


async def test_show_keeps_to_its_range(capsys: pytest.CaptureFixture[str]) -> None:
    """From and to, both included."""
    script = conversation()

    async with serving(script) as store:
        code = await replay(store, "show", script.session_id, "--full", "--from", "+400ms", "--to", "seq:8")

    numbers = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert 0 == code
    assert list(range(11, 21)) == numbers


async def test_state_is_that_at_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """After outbound event 7 the model speaks; at the end the session is over."""
    script = conversation()

    async with serving(script) as store:
        await replay(store, "state", script.session_id, "--at", "seq:7")
        speaking = json.loads(capsys.readouterr().out)
        await replay(store, "state", script.session_id)
        ended = json.loads(capsys.readouterr().out)

    assert (7, "open", True) == (
        speaking["seq"],
        speaking["phase"],
        speaking["response"]["message"] is not None,
    )
    assert ("ended", None) == (ended["phase"], ended["response"])


async def test_state_before_the_beginning_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no state before the first entry."""
    script = conversation()

    async with serving(script) as store:
        code = await replay(store, "state", script.session_id, "--at", "0-1")

    assert 1 == code
    assert "no entry at or before this cursor\n" == capsys.readouterr().err


async def test_verify_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """0 verified, 1 failed, 2 nothing to compare; over several sessions a failure outweighs the rest."""
    good, bare, bad = conversation(), opened(), _damaged()

    async with serving(good, bare, bad) as store:
        codes = [await replay(store, "verify", script.session_id) for script in (good, bad, bare)]
        everything = await replay(store, "verify", "--all")

    assert [0, 1, 2] == codes
    assert 1 == everything
    assert f"{bad.session_id}  FAILED" in capsys.readouterr().out


async def test_an_unknown_session_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Said on stderr, in words."""
    script = conversation()

    async with serving() as store:
        code = await replay(store, "show", script.session_id)

    assert 1 == code
    assert f"no journal for {script.session_id}\n" == capsys.readouterr().err


async def test_tail_goes_on_with_what_is_appended(capsys: pytest.CaptureFixture[str]) -> None:
    """An entry appended while tail runs is shown."""
    script = opened()
    shown = ""

    async with serving(script) as store:
        tail = asyncio.create_task(replay(store, "tail", script.session_id))
        await store.append(script.session_id, encode_entry(cmd.CloseSession(), Stamp(Role.CLIENT, 1, 1)))
        async with asyncio.timeout(20):
            while "CloseSession" not in shown:
                await asyncio.sleep(0)
                shown += capsys.readouterr().out
        tail.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tail

    assert shown.splitlines()[-1].endswith("CloseSession  -> Ended")


def _damaged() -> Script:
    script = conversation()
    data = bytearray(script.entries[5].data)
    data[50] ^= 1
    script.entries[5] = Entry(script.entries[5].id, bytes(data))
    return script


async def test_lint_finds_a_sound_session_sound(capsys: pytest.CaptureFixture[str]) -> None:
    """The events of a conversation are in order, and counted."""
    script = conversation()

    async with serving(script) as store:
        code = await replay(store, "lint", script.session_id)

    assert 0 == code
    assert "20 events, in order\n" == capsys.readouterr().out


async def test_lint_tells_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each broken rule is a line, and the exit code is 1."""
    monkeypatch.setattr("replay_tools.cli.violations", lambda events: ["response.done (number 9): twice"])
    script = conversation()

    async with serving(script) as store:
        code = await replay(store, "lint", script.session_id)

    assert 1 == code
    assert "response.done (number 9): twice\n" == capsys.readouterr().out
