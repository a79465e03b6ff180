"""A checkpoint's tokenizer, as Hugging Face's `transformers` loads it. Needs what vLLM brings along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import TemplateError
from transformers import AutoTokenizer


class HfTokenizer:
    """
    Implements `backend.Tokenizer`; lives as long as the engine.

    Args:
        checkpoint: a folder, or a name that the hub knows.
    """

    def __init__(self, checkpoint: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        added = self._tokenizer.get_added_vocab()
        self.special_tokens: Sequence[str] = tuple({*self._tokenizer.all_special_tokens, *added})
        self.beginning: str = self._tokenizer.bos_token or ""
        self.ending: str = self._tokenizer.eos_token or ""
        self.ending_id: int | None = self._tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Give the tokens of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Give the text of tokens, as it is: nothing is tidied, so that pieces fit together."""
        return str(
            self._tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def render(self, conversation: Sequence[Mapping[str, str]]) -> str | None:
        """
        Give a conversation by the template; None if there is none.

        Some templates refuse a system's message, or two in a row of one role: None then too.
        """
        if not self._tokenizer.chat_template:
            return None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(conversation), tokenize=False, add_generation_prompt=True
                )
            )
        except TemplateError:
            return None
