"""An answer that is interrupted stands in the context as far as it was heard, by the playback ledger."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.causal_lm import CausalLmPlugin, CausalLmSettings
from gpu_worker.engine.context_tokens import context_tokens, decode_fed
from gpu_worker.engine.engine import Engine
from gpu_worker.plugin import Context, ModelSession, UnitInput, UnitOutput, UnitRecord
from session_core import commands as cmd
from session_core.config import Modality
from session_core.items import Item, Part, Role
from tests.gpu_worker.client import Scene
from tests.vllm.roles import SharedCausal, Talk, new_talk

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN_SAMPLES = 960
"""A token takes 40 ms to say."""


class Voiced(ModelSession):
    """A session whose answers sound, so that there is something to be heard."""

    def __init__(self, session: ModelSession) -> None:
        self._session = session

    async def step(self, unit: UnitInput) -> UnitOutput:
        """Gives what the model says a length."""
        output = await self._session.step(unit)
        return output._replace(audio=np.zeros(TOKEN_SAMPLES * len(output.token_ids), np.float32))

    async def aclose(self) -> None:
        """Gives up the place."""
        await self._session.aclose()


class VoicedPlugin(SharedCausal):
    """`causal_lm` with a voice."""

    async def open(self, context: Context) -> ModelSession:
        """Gives a session that sounds."""
        return Voiced(await super().open(context))


def context_before_last_answer(talk: Talk) -> tuple[int, ...]:
    """Reads from the journal what the context held when the last answer began."""
    units = talk.units()
    first = next(unit.unit for unit in units if unit.answers == units[-1].answers)
    before = context_tokens(UnitRecord(unit, muted=False) for unit in units[:first])
    return before.after(decode_fed(units[first].codes), None, ()).token_ids


async def conversation(
    plugin: CausalLmPlugin, answered: str | None, heard_ms: int
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """
    Asks twice, and gives the context of the second answer, that answer, and what was heard of the first.

    Args:
        plugin: the model, with a voice.
        answered: the first answer, if it is not the model's but came into the history as a text.
        heard_ms: how much of the first answer is played before the client talks over it.
    """
    scene = Scene()
    async with scene.store() as store, scene.worker(plugin):
        talk = new_talk(
            scene,
            store,
            plugin,
            output_modality=Modality.AUDIO,
            instructions="Be brief.",
            max_output_tokens=200,
        )
        await talk.open()
        if answered is None:
            await talk.ask("One?")
            await talk.taken(4)
            await talk.command(cmd.AckPlayback(heard_ms))
            await talk.command(cmd.BargeIn())
            await talk.answered()
        else:
            for role, kind, text in (
                (Role.USER, "input_text", "One?"),
                (Role.ASSISTANT, "output_text", answered),
            ):
                await talk.command(cmd.CreateItem(Item("", role=role, parts=(Part(kind, text=text),))))
        await talk.ask("Two?", cmd.ResponseOptions(max_output_tokens=24))
        await talk.answered()
        await talk.catch_up()
        said = next(item for item in talk.state.history if item.role is Role.ASSISTANT)
        last = [unit for unit in talk.units() if unit.answers == talk.units()[-1].answers]
        tokens = tuple(token for unit in last for token in unit.token_ids)
        return context_before_last_answer(talk), tokens, said.parts[0].heard_text or ""


@pytest.mark.parametrize("heard_ms", [0, 330, 700])
async def test_context_holds_what_was_heard(
    settings: CausalLmSettings, engine: Engine, heard_ms: int
) -> None:
    """After a barge-in the context is that of a session in which the answer was never longer."""
    plugin = VoicedPlugin(settings, engine)
    context, said, heard = await conversation(plugin, None, heard_ms)
    answer = f"<|im_start|>assistant\n{heard}<|im_end|>\n" if heard else ""
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        f"{answer}<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tuple(engine.tokenizer.encode(expected)) == context
    assert bool(heard_ms) == bool(heard)
    if heard:
        assert (context, said, heard) == await conversation(plugin, heard, 0)
    assert await engine.is_empty()
