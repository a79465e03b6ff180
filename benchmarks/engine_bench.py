"""
What a unit costs in the engine: N streams in lockstep, and what it costs to compute their contexts anew.

    python benchmarks/engine_bench.py --shape tiny --sessions 1,8,32 --dtype float32 --kv-gib 0.25 --eager
    python benchmarks/engine_bench.py --shape 7b --sessions 1,16,64 --context 1000

Weights are random: speed does not depend on what the model says. Prints one JSON line for each number of
sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from gpu_worker.engine.engine import Engine
from gpu_worker.engine.sampling import UnitSampling, unit_seed
from gpu_worker.engine.settings import EngineSettings
from gpu_worker.engine.stream import EngineStream

_SHAPES = {  # layers, hidden, inner, heads, KV heads
    "tiny": (2, 128, 256, 4, 4),
    "7b": (32, 4096, 11264, 32, 32),
}


def write_config(folder: Path, shape: str) -> None:
    """Write the configuration of a Llama of this shape."""
    layers, hidden, inner, heads, kv_heads = _SHAPES[shape]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 32_000,
        "max_position_embeddings": 8_192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))


async def lockstep(engine: Engine, sessions: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure units of so many streams that go on together."""
    context = [7 + at % 1_000 for at in range(options.context)]
    streams = [engine.open(f"stream {number}", context) for number in range(sessions)]
    began = time.perf_counter()
    await asyncio.gather(*(stream.prefill() for stream in streams))
    prefill_ms = (time.perf_counter() - began) * 1e3

    async def unit(number: int, stream: EngineStream, at: int) -> None:
        sampling = UnitSampling(
            max_tokens=options.unit_tokens,
            temperature=options.temperature,
            seed=unit_seed(f"stream {number}", at),
        )
        # In place of the last token: a unit of one token is one position, as in the Moshi family.
        await stream.append((5,), sampling, in_place_of=1)

    times_ms = []
    for at in range(options.units + options.warm_up):
        began = time.perf_counter()
        await asyncio.gather(*(unit(number, stream, at) for number, stream in enumerate(streams)))
        times_ms.append((time.perf_counter() - began) * 1e3)
    for stream in streams:
        await stream.aclose()
    times_ms = sorted(times_ms[options.warm_up :])
    return {
        "sessions": sessions,
        "prefill_ms": round(prefill_ms, 1),
        "unit_p50_ms": round(times_ms[len(times_ms) // 2], 2),
        "unit_max_ms": round(times_ms[-1], 2),
        "unit_p99_ms": round(times_ms[(len(times_ms) - 1) * 99 // 100], 2),
    }


async def run(options: argparse.Namespace) -> None:
    """Load the model once, then measure each number of sessions."""
    counts = [int(count) for count in options.sessions.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), options.shape)
        settings = EngineSettings(
            checkpoint=folder,
            window_tokens=options.window,
            max_sessions=max(counts),
            dtype=options.dtype,
            kv_cache_bytes=int(options.kv_gib * 2**30) if options.kv_gib else None,
            prefix_caching=False,
            eager=options.eager,
            random_weights=True,
        )
        began = time.perf_counter()
        engine = await Engine.start(settings)
        boot_s = round(time.perf_counter() - began, 1)
        print(json.dumps({"boot_s": boot_s, "kv": engine.kv_budget._asdict(), "capacity": engine.capacity}))
        for count in counts:
            print(json.dumps(await lockstep(engine, count, options)), flush=True)
        await engine.aclose()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(_SHAPES), default="tiny")
    parser.add_argument("--sessions", default="1,8", help="numbers of streams, with commas")
    parser.add_argument("--context", type=int, default=200, help="tokens that each stream begins with")
    parser.add_argument("--window", type=int, default=4_096, help="tokens that a context may hold")
    parser.add_argument("--units", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=10, help="units that are not counted")
    parser.add_argument("--unit-tokens", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0, tokens are drawn by seeds")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, help="size of the KV cache; what is free by default")
    parser.add_argument("--eager", action="store_true", help="neither compile nor capture")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
