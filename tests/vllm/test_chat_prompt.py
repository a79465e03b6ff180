from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.chat_prompt import ChatPrompt
from gpu_worker.engine.context_tokens import Answer, ContextTokens
from gpu_worker.engine.text import said_text
from session_core.items import Item, ItemStatus, ItemType, Mark, Part, Role

END = 256


class Utf8Tokenizer:
    """One token a byte of UTF-8, and one for the end; a template of one line a message."""

    special_tokens: Sequence[str] = ("<end>", "<start>")
    beginning = "<start>"
    ending = "<end>"

    def __init__(self, *, has_template: bool = True) -> None:
        self.has_template = has_template

    def encode(self, text: str) -> list[int]:
        """Gives a token a byte."""
        pieces = text.split("<end>")
        token_ids = list(pieces[0].encode())
        for piece in pieces[1:]:
            token_ids += [END, *piece.encode()]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Gives the text of bytes."""
        return bytes(token for token in token_ids if token != END).decode(errors="replace")

    def render(self, conversation: Sequence[Mapping[str, str]]) -> str | None:
        """Gives one line a message."""
        if not self.has_template:
            return None
        lines = [f"[{message['role']}]{message['content']}<end>" for message in conversation]
        return f"{''.join(lines)}[assistant]"


def item(item_id: str, role: Role, text: str, status: ItemStatus = ItemStatus.COMPLETED) -> Item:
    """Gives a message of one text."""
    kind = "output_text" if role is Role.ASSISTANT else "input_text"
    return Item(item_id, role=role, status=status, parts=(Part(kind, text=text),))


def built(
    history: Sequence[Item],
    held: ContextTokens | None = None,
    *,
    instructions: str = "",
    limit: int = 1_000,
    has_template: bool = True,
) -> tuple[str, str | None, ContextTokens]:
    """Gives a prompt as text with its ends marked, where it begins, and the context that it makes."""
    tokenizer = Utf8Tokenizer(has_template=has_template)
    prompts = ChatPrompt(tokenizer, [END])
    prompt = prompts.build(instructions, history, held or ContextTokens(), limit=limit)
    text = "|".join(tokenizer.decode(piece) for piece in _split(prompt.token_ids))
    return text, prompt.first_item, ContextTokens(prompt.token_ids, prompt.answers, prompt.first_item)


def _split(token_ids: Sequence[int]) -> list[list[int]]:
    pieces: list[list[int]] = [[]]
    for token in token_ids:
        if token == END:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


QUESTION = item("item_1", Role.USER, "hello")


def test_conversation_goes_through_the_template() -> None:
    """Instructions are the system's message; the assistant is next to speak."""
    text, first_item, _ = built([QUESTION], instructions="be brief")
    assert ("[system]be brief|[user]hello|[assistant]", "item_1") == (text, first_item)


def test_without_a_template_there_is_a_transcript() -> None:
    """A checkpoint without a template is given a plain transcript, in which answers end as they did."""
    history = [QUESTION, item("item_2", Role.ASSISTANT, "hi"), item("item_3", Role.USER, "and?")]
    text, _, _ = built(history, has_template=False)
    assert "<start>User: hello\nAssistant: hi|\nUser: and?\nAssistant:" == text


def test_nobody_writes_special_tokens() -> None:
    """Special tokens are taken out of texts, also those that taking out makes, and so are our own marks."""
    text, _, _ = built([item("item_1", Role.USER, "a<end>b\ue0000\ue001c")], instructions="x<st<end>art>y")
    assert "[system]xy|[user]ab0c|[assistant]" == text


def test_own_words_stand_as_they_were_said() -> None:
    """An answer that was heard whole is put in with the tokens that the model said, but for the end."""
    said = (200, 201, END)
    held = ContextTokens((1, *said), (Answer("resp_1", 1, 4),))
    history = [QUESTION, item("item_resp_1", Role.ASSISTANT, "whatever"), item("item_3", Role.USER, "and?")]
    _, _, context = built(history, held)
    assert (200, 201) == context.answer("resp_1")
    assert END == context.token_ids[context.answers[0].end]


@pytest.mark.parametrize(
    "answer",
    [
        item("item_resp_1", Role.ASSISTANT, "told", ItemStatus.INCOMPLETE),
        Item(
            "item_resp_1",
            role=Role.ASSISTANT,
            parts=(
                Part(
                    "output_audio",
                    text="told and more",
                    samples=9,
                    marks=(Mark(0, 4), Mark(5, 13)),
                    heard_samples=5,
                ),
            ),
        ),
    ],
    ids=["cancelled", "heard in part"],
)
def test_what_was_not_heard_whole_stands_as_it_was_heard(answer: Item) -> None:
    """Of an interrupted answer the context holds the text that was heard."""
    held = ContextTokens((1, 200, 201), (Answer("resp_1", 1, 3),))
    text, _, context = built([QUESTION, answer], held)
    assert ("[user]hello|[assistant]told|[assistant]", ()) == (text, context.answers)


def test_items_without_words_are_left_out() -> None:
    """Audio without a transcript, an answer not begun, calls and their outputs are no messages."""
    history = [
        Item("item_0", role=Role.USER, parts=(Part("input_audio", samples=100),)),
        Item("item_c", ItemType.FUNCTION_CALL, call_id="c", name="f", arguments="{}"),
        QUESTION,
        Item("item_2", role=Role.ASSISTANT, status=ItemStatus.IN_PROGRESS),
    ]
    assert "[user]hello|[assistant]" == built(history)[0]


def test_long_conversation_is_cut_to_half_and_stays_cut() -> None:
    """Beyond the limit whole turns go, oldest first, down to half; the next prompt begins there too."""
    history = [
        item(f"item_{number}", Role.ASSISTANT if number % 2 else Role.USER, f"{number:02}" * 5)
        for number in range(21)
    ]
    text, first_item, context = built(history, instructions="be brief", limit=300)
    assert text.startswith("[system]be brief|[user]")
    assert len(context.token_ids) <= 150
    assert text.endswith("[user]20202020202020202020|[assistant]".replace("2020202020" * 2, "20" * 5))
    more = [*history, item("item_21", Role.ASSISTANT, "yes"), item("item_22", Role.USER, "more")]
    assert first_item == built(more, context, instructions="be brief", limit=300)[1]


def test_message_beyond_the_limit_loses_its_beginning() -> None:
    """One message that is too long alone does not fail the session: the model gets its end."""
    text, _, context = built([item("item_1", Role.USER, "x" * 500 + "end")], limit=100)
    assert (100, True) == (len(context.token_ids), text.endswith("end|[assistant]"))


def test_items_that_went_from_the_history_do_not_matter() -> None:
    """If the first item of the window was deleted, the conversation begins where the history does."""
    held = ContextTokens((1,), (), "item_gone")
    assert "[user]hello|[assistant]" == built([QUESTION], held)[0]


@given(st.text(), st.integers(1, 5))
def test_pieces_of_text_are_the_text(text: str, size: int) -> None:
    """However an answer is cut into units, also within a character, its pieces are its text."""
    tokenizer = Utf8Tokenizer()
    token_ids = list(text.encode(errors="replace"))
    ends = range(size, len(token_ids) + size, size)
    pieces = [
        said_text(tokenizer, token_ids[: end - size], token_ids[end - size : end], last=end >= len(token_ids))
        for end in ends
    ]
    assert tokenizer.decode(token_ids) == "".join(pieces)


def test_half_a_character_waits_for_the_rest() -> None:
    """No piece shows a character before all of it is there; at the end of the answer it stays unreadable."""
    tokenizer = Utf8Tokenizer()
    first, rest = list("é".encode())
    assert "" == said_text(tokenizer, [], [first], last=False)
    assert "é" == said_text(tokenizer, [first], [rest], last=False)
    assert "\ufffd" == said_text(tokenizer, [], [first], last=True)
