"""`causal_lm` through a real worker on a real engine: what clients are told, and what the context holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from gpu_worker.causal_lm import CausalLmPlugin, CausalLmSettings
from gpu_worker.engine.context_tokens import ContextTokens, context_tokens, decode_fed
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling
from gpu_worker.plugin import UnitRecord
from session_core import commands as cmd
from session_core.config import Modality, SessionConfig
from session_core.items import Item, Part, Role
from tests.gpu_worker import client as gateway
from tests.gpu_worker.client import Scene
from tests.vllm.roles import Settled, SharedCausal

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSION_ID = "sess_44_foQB8IBNWszu35otcHR0Ng"


class Chat(Settled):
    """A client that types, and waits for each answer."""

    async def ask(self, text: str, options: cmd.ResponseOptions | None = None, *, wait: bool = True) -> None:
        """Puts a question and asks for an answer, at a time of its own: ids are the same in every run."""
        for command in (
            cmd.CreateItem(Item("", role=Role.USER, parts=(Part("input_text", text=text),))),
            cmd.CreateResponse(options or cmd.ResponseOptions()),
        ):
            self._scene.clock.now_ms += 100
            await self.command(command)
        await self.until(lambda state: state.response is not None)
        if wait:
            await self.until(lambda state: state.response is None)

    @property
    def answers(self) -> list[str]:
        """The text of each answer in the history."""
        assistant = [item for item in self.state.history if item.role is Role.ASSISTANT]
        return ["".join(part.text or "" for part in item.parts) for item in assistant]

    def context(self, units: int | None = None) -> ContextTokens:
        """Gives the context after so many units; after all of them if None."""
        return context_tokens(UnitRecord(unit, muted=False) for unit in self.units()[:units])


@asynccontextmanager
async def chat(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, session_id: str = SESSION_ID, **config: object
) -> AsyncIterator[Chat]:
    """Runs a session of texts on one worker."""
    monkeypatch.setattr(gateway, "new_session_id", lambda: session_id)
    scene = Scene()
    settings = replace(
        SessionConfig(plugin.profile.model, output_modality=Modality.TEXT, max_output_tokens=24), **config
    )
    async with scene.store() as store, scene.worker(plugin):
        talk = Chat(scene, store, settings, plugin.profile)
        await talk.open()
        yield talk


@pytest.fixture
def plugin(settings: CausalLmSettings, engine: Engine) -> CausalLmPlugin:
    """The plugin of a worker on the shared engine."""
    return SharedCausal(settings, engine)


async def test_answer_is_what_the_model_says_to_the_prompt(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """Units of eight tokens are together one request's answer, and their texts together its text."""
    async with chat(monkeypatch, plugin, instructions="Be brief.") as talk:
        await talk.ask("Who are you?")
        units = talk.units()
        prompt = decode_fed(units[0].codes)
        assert prompt is not None
        text = (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert tuple(engine.tokenizer.encode(text)) == prompt.token_ids
        stream = engine.open("one", prompt.token_ids)
        said = await stream.append((), UnitSampling(max_tokens=24))
        await stream.aclose()
        assert [said[:8], said[8:16], said[16:]] == [unit.token_ids for unit in units]
        assert engine.tokenizer.decode(said) == "".join(unit.text for unit in units)
        assert ["".join(unit.text for unit in units)] == talk.answers


async def test_only_what_is_new_is_computed_at_each_turn(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """Each question continues the context of the answer before it: all that was said stays as it was said."""
    async with chat(monkeypatch, plugin) as talk:
        for question in ("One?", "Two?", "Three?"):
            await talk.ask(question)
        assert [0, 1, 2, 3, 4, 5, 6, 7, 8] == [unit.unit for unit in talk.units()]
        for first in (3, 6):
            fed = decode_fed(talk.units()[first].codes)
            assert fed is not None
            assert len(talk.context(first).token_ids) == fed.keep
        assert 1 == engine.stats.streams


async def test_wishes_of_one_response_count_for_it_alone(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """Instructions, length and temperature of a response override the session's, once."""
    async with chat(monkeypatch, plugin, instructions="Be brief.") as talk:
        await talk.ask("One?", cmd.ResponseOptions(instructions="Be long.", max_output_tokens=3))
        await talk.ask("Two?", cmd.ResponseOptions(temperature=1.0, max_output_tokens=8))
        await talk.ask("Three?")
        by_response: dict[str | None, list[int]] = {}
        for unit in talk.units():
            by_response.setdefault(unit.answers, []).extend(unit.token_ids)
        assert [3, 8, 24] == [len(tokens) for tokens in by_response.values()]
        first, second = (decode_fed(talk.units()[number].codes) for number in (0, 1))
        assert first is not None
        assert second is not None
        assert "Be long." in engine.tokenizer.decode(first.token_ids)
        assert "Be brief." in engine.tokenizer.decode(talk.context().token_ids)
        assert "Be long." not in engine.tokenizer.decode(talk.context().token_ids)


async def test_cancelled_answer_stands_in_the_context_as_it_was_told(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """After a cancel the next answer's context holds the words that the client was told, and no others."""
    async with chat(monkeypatch, plugin, max_output_tokens=200) as talk:
        await talk.ask("One?", wait=False)
        await talk.until(lambda state: state.clock.next_unit >= 2)
        await talk.command(cmd.CancelResponse())
        await talk.until(lambda state: state.response is None)
        told = talk.answers[0]
        await talk.ask("Two?", cmd.ResponseOptions(max_output_tokens=8))
        fed = decode_fed(talk.units()[-1].codes)
        assert fed is not None
        ready = talk.context(len(talk.units()) - 1).after(fed, None, ()).token_ids
        expected = (
            f"<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n{told}<|im_end|>\n"
            "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
        )
        assert tuple(engine.tokenizer.encode(expected)) == ready
        stream = engine.open("one", ready)
        assert await stream.append((), UnitSampling(max_tokens=8)) == talk.units()[-1].token_ids
        await stream.aclose()


async def test_long_conversation_loses_its_oldest_turns(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """A conversation beyond the window goes on: instructions and newest turns stay; rarely is it cut."""
    async with chat(monkeypatch, plugin, instructions="Be brief.") as talk:
        for number in range(12):
            await talk.ask(f"Number {number}, and a question that is somewhat long, is it not?")
        assert 12 * 3 == len(talk.units())
        text = engine.tokenizer.decode(talk.context().token_ids)
        assert "Be brief." in text
        assert "Number 11" in text
        assert "Number 0" not in text
        beginnings = [fed for unit in talk.units() if (fed := decode_fed(unit.codes)) is not None]
        assert 12 == len(beginnings)
        assert 2 <= len({fed.first_item for fed in beginnings}) <= 4
        assert all(fed.keep + len(fed.token_ids) + 24 <= engine.window_tokens for fed in beginnings)


async def test_worker_that_leaves_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, plugin: CausalLmPlugin, engine: Engine
) -> None:
    """When its worker stops in the middle of an answer, nothing of the session stays in the engine."""
    async with chat(monkeypatch, plugin, max_output_tokens=400) as talk:
        await talk.ask("One?", wait=False)
        await talk.until(lambda state: state.clock.next_unit >= 1)
    assert (0, 0, 0) == tuple(engine.stats)
    assert await engine.is_empty()
