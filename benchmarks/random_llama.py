"""Writes a small random Llama in Hugging Face layout, its tokenizer and PEFT adapters: for speed tests only.

Loads no torch: the weights are written from numpy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.model.config import ModelConfig

END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ter",
    "ans",
    "ou",
    "pre",
    "sti",
    "gel",
    "un",
    "dor",
    "vi",
    "shu",
    "bel",
    "orn",
    "ex",
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    num_layers: int = 4
    hidden: int = 256
    num_heads: int = 8
    num_kv_heads: int = 4
    intermediate: int = 1024
    vocab: int = 2048

    @classmethod
    def of(cls, config: ModelConfig) -> Shape:
        return cls(
            config.num_layers,
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.intermediate_size,
            config.vocab_size,
        )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Module path inside a layer -> (out features, in features)."""
        kv = self.num_kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (kv, self.hidden),
            "self_attn.v_proj": (kv, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }


def random_words(rng: np.random.Generator, count: int) -> str:
    """Text of made-up words: it tokenizes like language."""
    syllables = rng.choice(_SYLLABLES, size=(count, 3))
    lengths = rng.integers(1, 4, size=count)
    return " ".join("".join(row[:length]) for row, length in zip(syllables, lengths, strict=True))


def write_base(folder: Path, shape: Shape, seed: int = 0) -> None:
    """Config, weights and tokenizer of the base model."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    _write_tokenizer(folder, shape, rng)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))

    def draw(out_features: int, in_features: int) -> np.ndarray:
        return (rng.standard_normal((out_features, in_features)) / np.sqrt(in_features)).astype(np.float32)

    ones = np.ones(shape.hidden, dtype=np.float32)
    tensors = {
        "model.embed_tokens.weight": draw(shape.vocab, shape.hidden),
        "model.norm.weight": ones,
        "lm_head.weight": draw(shape.vocab, shape.hidden),
    }
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = ones
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones
        for module, (out_features, in_features) in shape.linears.items():
            tensors[f"{prefix}.{module}.weight"] = draw(out_features, in_features)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(folder: Path, shape: Shape, rank: int, seed: int) -> None:
    """A PEFT LoRA adapter on all seven linear modules, strong enough to change the output."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(module.rpartition(".")[2] for module in shape.linears),
        "base_model_name_or_path": "random-llama",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    tensors = {}
    for layer in range(shape.num_layers):
        for module, (out_features, in_features) in shape.linears.items():
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            down = rng.standard_normal((rank, in_features)) / np.sqrt(in_features)
            up = rng.standard_normal((out_features, rank)) * 0.1
            tensors[f"{prefix}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = up.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path, shape: Shape, rng: np.random.Generator) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((random_words(rng, 50) for _ in range(400)), trainer)
    assert tokenizer.get_vocab_size() == shape.vocab, "the text is too poor for this many tokens"
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
