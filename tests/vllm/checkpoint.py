"""
A tiny language model that the tests make: a seeded random Llama with a byte-level tokenizer.

Imports what vLLM brings along.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY = 64, 128, 2, 2, 320
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_checkpoint(folder: Path) -> Path:
    """Write configuration, tokenizer and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    _write_config(folder)
    _write_weights(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the user and the assistant speak, system and all"] * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_config(folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))


def _write_weights(folder: Path) -> None:
    """Write large random weights: what comes out depends on all that went in, and does not become a loop."""
    random = torch.Generator().manual_seed(20)

    def matrix(rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, 0.5),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{at}self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN, 0.3)
        weights[f"{at}mlp.gate_proj.weight"] = matrix(INNER, HIDDEN, 0.3)
        weights[f"{at}mlp.up_proj.weight"] = matrix(INNER, HIDDEN, 0.3)
        weights[f"{at}mlp.down_proj.weight"] = matrix(HIDDEN, INNER, 0.3)
        weights[f"{at}input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[f"{at}post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
