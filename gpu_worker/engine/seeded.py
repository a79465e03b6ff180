"""
Draws tokens by a seed and a position alone, inside vLLM's first model runner.

There a request keeps one random generator for all its chunks: what a unit draws would depend on how its
context came about, and a worker that takes over could not draw the same. Here the draw is the Gumbel-max
trick: noise that seed and position fix is added to the scaled logits, and vLLM takes the greatest. Runs in
the engine's process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

_MASK = (1 << 63) - 1
_ODD = 0x9E3779B97F4A7C15 & _MASK
"""Spreads neighbouring positions over the seeds."""

Draw = Callable[[list[int], torch.Tensor], torch.Tensor]


class SeededDraw(AdapterLogitsProcessor):  # type: ignore[misc]  # no vLLM where types are checked
    """Changes the logits of requests that carry `duplex_draw`, as `vllm_backend` fills it."""

    def is_argmax_invariant(self) -> bool:
        """No: it decides what the greatest is."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Draw | None:
        """Give what draws for one chunk, if it asks for that."""
        draw = (params.extra_args or {}).get("duplex_draw")
        if draw is None:
            return None
        seed, temperature, top_p, top_k, drawn = draw
        return _draw(int(seed), float(temperature), float(top_p), int(top_k), int(drawn))


def _draw(seed: int, temperature: float, top_p: float, top_k: int, drawn: int) -> Draw:
    def draw(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        scaled = _narrowed(logits / temperature, top_p, top_k)
        generator = torch.Generator(device=logits.device)
        generator.manual_seed((seed + (drawn + len(output_ids)) * _ODD) & _MASK)
        noise = torch.empty_like(scaled).exponential_(generator=generator)
        return scaled - noise.log()

    return draw


def _narrowed(logits: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """
    Rule out all but the `top_k` likeliest, and of them all but those that make up `top_p`.

    The likeliest always stays.
    """
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < torch.topk(logits, top_k).values[-1], float("-inf"))
    if top_p < 1.0:
        ordered, places = torch.sort(logits, descending=True)
        chances = ordered.softmax(dim=-1)
        beyond = chances.cumsum(dim=-1) - chances >= top_p
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, places, beyond), float("-inf"))
    return logits
