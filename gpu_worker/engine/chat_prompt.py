"""A conversation as the tokens of a prompt, with the model's own words exactly as it said them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpu_worker.engine.backend import Tokenizer
from gpu_worker.engine.context_tokens import Answer, ContextTokens
from session_core.items import Item, ItemStatus, ItemType, Role

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Stand around the number of an exact answer in a rendered template; they are no part of any text."""
_PLACE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


class Prompt(NamedTuple):
    """A whole context, up to where the model is to speak."""

    token_ids: tuple[int, ...]
    answers: tuple[Answer, ...]
    first_item: str | None


class _Message(NamedTuple):
    role: str
    content: str
    item_id: str | None = None
    exact: tuple[int, ...] = ()
    """
    The tokens that the model said, if they stand in the context as they were said; `content` is their text.
    """
    response_id: str = ""


class ChatPrompt:
    """
    Makes prompts for one checkpoint. Pure: the same conversation and context give the same prompt.

    Texts go through the template together, so that they become the tokens that the model was trained on, and
    special tokens in them are taken out first: a user cannot write them. What the model said and what still
    stands in the context is put in as the tokens that it said: a text seldom becomes the same tokens again,
    and only the same ones are still in the KV cache.

    Args:
        tokenizer: the checkpoint's.
        stop_token_ids: what ends an answer; the template writes it itself.
    """

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stops = frozenset(stop_token_ids)
        special = sorted(filter(None, tokenizer.special_tokens), key=len, reverse=True)
        self._never_said = re.compile("|".join(map(re.escape, (*special, _OPEN, _CLOSE))))

    def build(self, instructions: str, history: Sequence[Item], held: ContextTokens, *, limit: int) -> Prompt:
        """
        Give the prompt for the next answer.

        A conversation beyond the limit loses its oldest turns, down to half of it, so that the context is not
        rebuilt with every answer from then on; where it begins is remembered (`first_item`). Instructions
        always stay.

        Args:
            instructions: the system's message; may be empty.
            history: the conversation, oldest first.
            held: the context so far.
            limit: tokens that the prompt may have.
        """
        system = [_Message("system", self._plain(instructions))] if instructions else []
        messages = self._from(held.first_item, [*self._messages(history, held)])
        prompt = self._prompt(system, messages)
        if len(prompt.token_ids) <= limit:
            return prompt
        while len(prompt.token_ids) > limit // 2 and (later := _without_oldest_turn(messages)):
            messages = later
            prompt = self._prompt(system, messages)
        if len(prompt.token_ids) <= limit:
            return prompt
        # One message alone is too long: the model gets its end.
        return Prompt(prompt.token_ids[-limit:], (), prompt.first_item)

    def _from(self, first_item: str | None, messages: list[_Message]) -> list[_Message]:
        for index, message in enumerate(messages):
            if message.item_id == first_item:
                return messages[index:]
        return messages

    def _messages(self, history: Sequence[Item], held: ContextTokens) -> Iterator[_Message]:
        """Give the messages that have words; calls and their outputs have none that this model knows of."""
        for item in history:
            if item.item_type is not ItemType.MESSAGE or item.role is None:
                continue
            text = self._plain("\n".join(part.heard_text or "" for part in item.parts).strip("\n"))
            response_id = item.item_id.removeprefix("item_")
            exact = self._exact(item, response_id, held)
            if exact or text:
                yield _Message(item.role.value, text, item.item_id, exact, response_id)

    def _exact(self, item: Item, response_id: str, held: ContextTokens) -> tuple[int, ...]:
        """Give the tokens of an answer that was heard whole and stands in the context; none otherwise."""
        whole = item.status is ItemStatus.COMPLETED and all(part.heard_samples is None for part in item.parts)
        if item.role is not Role.ASSISTANT or not whole:
            return ()
        said = held.answer(response_id)
        while said and said[-1] in self._stops:
            said = said[:-1]
        return said

    def _plain(self, text: str) -> str:
        while (cleaned := self._never_said.sub("", text)) != text:
            text = cleaned  # what stood around a special token may make another one
        return text

    def _prompt(self, system: list[_Message], messages: list[_Message]) -> Prompt:
        first_item = messages[0].item_id if messages else None
        exact = [message for message in messages if message.exact]
        pieces = _PLACE.split(self._rendered([*system, *messages], exact))
        places = [int(number) for number in pieces[1::2]]
        if places != list(range(len(exact))):
            # A template that leaves messages out or moves them: then texts have to do.
            return Prompt(self._encode(self._rendered([*system, *messages], [])), (), first_item)
        token_ids = self._encode(pieces[0])
        answers: list[Answer] = []
        for message, text in zip(exact, pieces[2::2], strict=True):
            answers.append(Answer(message.response_id, len(token_ids), len(token_ids) + len(message.exact)))
            token_ids += message.exact + self._encode(text)
        return Prompt(token_ids, tuple(answers), first_item)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def _rendered(self, messages: Sequence[_Message], exact: Sequence[_Message]) -> str:
        """Give the template's text, with a numbered place for each exact answer."""
        places = {id(message): f"{_OPEN}{number}{_CLOSE}" for number, message in enumerate(exact)}
        conversation = [
            {"role": message.role, "content": places.get(id(message), message.content)}
            for message in messages
        ]
        rendered = self._tokenizer.render(conversation)
        return self._transcript(conversation) if rendered is None else rendered

    def _transcript(self, conversation: list[dict[str, str]]) -> str:
        """Give a plain transcript, for checkpoints without a template for this conversation."""
        ending = {"assistant": self._tokenizer.ending}
        lines = [
            f"{message['role'].capitalize()}: {message['content']}{ending.get(message['role'], '')}\n"
            for message in conversation
        ]
        return f"{self._tokenizer.beginning}{''.join(lines)}Assistant:"


def _without_oldest_turn(messages: list[_Message]) -> list[_Message]:
    """Give the messages from the second user's message on; none if there is no second one."""
    for index, message in enumerate(messages[1:], start=1):
        if message.role == Role.USER.value:
            return messages[index:]
    return []
