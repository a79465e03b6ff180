from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.errors import OutboxFull
from duplex.outbox import Outbox


def drain(outbox: Outbox) -> list[bytes]:
    """Everything that is to be sent now."""
    pieces = []
    while (piece := outbox.take()) is not None:
        pieces.append(piece)
    return pieces


def test_pieces_are_sent_once_in_order() -> None:
    """What was taken is not taken again."""
    outbox = Outbox()
    outbox.put(b"ab")
    outbox.put(b"cd")

    assert [b"ab", b"cd"] == drain(outbox)
    assert [] == drain(outbox)


def test_a_rewind_sends_again_from_the_receipt_on() -> None:
    """Whole pieces before the receipt are gone, the piece under it is cut."""
    outbox = Outbox()
    for piece in (b"aabb", b"ccdd", b"eeff"):
        outbox.put(piece)
    drain(outbox)

    outbox.rewind(6)

    assert [b"dd", b"eeff"] == drain(outbox)


def test_a_full_outbox_refuses() -> None:
    """Only what is unacknowledged counts."""
    outbox = Outbox(limit_bytes=4)
    outbox.put(b"abcd")
    with pytest.raises(OutboxFull):
        outbox.put(b"e")

    outbox.acknowledge(4)
    outbox.put(b"efgh")

    assert 8 == outbox.end


def test_without_receipts_nothing_sent_is_kept() -> None:
    """OpenAI's way gives none, so the outbox must not grow."""
    outbox = Outbox(limit_bytes=4)
    for _ in range(5):
        outbox.put(b"abcd")
        drain(outbox)
        outbox.forget_sent()

    assert 20 == outbox.end


@given(st.data())
def test_whatever_breaks_the_server_gets_every_byte_once(data: st.DataObject) -> None:
    """Over any number of breaks, each at any place, receipts and rewinds join to exactly what was put in."""
    outbox, received, everything = Outbox(), bytearray(), bytearray()
    for number in range(data.draw(st.integers(1, 12))):
        piece = bytes([number]) * data.draw(st.integers(1, 6))
        outbox.put(piece)
        everything += piece
        sent = b"".join(drain(outbox))
        match data.draw(st.sampled_from(["arrives", "arrives and is acknowledged", "breaks"])):
            case "arrives":
                received += sent
            case "arrives and is acknowledged":
                received += sent
                outbox.acknowledge(len(received))
            case _:
                received += sent[: data.draw(st.integers(0, len(sent)))]
                outbox.rewind(len(received))
    received += b"".join(drain(outbox))

    assert everything == received
