from __future__ import annotations

from replay_tools.reader import fold_steps
from replay_tools.render import Renderer, Style, state_json
from session_core import commands as cmd
from tests.replay_tools.journals import START_MS, Script, conversation, opened

SESSION = "sess_01_" + "A" * 22


def lines(script: Script, style: Style) -> list[str]:
    """The whole listing of a journal."""
    renderer = Renderer(style, START_MS)
    shown = [line for step in fold_steps(script.entries) for line in renderer.feed(step)]
    return [*shown, *renderer.flush()]


def test_a_conversation_fits_on_a_page() -> None:
    """Runs of steady audio are one line each; whatever changes something else stands alone."""
    shown = lines(conversation(SESSION), Style())

    assert 14 == len(shown)
    assert (
        "     2  1700000000040-0      +0.040s  -       "
        "WorkerAssigned worker=worker-1 generation=1  -> Assigned" == shown[1]
    )
    assert (
        "     4  1700000000120-0      +0.120s  …       "
        "6 x AppendAudio 0.48 s, 6 x ModelUnitCompleted listen 0.48 s  (to 15)"
    ) == shown[3]
    assert (
        "    18  1700000000680-0      +0.680s  w1#7    "
        "ModelUnitCompleted #6 speak 1920+0 samples epoch=0 token_ids=2 3840 B 80 ms"
        "  -> UnitTaken, ResponseBegan, MessageOpened, Spoken"
    ) == shown[6]
    assert "    35  1700000001360-0      +1.360s  c1#16   CloseSession  -> Ended" == shown[12]
    assert shown[13].endswith("refused (session ended)")


def test_full_shows_every_entry() -> None:
    """One line an entry, none left out."""
    script = conversation()

    assert len(script.entries) == len(lines(script, Style(full=True)))


def test_events_stand_below_their_entry_with_their_numbers() -> None:
    """Numbered events by number, addressed ones by attachment, those of a run in one line."""
    shown = lines(conversation(), Style(events=True))

    assert "        to att-1: session.created" in shown
    assert "        6: response.speak" in shown
    assert "        8..10: 3 x response.output_audio.delta" in shown


def test_a_stale_entry_says_so() -> None:
    """What the fold refused is told from what merely had no effect."""
    script = opened()
    script.client(cmd.Heartbeat(), generation=2)
    script.digest()

    shown = lines(script, Style())

    assert shown[-2].endswith("c2#1    Heartbeat  refused (stale)")
    assert shown[-1].endswith("no effect")


def test_a_clients_mistake_names_its_cause() -> None:
    """A refused command is an effect: an error event."""
    script = opened()
    script.client(cmd.CancelResponse())

    assert lines(script, Style())[-1].endswith("CancelResponse  -> Refused (NOTHING_TO_CANCEL)")


def test_a_live_listing_holds_no_run_back_for_ever() -> None:
    """With a longest run, a line comes each time it is reached."""
    script = opened()
    script.hear(20)

    runs = [line for line in lines(script, Style(run_ms=400)) if "  …  " in line]

    assert 4 == len(runs)


def test_a_state_is_json_with_bytes_as_lengths() -> None:
    """Hashes and codes do not clutter the state."""
    text = state_json(conversation().fold.state).decode()

    assert '"confirmed_hash": "<32 B>"' in text
    assert '"phase": "ended"' in text
