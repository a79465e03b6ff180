"""Streams on a real engine: fed in chunks, they are what one request would be, and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from gpu_worker.engine.backend import KvBudget
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.errors import StreamClosed, TooLong
from gpu_worker.engine.sampling import UnitSampling, unit_seed

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT: tuple[int, ...] = (45, 60, 71, 88, 92, 103)


def greedy(tokens: int, *stops: int) -> UnitSampling:
    """Gives the sampling of a unit that says the likeliest tokens."""
    return UnitSampling(max_tokens=tokens, stop_token_ids=stops)


def drawn(tokens: int, unit: int) -> UnitSampling:
    """Gives the sampling of a unit that is drawn by its own seed."""
    return UnitSampling(
        max_tokens=tokens, temperature=1.0, top_p=0.95, top_k=100, seed=unit_seed("session", unit)
    )


async def one_shot(engine: Engine, token_ids: tuple[int, ...], sampling: UnitSampling) -> tuple[int, ...]:
    """Gives what one request says to a context."""
    stream = engine.open("one", token_ids)
    said = await stream.append((), sampling)
    await stream.aclose()
    return said


async def test_chunks_equal_one_request(engine: Engine) -> None:
    """An answer in five units is the answer of one request, token for token."""
    stream = engine.open("chunks", PROMPT)
    said = [token for _ in range(5) for token in await stream.append((), greedy(8))]
    await stream.aclose()
    assert await one_shot(engine, PROMPT, greedy(40)) == tuple(said)


async def test_prefilled_context_says_the_same(engine: Engine) -> None:
    """Computing a context before its first unit changes nothing but the time."""
    stream = engine.open("prefilled", PROMPT)
    await stream.prefill()
    assert (len(PROMPT) - 1, len(PROMPT)) == (stream.computed, stream.length)
    assert await one_shot(engine, PROMPT, greedy(16)) == await stream.append((), greedy(16))
    await stream.aclose()


@pytest.mark.parametrize("unit_tokens", [1, 2, 7])
async def test_context_grows_by_what_is_appended_and_said(engine: Engine, unit_tokens: int) -> None:
    """Turn by turn the stream holds exactly the tokens that one request over all of them would hold."""
    stream, context = engine.open("turns", PROMPT), PROMPT
    for turn in range(6):
        fed = (50 + turn, 150 + turn) if turn else ()
        context += fed
        said = await stream.append(fed, greedy(unit_tokens))
        assert await one_shot(engine, context, greedy(unit_tokens)) == said
        context += said
        assert (len(context) - 1, len(context)) == (stream.computed, stream.length)
    await stream.aclose()


async def test_stop_token_is_part_of_the_context(engine: Engine) -> None:
    """A unit that a stop token ends holds it; the next unit goes on behind it as if nothing had stopped."""
    whole = await one_shot(engine, PROMPT, greedy(30))
    stop = whole[5]
    first = whole[: whole.index(stop) + 1]
    stream = engine.open("stop", PROMPT)
    assert first == await stream.append((), greedy(20, stop))
    assert whole[len(first) :] == await stream.append((), greedy(30 - len(first)))
    await stream.aclose()


async def test_last_token_can_be_replaced(engine: Engine) -> None:
    """What stands in place of the last sampled token is what the model goes on from."""
    stream = engine.open("replace", PROMPT)
    said = await stream.append((), greedy(8))
    after = await stream.append((201, 202), greedy(8), in_place_of=1)
    await stream.aclose()
    assert await one_shot(engine, (*PROMPT, *said[:-1], 201, 202), greedy(8)) == after


async def test_each_unit_has_its_own_sampling(engine: Engine) -> None:
    """Length, allowed tokens and randomness are the unit's, not the stream's."""
    stream = engine.open("sampling", PROMPT)
    greedily = await stream.append((), greedy(6))
    only = await stream.append((), UnitSampling(max_tokens=3, allowed_token_ids=(77,)))
    free = await stream.append((), drawn(10, 1))
    await stream.aclose()
    context = (*PROMPT, *greedily, 77, 77, 77)
    assert (77, 77, 77) == only
    assert await one_shot(engine, context, drawn(10, 1)) == free
    assert await one_shot(engine, context, greedy(10)) != free


@pytest.mark.parametrize(
    "sampling", [lambda unit: greedy(5), lambda unit: drawn(5, unit)], ids=["greedy", "drawn"]
)
async def test_rebuilt_context_goes_on_the_same(
    engine: Engine, sampling: Callable[[int], UnitSampling]
) -> None:
    """After any unit, another stream that is opened with the context says what the first one said."""
    stream, context, contexts, units = engine.open("live", PROMPT), PROMPT, [], []
    for unit in range(8):
        contexts.append(context)
        units.append(await stream.append((), sampling(unit)))
        context += units[-1]
    await stream.aclose()
    for unit, context in enumerate(contexts):
        rebuilt = engine.open("rebuilt", context)
        await rebuilt.prefill()
        assert units[unit:] == [await rebuilt.append((), sampling(later)) for later in range(unit, 8)]
        await rebuilt.aclose()


@pytest.mark.parametrize(
    "sampling", [lambda unit: greedy(5, 100), lambda unit: drawn(5, unit)], ids=["greedy", "drawn"]
)
async def test_token_by_token_comes_to_the_same(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, sampling: Callable[[int], UnitSampling]
) -> None:
    """Where a vLLM counts only the first chunk's length, units are the same as where each chunk's counts."""
    said = []
    for chunks_count in (True, False):
        monkeypatch.setattr(engine._backend, "_chunks_count", chunks_count)
        stream = engine.open("either way", PROMPT)
        await stream.prefill()
        said.append([await stream.append((110 + unit,), sampling(unit)) for unit in range(6)])
        await stream.aclose()
    assert said[0] == said[1]


async def test_eight_streams_at_once_equal_their_solo_runs(engine: Engine) -> None:
    """Streams in one batch say what each says alone, greedy and drawn."""

    async def run(number: int) -> list[tuple[int, ...]]:
        stream = engine.open(f"stream {number}", (*PROMPT, 110 + number))
        sampling = drawn if number % 2 else lambda tokens, _: greedy(tokens)
        said = [await stream.append((), sampling(4 + number % 3, unit)) for unit in range(10)]
        await stream.aclose()
        return said

    solo = [await run(number) for number in range(8)]
    assert solo == await asyncio.gather(*(run(number) for number in range(8)))


async def test_units_of_one_stream_wait_for_each_other(engine: Engine) -> None:
    """Units that are appended faster than they are worked on are worked on in order, one at a time."""
    stream = engine.open("queue", PROMPT)
    units = await asyncio.gather(*(stream.append((), greedy(3)) for _ in range(6)))
    await stream.aclose()
    assert await one_shot(engine, PROMPT, greedy(18)) == tuple(token for unit in units for token in unit)


async def test_too_long_a_unit_is_refused_and_changes_nothing(engine: Engine) -> None:
    """A unit that may not fit is refused before it is begun; a shorter one still works."""
    stream = engine.open("long", PROMPT * 80)
    with pytest.raises(TooLong) as refused:
        await stream.append((), greedy(40))
    assert (520, engine.window_tokens) == (refused.value.tokens, refused.value.limit)
    assert 32 == len(await stream.append((), greedy(32)))
    await stream.aclose()
    with pytest.raises(TooLong):
        engine.open("longer", PROMPT * 100)


async def test_closed_stream_says_nothing_more(engine: Engine) -> None:
    """After it was closed, once or twice, a stream refuses to go on."""
    stream = engine.open("closed", PROMPT)
    await stream.append((), greedy(2))
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StreamClosed):
        await stream.append((), greedy(2))


async def test_abort_storm_leaves_nothing(engine: Engine) -> None:
    """Two hundred streams that are cancelled and closed at any moment leave no request and no KV."""
    dice = random.Random(7)

    async def stir(number: int) -> None:
        stream = engine.open(
            f"storm {number}", [dice.randrange(40, 300) for _ in range(dice.randrange(1, 60))]
        )
        for _ in range(dice.randrange(4)):
            unit = asyncio.create_task(stream.append((), greedy(dice.randrange(1, 24))))
            if dice.random() < 0.4:
                # A moment that is random by design: anything from not begun to long done.
                await asyncio.sleep(dice.random() * 0.03)
                unit.cancel()
            outcome = (await asyncio.gather(unit, return_exceptions=True))[0]
            assert isinstance(outcome, tuple | asyncio.CancelledError | StreamClosed)
        await stream.aclose()

    gate = asyncio.Semaphore(24)

    async def one(number: int) -> None:
        async with gate:
            await stir(number)

    await asyncio.gather(*(one(number) for number in range(200)))
    assert (0, 0, 0) == tuple(engine.stats)
    assert await engine.is_empty()


async def test_capacity_is_whole_windows(engine: Engine) -> None:
    """The worker may advertise as many sessions as have room for a whole window, or as it was told."""
    budget = engine.kv_budget
    window_blocks = -(-engine.window_tokens // budget.block_tokens)
    assert min(32, (budget.blocks - 1) // window_blocks) == engine.capacity


@pytest.mark.parametrize(
    ("blocks", "block_tokens", "window_tokens", "sessions"),
    [
        (513, 128, 512, 128),
        (512, 128, 512, 127),
        (513, 128, 513, 102),
        (2, 16, 16, 1),
        (1, 16, 16, 0),
        (0, 16, 16, 0),
    ],
)
async def test_sessions_that_fit(blocks: int, block_tokens: int, window_tokens: int, sessions: int) -> None:
    """Windows are counted in whole blocks, and one block is the engine's own."""
    assert sessions == KvBudget(blocks, block_tokens).sessions(window_tokens)
